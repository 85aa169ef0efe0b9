"""What the report and the review page share: templates, their policy, and texts from the data.

Everything that comes from the data reaches a page as escaped text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup

HERE = Path(__file__).parent  # a page's template, style and script are in the folder of its name
LONGEST = 120  # characters of any text from the data


class _Parts(NamedTuple):
    style: Markup
    script: Markup


def own_parts(page: str) -> _Parts:
    """A page's style and script: they hold nothing from the data, so they alone go in as is."""
    palette, style, script = (
        (HERE / name).read_text("utf-8")
        for name in ("palette.css", f"{page}/{page}.css", f"{page}/{page}.js")
    )
    return _Parts(Markup(palette + style), Markup(script))


def digest(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def template(name: str) -> jinja2.Template:
    """A page to be filled in, by its path below this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "percent": percent, "plural": plural}
    return environment.get_template(name)


def text_of(value: object, longest: int = LONGEST) -> str:
    """What the data calls something, of bounded length and without control characters."""
    text = f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
    text = text[: longest + 1]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _visible(c) for c in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _visible(character: str) -> str:
    """Joiners hold emoji together and stay; other invisible characters are spelled out."""
    return character if character == "\u200d" else character.encode("unicode_escape").decode()


def data_block(value: Any) -> Markup:
    """JSON for the inside of a script element, in which no text can end it or begin another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def count(value: float) -> str:
    return f"{round(value):,}"


def plural(number: int, noun: str, nouns: str = "") -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def percent(value: float) -> str:
    """0.123 as 12.3 %; never 100 % or 0 % for what is merely close."""
    shown = f"{100 * value:.1f}"
    if shown == "100.0" and value < 1:
        shown = "> 99.9"
    if shown == "0.0" and value > 0:
        shown = "< 0.1"
    return f"{shown.removesuffix('.0')} %"
