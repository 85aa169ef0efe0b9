"""What kind of table a file is, and what separates the values of one that is text."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

TABLES = (".csv", ".tsv", ".parquet")
PACKED = ".gz"  # a table that is text may be compressed
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == PACKED


def table_kind(path: Path) -> str:
    """One of TABLES, in small letters, or whatever else a file is called; data.csv.gz is a csv."""
    inner = path.with_suffix("") if is_packed(path) else path
    kind = inner.suffix.lower()
    return PACKED if is_packed(path) and kind not in (".csv", ".tsv") else kind


def table_stem(path: Path) -> str:
    """What a table is called without the end that tells its kind."""
    return path.with_suffix("").stem if is_packed(path) else path.stem


def usual_separator(path: Path) -> str:
    return "\t" if table_kind(path) == ".tsv" else ","


def separator_of(path: Path) -> str:
    """What separates the names of the header: the usual, or else the only one that is in it."""
    unpacked = gzip.open if is_packed(path) else open
    with unpacked(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        start = str(file.read(2**16)).lstrip()
    # Up to the first line end that is not in quotes; then without quoted names, which may hold any.
    header = re.match(r'(?:"[^"]*"|[^"\r\n])*', start)
    text = re.sub('"[^"]*"', "", header[0] if header else "")
    found = [separator for separator in SEPARATORS if separator in text]
    return found[0] if len(found) == 1 else usual_separator(path)
