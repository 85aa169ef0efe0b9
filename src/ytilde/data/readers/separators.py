"""What separates the values of a table that is text."""

from __future__ import annotations

import re
from pathlib import Path

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def usual_separator(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def separator_of(path: Path) -> str:
    """What separates the names of the header: the usual, or else the only one that is in it."""
    header = ""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for line in file:
            header += line
            if header.strip() and header.count('"') % 2 == 0:  # a quoted name may hold line ends
                break
    header = re.sub('"[^"]*"', "", header).strip()  # and separators
    found = [separator for separator in SEPARATORS if separator in header]
    return found[0] if len(found) == 1 else usual_separator(path)
