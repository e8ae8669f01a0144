"""What the command is called, how it is called, and the statuses that it ends with (CONF-6)."""

PROGRAM = "mha-conformance"
CONFORMANT, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def examples(*calls: str) -> str:
    """The end of a help screen: example calls, each on a line of its own.

    The backspace is click's mark of a paragraph whose lines stay as they are.
    """
    heading = "Examples:" if len(calls) > 1 else "Example:"
    return "\n".join(["\b", heading, *(f"  {PROGRAM} {call}" for call in calls)])
