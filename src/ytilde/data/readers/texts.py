"""What a table or an array holds as its owner wrote it: the ids of its rows and their features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..ids import own_texts
from .convert import as_array, dense
from .separators import separator_of, table_kind
from .source import Source

Texts = Callable[[list[str], Sequence[int] | None], pd.DataFrame]  # of columns and rows, or all


def with_texts(found: Source, read: Texts, shown: Sequence[str] | None = None) -> Source:
    """With what its owner wrote: the ids, and a way to the features' columns, or to `shown`."""
    name = found.schema.id_column
    columns = list(found.schema.columns if shown is None else shown)
    if (text := found.schema.text_column) is not None:  # what is read goes first
        columns = [text, *(column for column in columns if column != text)]
    ids = None if name is None else read([name], None)[name].tolist()
    if shown is not None and not columns:  # nothing is shown of vectors
        return replace(found, ids=ids, texts=lambda rows: pd.DataFrame(index=list(rows)))
    return replace(found, ids=ids, texts=(lambda rows: read(columns, rows)) if columns else None)


def file_texts(path: Path, columns: list[str] | None, rows: Sequence[int] | None) -> pd.DataFrame:
    """A table's columns and rows (None: all) as its file has them; of parquet, as Python does."""
    if table_kind(path) == ".parquet":
        import pyarrow.parquet as pq  # pandas would round whole numbers in a column with gaps

        table = pq.read_table(path, columns=columns)
        table = table if rows is None else table.take(list(rows))
        parts = {n: pd.Series(table[n].to_pylist(), dtype=object) for n in table.column_names}
        frame = own_texts(pd.DataFrame(parts), columns)
        return frame if rows is None else frame.set_axis(list(rows))
    separator = separator_of(path)
    header = pd.read_csv(path, sep=separator, index_col=False, nrows=0).columns
    places = [k for k, name in enumerate(header) if columns is None or name in columns]
    parts = pd.read_csv(
        path, sep=separator, index_col=False, usecols=places, dtype=str, keep_default_na=False,
        chunksize=100_000,
    )  # fmt: skip
    wanted = [part if rows is None else part[part.index.isin(rows)] for part in parts]
    frame = pd.concat(wanted)[list(header[places] if columns is None else columns)]
    return frame if rows is None else frame.loc[list(rows)]


def table_columns(path: Path) -> list[str]:
    """What the columns of a table are called."""
    return [str(name) for name in file_texts(path, None, []).columns]


def array_texts(x: Any, rows: Sequence[int]) -> pd.DataFrame:
    """Rows of features [N, D] as Python writes their values."""
    frame = pd.DataFrame(as_array(dense(x, "the array"), "the array")[list(rows)])
    texts = own_texts(frame.set_axis([f"feature {k}" for k in frame.columns], axis=1))
    return texts.set_axis(list(rows))


def npz_texts(path: Path, name: str, rows: Sequence[int]) -> pd.DataFrame:
    """The same of an array of a file."""
    with np.load(path, allow_pickle=False) as file:
        return array_texts(file[name], rows)
