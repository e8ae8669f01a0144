"""Golden gradients: the transposed derivative in balls, its float64 magnitudes, and what an implementation may err."""
