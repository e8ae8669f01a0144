"""The one exception that ends a command with exit status 2 and one line on stderr."""


class UsageError(Exception):
    """What was asked for cannot be done: the message names the thing, what is wanted and the remedy."""
