"""How each column of a table becomes features: learnt from the training data, applied to any.

    numbers      as they are; gaps become the median, beside a feature that says where they were
    categories   a feature for each value; a gap is a value too
    dates        days since the first, month, day, weekday, hour: those that vary (dates.py)
    text         TF-IDF, reduced to components (tfidf.py)

Empty columns and ids are left out, and named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadInput, plural, sentence, shorten_list, which_rows
from .dates import date_features, date_format, learn_dates
from .tfidf import TfIdf

CATEGORIES = 20  # up to this many different texts, each is a category, however rare
FREQUENT, MOST = 5, 50  # beyond that: values that at least 5 rows have, at most 50
WORDS = 5  # median number of words from which on a column is text to be read
GAP = ""  # the category of rows without a value

# None: a number; a list: categories; a dict: the kind of column, and how it is read
Kind = list[str] | dict[str, Any] | None


@dataclass
class Treatment:
    """How the columns of a table become features; the Schema holds all of it."""

    columns: dict[str, Kind] = field(default_factory=dict)
    medians: dict[str, float] = field(default_factory=dict)  # of numbers, to fill gaps
    gaps: list[str] = field(
        default_factory=list
    )  # columns whose gaps get a feature, after all others
    tfidf: TfIdf | None = None  # of the column of texts


def is_text(column: pd.Series) -> bool:
    kind = pd.api.types
    return kind.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)


def is_long(column: pd.Series) -> bool:
    """Texts to be read rather than compared: many different ones, usually of several words."""
    if not is_text(column):
        return False
    texts = pd.Series(column.dropna().unique()).astype(str)
    some = texts.iloc[:: max(1, len(texts) // 500)]
    return len(texts) > CATEGORIES and bool(some.map(count_words).median() >= WORDS)


_WORD = re.compile(r"\w+")
_NO_SPACES = re.compile(  # Thai to Khmer, Chinese, Japanese: scripts that leave none between words
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)


def count_words(text: str) -> int:
    """About how many words a text has; where none are set apart, two characters count as one."""
    dense = len(_NO_SPACES.findall(text))
    return len(_WORD.findall(_NO_SPACES.sub(" ", text))) + dense // 2


# ---- learnt from the training data ---------------------------------------------------------------


def learn(frame: pd.DataFrame, what: str, notes: list[str], text: str | None = None) -> Treatment:
    """How to treat each column; columns that cannot be used are named in one error.

    text: the column of texts to be read, if any.
    """
    found = Treatment()
    wrong: dict[str, str] = {}  # column: what is wrong with it
    left: dict[str, str] = {}  # column: why it is left out
    for name, column in frame.rename(columns=str).items():
        name = str(name)
        if name == text:
            found.tfidf = TfIdf.learn(as_texts(column), f"column {name!r} of {what}")
            found.columns[name] = {"kind": "text", "width": found.tfidf.width}
        elif column.isna().all():
            left[name] = "it is empty"
        elif reason := _unusable(name, column, what):
            wrong[name] = reason
        elif (written := date_format(column)) is not None:
            found.columns[name] = learn_dates(column, written)
            found.gaps += [name] if column.isna().any() else []
        elif not is_text(column) and column.dtype != object:
            _learn_numbers(name, as_numbers(column), found)
        elif is_long(column):
            left[name] = "it holds long texts; name it with --text to read them"
        else:
            _learn_texts(name, column, found, left, what, notes)
    if wrong:
        told = sentence("; ".join(wrong.values()))
        raise BadInput(f"{told}; turn it into numbers or leave it out: {drop_line(wrong)}.")
    if not found.columns:
        why = "; left out: " if left else ""
        raise BadInput(f"There is no feature column in {what}{why}{_reasons(left)}.")
    if left:
        notes.append(f"left out of {what}: {_reasons(left)}")
    filled = [name for name in found.columns if _has_gaps(name, found)]
    if filled:
        notes.append(
            f"gaps in {shorten_list(map(repr, filled))} are kept: as a category, or as the median "
            "with a feature that marks them"
        )
    return found


def _has_gaps(name: str, found: Treatment) -> bool:
    kind = found.columns[name]
    values = kind.get("values", ()) if isinstance(kind, dict) else kind or ()
    return name in found.gaps or GAP in values


def _reasons(left: dict[str, str]) -> str:
    return shorten_list((f"{name!r} ({why})" for name, why in left.items()), 20)


def drop_line(names: Iterable[str]) -> str:
    """The option that leaves these columns out, ready to be copied."""
    names = list(names)
    plain = [name for name in names if "," not in name]
    parts = [",".join(plain)] if plain else []
    return " ".join(f"--drop {shlex.quote(part)}" for part in [*parts, *(set(names) - set(plain))])


def _unusable(name: str, column: pd.Series, what: str) -> str | None:
    """Why no feature can be made of a column."""
    if column.dtype.kind == "c":
        return f"column {name!r} of {what} holds {column.dtype}"
    if column.dtype == object:
        odd = column[[not isinstance(value, _SCALARS) for value in column]]
        if len(odd):
            kind = type(odd.iloc[0]).__name__
            return f"column {name!r} of {what} holds objects ({kind})"
    if not is_text(column) and column.dtype.kind not in "MmO":
        with np.errstate(over="ignore"):
            numbers = as_numbers(column)
            bad = np.flatnonzero(np.isinf(numbers.astype(np.float32)))
        if bad.size:
            rows, value = which_rows(bad), column.iloc[bad[0]]
            return (
                f"there is no finite number in {rows} of column {name!r} of {what} (found {value})"
            )
    return None


_SCALARS = (
    str, bool, int, float, Decimal, np.generic, type(None), type(pd.NA), type(pd.NaT), pd.Period,
    date, timedelta,
)  # fmt: skip


def _learn_numbers(name: str, numbers: np.ndarray, found: Treatment) -> None:
    known = numbers[np.isfinite(numbers)]
    found.columns[name], found.medians[name] = None, float(np.median(known))
    if len(known) < len(numbers):
        found.gaps.append(name)


def _learn_texts(
    name: str,
    column: pd.Series,
    found: Treatment,
    left: dict[str, str],
    what: str,
    notes: list[str],
) -> None:
    """A text column is numbers, categories, or an id."""
    numbers, texts = as_numbers(column), as_texts(column)
    words = texts[np.isnan(numbers) & (texts != GAP).to_numpy()]
    counts = texts[texts != GAP].value_counts()
    codes = words.nunique() > 1 and len(counts) <= CATEGORIES  # such as 1, 2, A, B
    if len(words) < 0.5 * len(column) and np.isfinite(numbers).any() and not codes:
        _learn_numbers(name, numbers, found)
        return
    gap = [GAP] if (texts == GAP).any() else []
    if len(counts) <= CATEGORIES:
        found.columns[name] = sorted([*gap, *counts.index])
        return
    values = list(counts[counts >= FREQUENT].index[:MOST])
    rare = int(counts.sum() - counts[values].sum())
    if rare > 0.5 * counts.sum():
        left[name] = f"{len(counts)} different short texts, like ids"
        return
    names = sorted([*gap, *values])
    found.columns[name] = names
    if rare:
        found.columns[name] = {"kind": "category", "width": len(names), "values": names}
        notes.append(
            f"column {name!r} of {what} has {len(counts)} different values: the {len(values)} most "
            f"frequent are categories, the others ({plural(rare, 'row')}) belong to none"
        )


# ---- applied to any data -------------------------------------------------------------------------


def apply(frame: pd.DataFrame, how: Treatment, what: str, notes: list[str]) -> np.ndarray:
    """[N, D] float64: the features of all columns, then those that mark gaps."""
    frame = frame.rename(columns=str)
    widths = [width(kind) for kind in how.columns.values()]
    out = np.empty((len(frame), sum(widths) + len(how.gaps)))  # one copy: columns go into it
    start, missing = 0, {}
    for (name, kind), size in zip(how.columns.items(), widths, strict=True):
        where, place = f"column {name!r} of {what}", slice(start, start + size)
        if kind is None:
            out[:, start], missing[name] = _number(name, frame[name], how, where, notes)
        elif isinstance(kind, list):
            out[:, place] = _one_hot(frame[name], kind, where, notes)
        elif kind["kind"] == "category":  # other values are expected
            out[:, place] = _one_hot(frame[name], kind["values"], where, [])
        elif kind["kind"] == "text":
            assert how.tfidf is not None
            out[:, place] = how.tfidf.transform(as_texts(frame[name]), where, notes)
        else:
            out[:, place], missing[name] = date_features(frame[name], kind)
            words = missing[name] & (as_texts(frame[name]).str.strip() != GAP).to_numpy()
            if words.any():
                notes.append(_no_value("a date", words, frame[name], where))
            if name not in how.gaps and (missing[name] & ~words).any():
                notes.append(_new_gap(missing[name] & ~words, where, "the usual date"))
        start += size
    for at, name in enumerate(how.gaps, start):
        out[:, at] = missing[name]
    return out


def as_texts(column: pd.Series) -> pd.Series:
    """Every value as text; gaps are empty."""
    return column.astype(object).where(column.notna(), GAP).map(str)


def as_numbers(column: pd.Series) -> np.ndarray:
    """[N] float64; NaN where the value is not a number."""
    if column.dtype.kind == "m":
        return column.dt.total_seconds().to_numpy(np.float64, na_value=np.nan)
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    return pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)


def _number(
    name: str, column: pd.Series, how: Treatment, what: str, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, gaps filled with the median; and where the gaps are."""
    if column.dtype.kind == "c":
        raise BadInput(f"There are complex numbers in {what}; give real ones.")
    numbers = as_numbers(column)
    with np.errstate(over="ignore"):
        gaps = ~np.isfinite(numbers.astype(np.float32))
    if not gaps.any():
        return numbers, gaps
    if name not in how.medians:  # runs of earlier versions have none
        bad = np.flatnonzero(gaps)
        raise BadInput(
            f"There is no finite number in {which_rows(bad)} of {what} "
            f"(found {column.iloc[bad[0]]}); fill it in or leave the row out."
        )
    median = how.medians[name]
    words = gaps & column.notna().to_numpy()
    if words.any():
        notes.append(_no_value("a number", words, column, what))
    if name not in how.gaps and (gaps & ~words).any():
        notes.append(_new_gap(gaps & ~words, what, f"the median, {median:g}"))
    return np.where(gaps, median, numbers), gaps


