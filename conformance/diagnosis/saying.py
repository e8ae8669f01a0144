"""What an exception says, whatever the sizes in it."""

import re

SIZES = re.compile(r"[(\[][\d, ]*[)\]]|-?\d[\d.e+-]*")
"""Shapes and numbers, which differ from case to case."""


def kind(message: str) -> str:
    """The remedy that a message ends with; of one without a remedy all of it, without sizes."""
    *_, remedy = message.split("; ")
    return SIZES.sub("#", remedy)
