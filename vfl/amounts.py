"""Counts as people read them."""


def amount(number: float) -> str:
    """Return a count with three digits and a decimal prefix, as ``78.5 M`` (the unit follows at once)."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"
