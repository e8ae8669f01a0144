"""The judge: an answer against its golden value."""