def _no_value(kind: str, rows: np.ndarray, column: pd.Series, what: str) -> str:
    first = column.iloc[int(rows.argmax())]
    first = first.item() if isinstance(first, np.generic) else first
    return (
        f"not {kind} in {which_rows(np.flatnonzero(rows))} of {what} ({first!r}): treated as "
        f"{plural(int(rows.sum()), 'gap')}"
    )


def _new_gap(gaps: np.ndarray, what: str, filled: str) -> str:
    return (
        f"no value in {which_rows(np.flatnonzero(gaps))} of {what}, which had no gaps in training: "
        f"treated as {filled}"
    )


def _one_hot(column: pd.Series, categories: list[str], what: str, notes: list[str]) -> np.ndarray:
    """[N, categories] of 0 and 1; a value that training did not have is 0 everywhere."""
    texts = as_texts(column)
    code = pd.Index(categories).get_indexer(pd.Index(texts))
    known = shorten_list(name for name in categories if name != GAP)
    gaps = ((code < 0) & (texts == GAP)).to_numpy()
    if gaps.any():
        notes.append(_new_gap(gaps, what, f"none of {known}"))
    new = np.flatnonzero((code < 0) & ~gaps)
    if new.size:
        notes.append(
            f"a value in {which_rows(new)} of {what} that training did not have "
            f"({texts.iloc[new[0]]!r}): treated as none of {known}"
        )
    return np.eye(len(categories) + 1, len(categories), dtype=np.float64)[code]  # -1 is the last


def width(kind: Kind) -> int:
    """How many features a column has."""
    if isinstance(kind, dict):
        return int(kind["width"])
    return 1 if kind is None else len(kind)


def kind_of(kind: Kind) -> str:
    """The name of a kind of column."""
    if isinstance(kind, dict):
        return str(kind["kind"])
    return "number" if kind is None else "category"


def counted(columns: dict[str, Kind]) -> str:
    """How many columns there are of each kind, e.g. "2 numbers and 1 category"."""
    plurals = {"number": "numbers", "category": "categories", "date": "dates", "text": "texts"}
    kinds = [kind_of(kind) for kind in columns.values()]
    parts = [
        f"{kinds.count(k)} {k if kinds.count(k) == 1 else plurals[k]}"
        for k in plurals
        if k in kinds
    ]
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"
