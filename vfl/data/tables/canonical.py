"""One spelling of a value that is a category or a class, whatever kind of file holds it.

A CSV file of pandas has True, 1.0 and 2024-05-01 where the same table in Parquet, of Polars or of R has true, 1 and
2024-05-01T00:00:00: without types they look like text. So each cell is spelt anew, by itself.
"""

import math
import re

BOOLEANS = {text: text.lower() for word in ("true", "false") for text in (word, word.title(), word.upper())}
DECIMAL = re.compile(r"-?((0|[1-9]\d*)(\.\d+)?|\.\d+|\d(\.\d+)?[eE][+-]\d{1,3}|\d\.\d+[eE]\d{1,3})", re.ASCII)
"""Numbers as programs write them. 007 is a code, and so is 12E3: no program has two digits before an exponent."""
WHOLE = re.compile(r"-?[1-9]\d*|0", re.ASCII)
TIME = re.compile(r"((?:\d{4}-\d\d-\d\d[ T])?)(\d\d:\d\d)(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def spell(text: str) -> str:
    """Return the one spelling of a value.

    Booleans are true and false. A number has no zeros behind its last digit, and no exponent where it is whole and
    below 2**63; one with a fraction is the shortest that gives its float64. A time has a space before it, no zeros at
    the end of its fraction, and is only a day at midnight without a zone; UTC is Z. All else stays as it is.
    """
    if text in BOOLEANS:
        return BOOLEANS[text]
    if DECIMAL.fullmatch(text):
        return text if WHOLE.fullmatch(text) or math.isinf(float(text)) else _number(float(text))
    return _time(match) if (match := TIME.fullmatch(text)) else text


def as_written(text: str) -> str:
    """Return the text itself: runs of an earlier version know categories and classes so."""
    return text


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)


def _time(match: re.Match[str]) -> str:
    day, minute, second, fraction, zone = match.groups(default="")
    zone = "Z" if zone[1:] in ("00:00", "0000") else zone.replace(":", "")
    time = minute + (second or ":00") + fraction.rstrip("0").rstrip(".") + zone
    return f"{day[:-1]} {time}" if day and time != "00:00:00" else day[:-1] or time
