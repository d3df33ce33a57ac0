"""The card of exported models as Markdown, with code that uses them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from vfl.amounts import amount


def card_text(card: Mapping[str, Any]) -> str:
    """Return the card as Markdown."""
    template = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(card=card, amount=amount)
