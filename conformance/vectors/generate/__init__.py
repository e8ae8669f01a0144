"""Makes the golden vectors: declared cases, a ball-arithmetic oracle and the derived bounds. Needs python-flint."""
