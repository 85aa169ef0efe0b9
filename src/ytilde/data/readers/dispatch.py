"""`read`: whatever holds a user's data becomes `Data`, or one sentence says what is wrong with it.

Rows are counted from 0 everywhere, messages included.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ... import datasets
from ...errors import BadInput, sentence
from ..images import Images
from ..listing import list_images
from ..types import IGNORE, Data
from .arrays import read_arrays, read_npz
from .feature_files import with_features
from .folders import read_folder
from .large import is_large, read_large
from .objects import read_hugging_face, read_torch_dataset
from .separators import TABLES, table_kind
from .shards import holds_shards, read_shards
from .source import ReadOptions, Schema, Source, with_schema
from .tables import load_table, read_frame
from .texts import file_texts


def read(
    source: Any,
    *,
    label: str | None = None,
    clean_label: str | None = None,
    image_column: str | None = None,
    names: Sequence[str] | None = None,
    schema: Schema | None = None,
    labelled: bool = True,
    drop: Sequence[str] = (),
    data_root: str | Path | None = None,
    split: str = "train",
    size: int | None = None,
    lazy: bool | None = None,
    strict: bool | None = None,
    id_column: str | None = None,
    features: str | Path | None = None,
    text_column: str | None = None,
    group_column: str | None = None,
) -> Source:
    """Read a named set, a csv, tsv (.gz), parquet or npz file, images, or an object.

    Images: a folder of them, a tar archive or a folder of archives.

    Objects: (x, y) arrays, a pandas DataFrame, a Hugging Face or torch Dataset, a Data.
    label, clean_label, image_column, drop: columns of a table; found by usual names if not given.
    names: the classes in label order. schema: the training data's, for a second file of its kind.
    labelled=False: labels are neither needed nor read; y is -1.
    size, lazy: side of images that differ in size; read them when they are asked for.
    strict: an image that cannot be read is refused; else its row takes no part in training.
        Unlabelled data is to be answered row by row, so there it is refused if nothing is said.
    id_column: what names the rows, never a feature. If not given, columns of whole numbers or short
        texts that differ in every row are taken as such; "none": they are features.
    features: embeddings that a model is to see instead of the rows: a file of them (npy, npz,
        parquet, csv), or the table's column of vectors.
    text_column: texts to be read; if not given, the only column of long texts.
    group_column: rows of one value are never split between training and validation or folds.
    """
    strict = not labelled if strict is None else strict
    options = ReadOptions(
        label,
        clean_label,
        image_column,
        names,
        schema,
        labelled,
        drop,
        data_root,
        split,
        size,
        lazy,
        strict,
        id_column=id_column,
        features=features,
        text_column=text_column,
        group_column=group_column,
    )
    found = _dispatch(source, options)
    if isinstance(found.data.x, Images):
        found.data.x.strict = strict
    if features is not None and found.schema.features is None:
        found = with_features(found, options, source)
    data = found.data if labelled else _unlabelled(found.data)
    _check(data, options, what=_describe(source))
    columns = {"leave out": drop, "read": text_column, "group by": group_column}
    for use, wanted in columns.items():
        if wanted and not (found.schema.columns or found.schema.image_column):
            raise BadInput(f"{sentence(_describe(source))} is no table; it has no column to {use}.")
    return replace(found, data=data, notes=options.notes)


def _dispatch(source: Any, options: ReadOptions) -> Source:
    if isinstance(source, str | Path):
        return _path(source, options)
    if isinstance(source, Data):
        return with_schema(source)
    if isinstance(source, pd.DataFrame):
        return read_frame(source, Path(), options, "the table")
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return read_hugging_face(source, options)
    if isinstance(source, tuple | list) and len(source) == 2:
        return read_arrays(source[0], source[1], None, options, "the array")
    if isinstance(source, np.ndarray | Tensor) or hasattr(source, "toarray"):
        if options.labelled:
            raise BadInput("An array of inputs has no labels; give the pair (x, y).")
        return read_arrays(source, None, None, options, "the array")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return read_torch_dataset(source, options)
    raise BadInput(f"A {type(source).__name__} cannot be read; {_READABLE}.")


_READABLE = (
    "give a named set, a csv, tsv (or .csv.gz), parquet or npz file, a folder or tar of images, a "
    "pair (x, y), a DataFrame or a Dataset with a length"
)


def _is_set(source: str | Path, root: str | Path | None) -> bool:
    """A text that names a set and a file or folder here is refused, for either may be meant.

    Where the sets' own files lie here, a folder of that name is one of theirs.
    """
    path = Path(source)
    if str(source) not in datasets.NAMES or not path.exists():
        return str(source) in datasets.NAMES
    if datasets.home(root).resolve() == Path.cwd():
        return True
    if isinstance(source, Path):
        return False
    kind = "folder" if path.is_dir() else "file"
    raise BadInput(
        f"{source} is both a data set's name and a {kind} here; write ./{source} for the {kind}, "
        "or run the command elsewhere to use the set."
    )


def _path(source: str | Path, options: ReadOptions) -> Source:
    named, path, source = _is_set(source, options.data_root), Path(source), str(source)
    if named:
        return with_schema(datasets.load(source, options.data_root, options.split, options.size))
    if path.exists() and (options.lazy is not False) and is_large(path):
        return read_large(path, options)
    if holds_shards(path) and (path.is_file() or not list_images(path)):
        return read_shards(path, options)
    if path.is_dir():
        return read_folder(path, options)
    if not path.exists():
        near = difflib.get_close_matches(source.lower(), datasets.NAMES, 3, 0.6)
        hint = f"did you mean {' or '.join(near)}" if near else _READABLE
        raise BadInput(f"There is no file, folder or data set {source!r}; {hint}.")
    kind = table_kind(path)
    if kind == ".npz":
        return read_npz(path, options)
    if kind in TABLES:
        texts = partial(file_texts, path)
        return read_frame(load_table(path, options), path.parent, options, source, texts)
    raise BadInput(f"The kind of file of {source} is not known; {_READABLE}.")


def _describe(source: Any) -> str:
    return str(source) if isinstance(source, str | Path) else "the data"


def _unlabelled(data: Data) -> Data:
    return replace(data, y=torch.full_like(data.y, IGNORE), clean=None)


def _check(data: Data, options: ReadOptions, what: str) -> None:
    schema = options.schema
    if not len(data):
        raise BadInput(f"There are no rows in {what}.")
    if len(data.x) != len(data.y):
        raise BadInput(f"There are {len(data.x)} inputs and {len(data.y)} labels in {what}.")
    if data.clean is not None and data.clean.shape != data.y.shape:
        raise BadInput(
            f"The clean labels of {what} have shape {tuple(data.clean.shape)}, the observed ones "
            f"{tuple(data.y.shape)}; they must be alike."
        )
    if schema is None and options.labelled and data.num_classes < 2:
        raise BadInput(f"All labels of {what} are alike; learning needs two classes or more.")
    if schema is not None and list(data.shape) != list(schema.shape):
        raise BadInput(
            f"One input of {what} has shape {data.shape}, but the model was fitted on "
            f"{tuple(schema.shape)}; give data of the same kind."
        )
    names = [data.class_name(k) for k in range(data.num_classes)]
    if schema is not None and options.labelled and names != schema.names:
        raise BadInput(
            f"The classes of {what} ({', '.join(names[:5])}, ...) are not those that the model was "
            f"fitted on ({', '.join(schema.names[:5])}, ...)."
        )
