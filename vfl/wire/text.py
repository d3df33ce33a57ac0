"""Text that another process sent, as it may be shown: one line, no control characters, of bounded length."""

LONGEST = 300
"""Characters."""


def plain(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line: white space as single blanks, what cannot be printed as escapes, cut where long."""
    # Cut first, as a stranger's text may be long, but not to the end yet: joining blanks shortens it.
    shown = "".join(each if each.isprintable() else _escaped(each) for each in " ".join(text[: 2 * longest].split()))
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()
