"""Columns of dates and times: found, and made into how long ago and which month, day and hour."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

ISO = "ISO8601"  # how pandas calls 2007-11-16, with or without a time
_DAYS = (
    *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%y"),
    *("%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y", "%m-%d-%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y"),
    *("%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
)
FORMATS = (ISO, *(day + time for day in _DAYS for time in ("", " %H:%M", " %H:%M:%S")))
_LOOKS = re.compile(r"\d{4}-\d\d?-\d\d?([ T]\d.*)?|\d{1,4}[-/.]\d\d?[-/.]\d{1,4}( \d.*)?")
_WORDS = re.compile(r"(\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}|[A-Za-z]{3,9} \d{1,2},? \d{4})( \d.*)?")
TRIED = 200  # different values by which a format is chosen, before all are read
PARTS = ("days", "month", "day", "weekday", "hour")
DAY = 86400.0  # seconds


def date_format(column: pd.Series) -> str | None:
    """How the dates of this column are written; None: it holds none. "" for a column of times."""
    if column.dtype.kind == "M" or isinstance(column.dtype, pd.PeriodDtype):
        return ""
    values = column.dropna()
    if not len(values):
        return None
    if pd.api.types.infer_dtype(values, skipna=True) in ("date", "datetime", "datetime64"):
        return ""
    if not all(isinstance(value, str) for value in values.iloc[:TRIED]):
        return None
    texts = pd.Series(pd.unique(values.astype(str))).str.strip()
    texts = texts[texts != ""]
    some = texts.iloc[:TRIED]
    if not len(some) or not all(_LOOKS.fullmatch(t) or _WORDS.fullmatch(t) for t in some):
        return None
    for written in FORMATS:
        if _parse(some, written).notna().all() and _parse(texts, written).notna().all():
            return written
    return None


def _parse(texts: pd.Series, written: str) -> pd.Series:
    return pd.to_datetime(texts, format=written, errors="coerce", utc=True)


def _times(column: pd.Series, written: str) -> pd.Series:
    """Points in time, UTC where nothing else is said; what is none is missing."""
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if column.dtype.kind == "M":
        return pd.to_datetime(column, errors="coerce", utc=True)
    if not written:
        return pd.to_datetime(column.astype(object), errors="coerce", utc=True)
    texts = column.astype(object).where(column.notna(), None)
    texts = texts.map(lambda value: value.strip() if isinstance(value, str) else value)
    times = _parse(texts, written)
    if (lost := times.isna() & column.notna()).any():  # written in another way than in training
        times = times.copy()
        times[lost] = _parse(texts[lost], ISO)
    return times


def learn_dates(column: pd.Series, written: str) -> dict[str, Any]:
    """How a column of dates becomes features, as JSON: its parts that vary, and their medians."""
    times = _times(column, written)
    origin = times.min()
    known = _parts(times, origin, PARTS)[times.notna().to_numpy()]
    varies = [part for part, values in zip(PARTS, known.T, strict=True) if np.ptp(values) > 0]
    parts = varies or ["days"]
    fill = [float(np.median(known[:, PARTS.index(part)])) for part in parts]
    return {
        "kind": "date", "width": len(parts), "format": written, "origin": origin.isoformat(),
        "parts": parts, "fill": fill,
    }  # fmt: skip


def date_features(column: pd.Series, how: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """[N, parts], the medians where there is no date; and where that is, [N]."""
    times = _times(column, how["format"])
    gaps = times.isna().to_numpy()
    parts = _parts(times, pd.Timestamp(how["origin"]), how["parts"])
    parts[gaps] = how["fill"]
    return parts, gaps


def _parts(times: pd.Series, origin: pd.Timestamp, parts: Any) -> np.ndarray:
    at = times.dt
    read = {
        "days": lambda: (times - origin).dt.total_seconds() / DAY,
        "month": lambda: at.month,
        "day": lambda: at.day,
        "weekday": lambda: at.weekday,
        "hour": lambda: at.hour + at.minute / 60,
    }
    return np.stack([read[part]().to_numpy(np.float64, na_value=np.nan) for part in parts], 1)
