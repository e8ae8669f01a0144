"""The calls from Python: a run, an exploration; the command line is another way to the same."""
