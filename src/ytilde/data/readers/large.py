"""Parquet files larger than memory as training data: labels in memory, features on disk.

They are read in parts. What a part of the table means is said by `tables`; categories of texts are
those of all parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ...errors import BadInput
from ..columns import Treatment, apply, learn, width
from ..listing import list_images
from ..precision import needs_double
from ..spool import Spool, SpoolWriter
from ..types import IGNORE, Data
from .labels import check_classes, encode
from .roles import (
    dropped_columns,
    id_columns,
    image_column,
    label_columns,
    nameless,
    without_dropped,
)
from .source import ReadOptions, Source, with_schema
from .stream import open_parquet, parquet_files
from .tables import taken, with_columns

LIMIT = 10**9  # bytes of float32 features that are still read into memory
ROWS = 1 << 17  # read at once


def is_large(path: Path) -> bool:
    """Is it a folder of parquet files, or one that is too large for memory?"""
    if path.is_dir():
        parts = any(file.suffix.lower() == ".parquet" for file in path.iterdir())
        return parts and not list_images(path)  # embeddings may lie beside their pictures
    if path.suffix.lower() != ".parquet" or not path.is_file():  # a pipe is not waited for
        return False
    about = open_parquet(path).metadata
    return 4 * about.num_rows * about.num_columns > LIMIT


class Parts:
    """The rows of parquet files, a part at a time."""

    def __init__(self, path: Path) -> None:
        self.files = parquet_files(path)
        schemas = [open_parquet(file).schema_arrow for file in self.files]
        self.names = list(schemas[0].names)
        for file, schema in zip(self.files, schemas, strict=True):
            if list(schema.names) != self.names:
                raise BadInput(f"{file} has other columns than {self.files[0]}; give files alike")
        self.rows = sum(open_parquet(file).metadata.num_rows for file in self.files)

    def read(self, columns: list[str]) -> Iterator[tuple[int, pd.DataFrame]]:
        """The number of the first row of each part, and the part."""
        first = 0
        for file in self.files:
            for batch in open_parquet(file).iter_batches(ROWS, columns=columns, use_threads=False):
                yield first, batch.to_pandas()
                first += len(batch)


def read_large(path: Path, options: ReadOptions) -> Source:
    """A parquet file, or a folder of them, as `read_frame` would read it, in parts."""
    parts, what, schema = Parts(path), str(path), options.schema
    if not parts.rows:
        raise BadInput(f"There are no rows in {what}.")
    if options.text_column or options.group_column:
        raise BadInput(f"{what} is read in parts, without --text and --group; leave them out.")
    dropped = dropped_columns(parts.names, options, what)
    labels = label_columns(parts.names, options, what)
    label, clean_label = without_dropped(*labels, dropped, parts.names, options, what)
    _, head = next(parts.read(parts.names))
    others = [c for c in (label, clean_label, *nameless(head), *dropped) if c in head.columns]
    features = head.drop(columns=others)
    image = image_column(features, options, what)
    ids = id_columns(head, features, image, (label, clean_label), options, what)
    used = [name for name in features.columns if name not in ids]
    y, names = _labels(parts, label, options, "labels", what)
    clean = None
    if clean_label is not None and options.labelled:
        known = replace(options, names=names)
        clean, names = _labels(parts, clean_label, known, "clean labels", what)
    how = schema.treatment if schema else _learn(parts, used, options, what)
    x = _spooled(parts, how, options, what)
    roles: dict[str, Any] = {"image_column": None, "columns": how.columns}
    roles |= {"label": label, "clean_label": clean_label}
    if schema is None:
        options.notes.append(taken(parts.names, roles))
    roles["id_column"] = str(ids[0]) if ids else None
    size = len(x) * x.shape[1] * x.dtype.itemsize / 1e9
    options.notes.append(
        f"{what} is read in parts; its features ({size:.1f} GB) lie on disk while they are used"
    )
    if ids:
        options.notes.append(f"its ids ({ids[0]}) are not carried along: rows have their numbers")
    roles |= {"medians": how.medians, "gaps": how.gaps}
    data = Data(x, y, len(names), clean, tuple(names))
    return with_schema(data, double=x.dtype == torch.float64, **roles)


def _labels(
    parts: Parts, column: str | None, options: ReadOptions, kind: str, what: str
) -> tuple[Tensor, list[str]]:
    """Labels [N], and the classes."""
    fixed = options.names or (options.schema.names if options.schema else None)
    if not options.labelled or column is None:
        return torch.full((parts.rows,), IGNORE), list(fixed or ())
    where, clean = f"the {kind} of {what}", kind == "clean labels"
    names = [str(name) for name in fixed or ()]
    if not fixed:
        found = [part[column].drop_duplicates() for _, part in parts.read([column])]
        _, names = encode(pd.concat(found).drop_duplicates().dropna(), None, what=where)
        check_classes(names, parts.rows, where)
    y = torch.empty(parts.rows, dtype=torch.int64)
    for first, part in parts.read([column]):
        own, _ = encode(part[column], names, what=where, clean=clean, first=first)
        y[first : first + len(own)] = own
    return y, names


def _learn(parts: Parts, used: list[str], options: ReadOptions, what: str) -> Treatment:
    """How each column is treated: categories and gaps by all parts, all else by the first."""
    found = Treatment()
    for first, part in parts.read(used):
        own = learn(part, what, [] if first else options.notes)
        for name, kind in own.columns.items():
            old = found.columns.setdefault(name, kind)
            if (old is None) != (kind is None):
                raise BadInput(f"Column {name!r} of {what} holds numbers in some rows and texts in "
                               "others; make it one or the other")  # fmt: skip
            if isinstance(old, list) and isinstance(kind, list):
                found.columns[name] = sorted({*old, *kind})
        found.medians = own.medians | found.medians
        found.gaps += [name for name in own.gaps if name not in found.gaps]
        if all(kind is None for kind in found.columns.values()):
            break  # numbers, as the file says: no other part can tell more
    return found


def _spooled(parts: Parts, how: Treatment, options: ReadOptions, what: str) -> Spool:
    """The features on disk; in float64 where a part would lose something in float32."""
    schema = options.schema
    size = sum(map(width, how.columns.values())) + len(how.gaps)
    for double in (False, True):
        if schema is not None and schema.double != double:
            continue
        writer, notes = SpoolWriter(parts.rows, size, double), []  # type: ignore[var-annotated]
        for first, part in parts.read([n for n in parts.names if n in how.columns]):
            where = f"{what}, from row {first} on" if first else what
            x = apply(with_columns(part, how.columns, where), how, where, notes)
            if schema is None and not double and needs_double(torch.from_numpy(x)):
                break
            writer.write(x)
        else:
            options.notes.extend(notes[:1])
            return writer.finish()
    raise AssertionError
