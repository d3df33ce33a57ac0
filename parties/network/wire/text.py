"""Text from another process, made safe to show: one line, no control characters, bounded length."""

LONGEST = 300
"""Most characters of such a text."""


def plain(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line: white space as single blanks, unprintable characters escaped, cut if too long."""
    # Cut first, as a stranger's text may be long, but not to the end yet: joining blanks shortens it.
    shown = "".join(each if each.isprintable() else _escaped(each) for each in " ".join(text[: 2 * longest].split()))
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()
