"""Words that a target says: on one line, of bounded length, and such that they can be written to a file."""

MOST_CHARACTERS = 300
"""How much of any one text of a target's is kept."""


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text on one line, cut where it is long; half a surrogate pair, which no file can hold, is escaped."""
    part = text[: 4 * most]  # what is beyond need not even be looked at
    words = " ".join(part.split())
    words = words if len(words) <= most and part == text else f"{words[:most]}..."
    return words.encode("utf-8", "backslashreplace").decode()


def said(error: BaseException) -> str:
    """The text of an exception on one line; none of one that cannot tell it."""
    try:
        return shorten(str(error))
    except BaseException:  # its __str__ is the target's, too
        return ""


def first_line(error: BaseException) -> str:
    """Type and text of an exception on one line; of one that cannot tell its text, the type alone."""
    text = said(error)
    name = shorten(type(error).__name__, 100)
    return f"{name}: {text}" if text else name
