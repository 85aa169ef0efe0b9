"""Columns that name the rows: found, kept out of the features, carried along as they are written.

What a person reads of a row is the text that the table holds: a number that went through float32
is another number (1234567890 becomes 1234567936).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from .columns import is_long
from .dates import date_format

ROWS = 30  # of a table from which on different values in all of them are no accident
LONGEST = 64  # characters of an id; a longer text says something
NONE = "none"  # instead of a column's name: no column holds ids


def find_ids(frame: pd.DataFrame, all_may_be: bool = False) -> list[str]:
    """The columns that hold another whole number, or another short text, in every row.

    Whole numbers that are all there is to learn from are none, unless nothing is learnt from them.
    """
    found = [name for name in frame.columns if len(frame) >= ROWS and _names_rows(frame[name])]
    return found if all_may_be or len(found) < len(frame.columns) else []


def _names_rows(column: pd.Series) -> bool:
    if column.dtype == object and not all(isinstance(value, Hashable) for value in column):
        return False  # lists and records
    if column.isna().any() or not column.is_unique:
        return False
    if pd.api.types.is_integer_dtype(column):
        return True
    if not (pd.api.types.is_string_dtype(column) or column.dtype == object):
        return False
    if is_long(column) or date_format(column) is not None:
        return False  # they say something
    texts = column.astype(str)
    if pd.to_numeric(texts, errors="coerce").notna().all():  # 007 is an id, 1.5 is a quantity
        return bool(texts.str.fullmatch(r"[0-9]+").all())
    return bool((texts.str.len() <= LONGEST).all())


def own_text(value: Any) -> str:
    """A value as its owner wrote it, or would; nothing for a missing one."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def own_texts(
    frame: pd.DataFrame, columns: Sequence[str] | None = None, rows: Sequence[int] | None = None
) -> pd.DataFrame:
    """Columns and rows of a table, or all; every value as a text, under the number of its row."""
    part = frame.rename(columns=str)
    part = part if columns is None else part[list(columns)]
    numbers = range(len(frame)) if rows is None else list(rows)
    texts = [
        [own_text(value) for value in part.iloc[numbers, place].to_numpy()]
        for place in range(part.shape[1])
    ]
    return pd.DataFrame(dict(enumerate(texts)), numbers, dtype=object).set_axis(
        part.columns, axis=1
    )
