"""Which known mistakes reproduce the wrong answers of a run."""
