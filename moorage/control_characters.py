"""Control characters in names and other texts: a terminal obeys them, and a line break begins a new line of a log."""

import re

#: The ranges of a regular expression. Those of line and paragraph separators are among them, because many readers of a
#: text take these as line breaks.
RANGES = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_ANY = re.compile(f"[{RANGES}]")


def escaped(text: str, kept: str = "\n\t") -> str:
    """Return a text with escapes instead of what a terminal does not print, but obeys or hides.

    :param kept: the characters among these that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode() for char in text
    )


def are_in(text: str) -> bool:
    """Return whether a text has control characters."""
    return not text.isprintable() and _ANY.search(text) is not None
