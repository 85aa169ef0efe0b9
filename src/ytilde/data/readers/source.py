"""What a reader gives (Source, with its Schema) and what it may be asked (ReadOptions)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ..fingerprint import fingerprint
from ..types import Data, Rows


@dataclass(frozen=True)
class Schema:
    """How the training data was encoded, so that other files are read alike.

    `dataclasses.asdict` makes it JSON, `Schema(**values)` reads it back.
    """

    names: list[str]  # the classes, in label order
    shape: list[int]  # of one input
    label: str | None = None  # columns of a table
    clean_label: str | None = None
    image_column: str | None = None
    columns: dict[str, list[str] | None] = field(default_factory=dict)  # categories; None: a number
    id_column: str | None = None
    double: bool = False  # inputs are float64: see precision.py
    features: str | None = None  # the column of vectors that a model sees


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


def with_schema(data: Data, paths: list[str] | None = None, **columns: Any) -> Source:
    names = [data.class_name(k) for k in range(data.num_classes)]
    if isinstance(data.x, Tensor):
        columns["double"] = data.x.dtype == torch.float64
    return Source(data, Schema(names, list(data.shape), **columns), paths)
