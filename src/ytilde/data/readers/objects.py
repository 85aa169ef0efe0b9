"""Datasets of torch and of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from ...errors import BadInput, is_out_of_memory
from ..images import LIMIT, pixels, upright_size
from ..types import Data, Rows
from .arrays import as_inputs, as_tensor, check_pixels
from .convert import as_array, plain_tensor
from .labels import read_labels
from .roles import label_columns
from .source import ReadOptions, Source, with_schema
from .tables import read_frame


class Items:
    """A lazy reader over a Dataset: the inputs, at `key` of its items, of the rows asked for."""

    def __init__(
        self,
        dataset: Any,
        key: Any,
        shape: Sequence[int],
        size: tuple[int, int],
        double: bool | None = None,
    ) -> None:
        self.dataset, self.key, self.size, self.double = dataset, key, size, double
        self.shape = (len(dataset), *shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        items = [self.dataset[i][self.key] for i in index.tolist()]
        return _stack([_item(item, self.shape[1], self.size) for item in items], self.double)


def _item(item: Any, channels: int, size: tuple[int, int]) -> Tensor:
    if isinstance(item, Image.Image):
        return pixels(item, size, channels)
    if isinstance(item, Tensor):
        return plain_tensor(item, "an input of the data set")
    return as_tensor(as_array(item, "an input of the data set"), "an input of the data set")


def _stack(items: list[Tensor], double: bool | None = None) -> Tensor:
    try:
        return as_inputs(torch.stack(items), "the data set", double)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise BadInput("The inputs of the data set differ in shape; make them alike.") from error


def read_torch_dataset(dataset: Any, options: ReadOptions) -> Source:
    first = dataset[0] if len(dataset) else None
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise BadInput("A Dataset must have items (input, label) and not be empty.")
    labels = [_plain(dataset[i][1]) for i in range(len(dataset))] if options.labelled else None
    return _items(dataset, 0, labels, None, options, None)


def _plain(label: Any) -> Any:
    if isinstance(label, Tensor):
        label = as_array(label, "a label of the data set")
    return label.item() if isinstance(label, np.ndarray | np.generic) and label.ndim == 0 else label


def _items(
    dataset: Any, key: Any, labels: Any, clean: Any, options: ReadOptions, names: list[str] | None
) -> Source:
    """Data from a Dataset's items: in memory up to 2 GB, else lazily."""
    first = dataset[0][key]
    size, channels = (0, 0), 0
    if isinstance(first, Image.Image):
        square = (options.size, options.size) if options.size else upright_size(first)
        size, channels = square, 1 if first.mode in ("L", "1") else 3
    if options.schema is not None and len(options.schema.shape) == 3:
        channels, height, width = options.schema.shape
        size = (height, width)
    sample = _stack([_item(first, channels, size)])
    double = options.schema.double if options.schema else None
    x: Rows = Items(dataset, key, sample.shape[1:], size, double)
    lazy = options.lazy
    if lazy is None:
        lazy = sample.numel() * sample.element_size() * len(dataset) > LIMIT
    if not lazy:
        x = x[torch.arange(len(dataset))]
    elif double is None:  # one choice for all batches, by the first rows
        double = x[torch.arange(min(1000, len(dataset)))].dtype == torch.float64
        x = Items(dataset, key, sample.shape[1:], size, double)
    y, truth, chosen = read_labels(labels, clean, len(dataset), options, "the data set", names)
    check_pixels(y, x, "the data set")
    return with_schema(Data(x, y, len(chosen), truth, tuple(chosen)), double=bool(double))


def read_hugging_face(dataset: Any, options: ReadOptions) -> Source:
    """A `datasets.Dataset`: its picture column, or its other columns as a table."""
    columns = list(dataset.column_names)
    label, clean_label = label_columns(columns, options, "the data set")
    others = [c for c in columns if c not in (label, clean_label)]
    if not len(dataset):
        raise BadInput("There are no rows in the data set.")
    row = dataset[0]
    pictures = [c for c in others if isinstance(row[c], Image.Image)]
    names = getattr(dataset.features[label], "names", None) if label is not None else None
    if not pictures:
        frame = pd.DataFrame({c: list(dataset[c]) for c in columns})
        for column in (label, clean_label):
            if column is not None and names:
                frame[column] = [names[i] if i >= 0 else "" for i in frame[column]]
        fixed = replace(options, names=options.names or (None if options.schema else names))
        return read_frame(frame, Path(), fixed, "the data set")
    picture = options.image_column or pictures[0]
    y, clean = (None if c is None else list(dataset[c]) for c in (label, clean_label))
    return _items(dataset, picture, y, clean, options, names)
