"""How an operand may lie in memory."""

LAYOUTS = ("transposed", "reversed", "readonly", "unaligned", "heads", "packed", "stepped")
