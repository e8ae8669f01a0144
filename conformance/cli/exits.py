"""What the command is called, and the statuses that it ends with (CONF-6)."""

PROGRAM = "mha-conformance"
CONFORMANT, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
