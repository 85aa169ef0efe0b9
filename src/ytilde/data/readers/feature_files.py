"""Files of embeddings (npy, npz, parquet, csv) and the rows of other data that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from ...errors import BadInput, shorten_list
from ...files import check_no_stream
from ..ids import own_texts
from .arrays import load_npz
from .embeddings import as_features, holds_vectors, stack_vectors, without_missing
from .separators import TABLES, table_kind
from .source import ReadOptions, Source
from .tables import load_table

KINDS = "npy, npz, parquet, csv or tsv"
ARRAYS = ("x", "X", "embeddings", "embedding", "features", "emb")  # of an npz
NAMED = ("id", "path", "file", "item", "index")  # columns that are meant to name the rows


class Vectors(NamedTuple):
    """Vectors [N, D], and the columns beside them that may name their rows."""

    x: np.ndarray
    beside: dict[str, list[str]]


def with_features(found: Source, options: ReadOptions, source: Any) -> Source:
    """The same rows, which a model sees as the vectors of the file `options.features`.

    They are found by the names of the rows where the file has these, else by their order.
    Pictures stay in `pictures`.
    """
    path = Path(str(options.features))
    if not path.exists():
        raise BadInput(
            f"There is no file {str(path)!r} with embeddings, and no column of that name either; "
            "`ytilde embed` makes such a file."
        )
    vectors = read_vectors(path)
    rows = _rows_of(found, vectors, path, source)
    schema = options.schema
    x = as_features(vectors.x[rows], str(path), schema.double if schema else None)
    shape = [int(x.shape[1])]
    options.notes.append(f"the model sees the {shape[0]} numbers a row of {path}")
    data = replace(found.data, x=x)
    pictures = found.data.x if len(found.data.shape) == 3 else None
    told = replace(found.schema, shape=shape, double=x.dtype == torch.float64, columns={})
    whole = replace(found, data=data, schema=told, pictures=pictures)
    return without_missing(whole, options.notes, str(path))


def read_vectors(path: Path) -> Vectors:
    """The vectors of a file."""
    check_no_stream(path)
    kind = table_kind(path)
    if kind == ".npy":
        return Vectors(_load_npy(path), {})
    if kind == ".npz":
        return _of_npz(path)
    if kind in TABLES:
        return _of_table(path)
    raise BadInput(f"{path} holds no embeddings that can be read; give {KINDS}.")


def _load_npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # damaged files raise many kinds
        raise BadInput(f"{path} cannot be read as a plain array ({error}).") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        raise BadInput(
            f"{path} holds an array of shape {np.shape(array)}; embeddings are [rows, numbers]."
        )
    return array


def _of_npz(path: Path) -> Vectors:
    parts = load_npz(path)
    flat = {name: part for name, part in parts.items() if part.ndim == 2}
    wanted = next((name for name in ARRAYS if name in flat), None)
    if wanted is None and len(flat) == 1:
        wanted = next(iter(flat))
    if wanted is None:
        raise BadInput(
            f"{path} has no array of embeddings [rows, numbers] called x; it holds "
            f"{shorten_list(parts) or 'nothing'}."
        )
    x = flat[wanted]
    beside = {k: part for k, part in parts.items() if part.shape == (len(x),)}
    texts = own_texts(pd.DataFrame(beside)) if beside else pd.DataFrame()
    return Vectors(x, {str(name): texts[name].tolist() for name in texts})


def _of_table(path: Path) -> Vectors:
    """The column of vectors, or all columns of fractions as one vector."""
    frame = load_table(path, ReadOptions())
    if not len(frame):
        raise BadInput(f"There are no rows in {path}.")
    lists = [c for c in frame.columns if holds_vectors(frame[c])]
    if len(lists) > 1:
        raise BadInput(
            f"There are several columns of vectors in {path} ({shorten_list(lists)}); leave one."
        )
    if lists:
        x, used = stack_vectors(frame[lists[0]], f"column {lists[0]!r} of {path}"), lists
    else:
        used = [c for c in frame.columns if pd.api.types.is_float_dtype(frame[c])]
        if not used:
            raise BadInput(
                f"There are no embeddings in {path}: neither a column of vectors nor columns of "
                "fractions."
            )
        x = frame[used].to_numpy(np.float64)
    texts = own_texts(frame.drop(columns=used))
    return Vectors(x, {str(name): texts[name].tolist() for name in texts})


def _rows_of(found: Source, vectors: Vectors, path: Path, source: Any) -> np.ndarray:
    """Which vector each row of the data has."""
    ways = _row_names(found, source)
    n, best = len(found.data), (0, np.arange(0))
    for name, column in vectors.beside.items():
        place = {text: row for row, text in enumerate(column)}
        if len(place) < len(column):
            continue  # it does not tell its rows apart
        for names in ways:
            rows = np.array([place.get(text, -1) for text in names])
            hits = int((rows >= 0).sum())
            if hits == n:
                return rows
            if name in NAMED and hits > best[0]:
                best = hits, rows
    if best[0]:
        first = int((best[1] < 0).argmax())
        missing = next(names for names in ways if names)[first]
        raise BadInput(
            f"{path} has no embedding of {n - best[0]} of {n} rows, such as {missing!r}; embed "
            "this data again."
        )
    named = [name for name in vectors.beside if name in NAMED]
    if len(vectors.x) == n and not named:
        return np.arange(n)
    known = f"; none of them is called as in {shorten_list(named)}" if named else ""
    raise BadInput(
        f"{path} holds {len(vectors.x)} embeddings for {n} rows{known}; give one for each row, in "
        "their order or with a column of their ids or paths."
    )


def _row_names(found: Source, source: Any) -> list[Sequence[str]]:
    """What a file of embeddings may call the rows: ids, paths, names of files, numbers."""
    ways: list[Sequence[str]] = [found.ids or []]
    if found.paths:
        root = Path(str(source))
        root = root if root.is_dir() else root.parent
        ways += [[relative_name(path, root) for path in found.paths], found.paths]
        files = [Path(path).name for path in found.paths]
        ways += [files] if len(set(files)) == len(files) else []
    ways.append([str(row) for row in range(len(found.data))])
    return [names for names in ways if names]


def relative_name(path: str, root: Path) -> str:
    """A file as it is seen from the folder of its data, so that the folder may be moved."""
    try:
        return Path(path).relative_to(root).as_posix()
    except ValueError:
        return path
