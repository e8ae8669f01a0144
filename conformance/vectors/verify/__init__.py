"""Proves the vectors anew: by the oracle, by a second reference and by relations. Needs python-flint and mpmath."""
