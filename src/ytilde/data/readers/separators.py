"""What separates the values of a table that is text."""

from __future__ import annotations

import re
from pathlib import Path

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def usual_separator(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def separator_of(path: Path) -> str:
    """What separates the names of the header: the usual, or else the only one that is in it."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        start = file.read(2**16).lstrip()
    # Up to the first line end that is not in quotes; then without quoted names, which may hold any.
    header = re.match(r'(?:"[^"]*"|[^"\r\n])*', start)
    text = re.sub('"[^"]*"', "", header[0] if header else "")
    found = [separator for separator in SEPARATORS if separator in text]
    return found[0] if len(found) == 1 else usual_separator(path)
