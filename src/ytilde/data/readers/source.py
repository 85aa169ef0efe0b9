"""What a reader gives (Source, with its Schema) and what it may be asked (ReadOptions)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ..columns import Kind, Treatment, kind_of, width
from ..fingerprint import fingerprint
from ..tfidf import TfIdf
from ..types import Data, Rows


@dataclass(frozen=True)
class Schema:
    """How the training data was encoded, so that other files are read alike.

    `to_json` makes it JSON, `Schema(**values)` reads it back; what texts were turned into numbers
    by is in arrays, and kept beside it.
    """

    names: list[str]  # the classes, in label order
    shape: list[int]  # of one input
    label: str | None = None  # columns of a table
    clean_label: str | None = None
    image_column: str | None = None
    columns: dict[str, Kind] = field(default_factory=dict)  # see columns.py; None: a number
    id_column: str | None = None
    double: bool = False  # inputs are float64: see precision.py
    features: str | None = None  # the column of vectors that a model sees
    medians: dict[str, float] = field(default_factory=dict)  # and these: Treatment has them
    gaps: list[str] = field(default_factory=list)
    group_column: str | None = None
    tfidf: TfIdf | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """All but the arrays."""
        values = asdict(replace(self, tfidf=None))
        del values["tfidf"]
        return values

    @property
    def text_column(self) -> str | None:
        """The column of texts, if any."""
        return next((name for name, kind in self.columns.items() if kind_of(kind) == "text"), None)

    @property
    def one_scale(self) -> tuple[int, int]:
        """Where the components of the text are among the features."""
        start = 0
        for kind in self.columns.values():
            if kind_of(kind) == "text":
                return start, start + width(kind)
            start += width(kind)
        return 0, 0

    @property
    def treatment(self) -> Treatment:
        return Treatment(self.columns, self.medians, self.gaps, self.tfidf)


@dataclass(frozen=True)
class Source:
    """Data and where it comes from.

    paths: the image file of each row, where there is one.
    notes: sentences on how it was read, which its owner may want to check.
    ids: what names each row, as it is written, where a column does.
    texts: the features of rows of these numbers, every value as it is written.
    pictures: of the rows [N, C, H, W], where a model sees embeddings of them.
    missing: rows without an embedding.
    """

    data: Data
    schema: Schema
    paths: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    ids: list[str] | None = None
    texts: Callable[[Sequence[int]], pd.DataFrame] | None = None
    pictures: Rows | None = None
    missing: tuple[int, ...] = ()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.data)


@dataclass(frozen=True)
class ReadOptions:
    label: str | None = None
    clean_label: str | None = None
    image_column: str | None = None
    names: Sequence[str] | None = None
    schema: Schema | None = None
    labelled: bool = False
    drop: Sequence[str] = ()
    data_root: str | Path | None = None
    split: str = "train"
    size: int | None = None
    lazy: bool | None = None
    strict: bool = True
    notes: list[str] = field(default_factory=list)  # for the Source; the parts append to it
    id_column: str | None = None
    features: str | Path | None = None  # a file of vectors, or the column that holds them
    text_column: str | None = None
    group_column: str | None = None


def with_schema(data: Data, paths: list[str] | None = None, **columns: Any) -> Source:
    names = [data.class_name(k) for k in range(data.num_classes)]
    if isinstance(data.x, Tensor):
        columns["double"] = data.x.dtype == torch.float64
    schema = Schema(names, list(data.shape), **columns)
    data = replace(data, one_scale=schema.one_scale) if schema.text_column else data
    return Source(data, schema, paths)
