"""`read`: whatever holds a user's data becomes `Data`, or one sentence says what is wrong with it.

Rows are counted from 0 everywhere, messages included.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from . import datasets
from .data import IGNORE, BadInput, Data, Rows, few, which_rows
from .ids import NONE, find_ids, own_texts
from .images import LIMIT, Images, is_image, list_images, pixels, read_images

TABLES = (".csv", ".tsv", ".parquet")
CATEGORIES = 20  # a text column with more different values is not a category
_HASHED = 2**28  # bytes of inputs that a fingerprint covers in full; beyond, it takes a sample


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


@dataclass(frozen=True)
class Source:
    """Data and where it comes from.

    paths: the image file of each row, where there is one.
    notes: sentences on how it was read, which its owner may want to check.
    ids: what names each row, as it is written, where a column does.
    texts: the features of rows of these numbers, every value as it is written.
    """

    data: Data
    schema: Schema
    paths: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    ids: list[str] | None = None
    texts: Callable[[Sequence[int]], pd.DataFrame] | None = None

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.data)


@dataclass(frozen=True)
class _Options:
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
) -> Source:
    """Read a named set, a csv, tsv, parquet or npz file, a folder of images, or an object.

    Objects: (x, y) arrays, a pandas DataFrame, a Hugging Face or torch Dataset, a Data.
    label, clean_label, image_column, drop: columns of a table; found by usual names if not given.
    names: the classes in label order. schema: the training data's, for a second file of its kind.
    labelled=False: labels are neither needed nor read; y is -1.
    size, lazy: side of images that differ in size; read them when they are asked for.
    strict: an image that cannot be read is refused; else its row takes no part in training.
        Unlabelled data is to be answered row by row, so there it is refused if nothing is said.
    id_column: what names the rows, never a feature. If not given, columns of whole numbers or short
        texts that differ in every row are taken as such; "none": they are features.
    """
    strict = not labelled if strict is None else strict
    options = _Options(
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
    )
    found = _dispatch(source, options)
    if isinstance(found.data.x, Images):
        found.data.x.strict = strict
    data = found.data if labelled else _unlabelled(found.data)
    _check(data, options, what=_describe(source))
    if drop and not (found.schema.columns or found.schema.image_column):
        raise BadInput(
            f"{_sentence(_describe(source))} is no table; it has no column to leave out."
        )
    return replace(found, data=data, notes=options.notes)


def _dispatch(source: Any, options: _Options) -> Source:
    if isinstance(source, str | Path):
        return _path(source, options)
    if isinstance(source, Data):
        return _with_schema(source)
    if isinstance(source, pd.DataFrame):
        return _table(source, Path(), options, "the table")
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return _hugging_face(source, options)
    if isinstance(source, tuple | list) and len(source) == 2:
        return _arrays(source[0], source[1], None, options, "the array")
    if isinstance(source, np.ndarray | Tensor):
        if options.labelled:
            raise BadInput("An array of inputs has no labels; give the pair (x, y).")
        return _arrays(source, None, None, options, "the array")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _torch_dataset(source, options)
    raise BadInput(f"A {type(source).__name__} cannot be read; {_READABLE}.")


_READABLE = (
    "give a named set, a csv, tsv, parquet or npz file, a folder of images, a pair (x, y), a "
    "DataFrame or a Dataset with a length"
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
        f"or run it where no such {kind} is for the set."
    )


def _path(source: str | Path, options: _Options) -> Source:
    named, path, source = _is_set(source, options.data_root), Path(source), str(source)
    if named:
        return _with_schema(datasets.load(source, options.data_root, options.split, options.size))
    if path.is_dir():
        return _image_folder(path, options)
    if not path.exists():
        near = difflib.get_close_matches(source.lower(), datasets.NAMES, 3, 0.6)
        hint = f"did you mean {' or '.join(near)}" if near else _READABLE
        raise BadInput(f"There is no file, folder or data set {source!r}; {hint}.")
    kind = path.suffix.lower()
    if kind == ".npz":
        return _npz(path, options)
    if kind in TABLES:
        texts = partial(file_texts, path)
        return _table(_read_table(path, options), path.parent, options, source, texts)
    raise BadInput(f"The kind of file of {source} is not known; {_READABLE}.")


def _describe(source: Any) -> str:
    return str(source) if isinstance(source, str | Path) else "the data"


def _with_schema(data: Data, paths: list[str] | None = None, **columns: Any) -> Source:
    names = [data.class_name(k) for k in range(data.num_classes)]
    return Source(data, Schema(names, list(data.shape), **columns), paths)


def _unlabelled(data: Data) -> Data:
    return replace(data, y=torch.full_like(data.y, IGNORE), clean=None)


def _check(data: Data, options: _Options, what: str) -> None:
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


# ------------------------------------------------------------------ labels


def encode(
    labels: Any,
    names: Sequence[str] | None,
    *,
    what: str = "the labels",
    clean: bool = False,
) -> tuple[Tensor, list[str]]:
    """Labels of any shape, ints or strings, as int64 and the class names.

    Without `names` the classes are sorted, as numbers where all are whole numbers. -1 stays -1 for
    pixels. In `clean` labels an unknown truth, empty or -1, becomes -1; elsewhere it is refused.
    """
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    flat, values = pd.factorize(pd.Series(array.reshape(-1)))
    codes = np.asarray(flat).reshape(array.shape)
    found = [class_name(value, what) for value in values]
    unknown = {""} | ({"-1"} if array.ndim > 1 or (clean and "-1" not in (names or ())) else set())
    chosen = _sorted_classes(set(found) - unknown) if names is None else [str(n) for n in names]
    place = {name: label for label, name in enumerate(chosen)} | dict.fromkeys(unknown, IGNORE)
    if len(place) < len(chosen) + len(unknown):
        raise BadInput(f"The class names must all be different: {', '.join(chosen)}.")
    for code, name in enumerate(found):
        if name not in place:
            rows = which_rows(np.argwhere(codes == code)[:, 0])
            near = difflib.get_close_matches(name, chosen, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else few(chosen, 10)
            raise BadInput(
                f"There is {name!r} in {rows} of {what}, which is not one of the "
                f"{len(chosen)} classes ({hint})."
            )
    lookup = np.array([place[name] for name in found] + [IGNORE])  # code -1 (missing) is the last
    if array.ndim == 1 and not clean and (missing := np.flatnonzero(lookup[codes] == IGNORE)).size:
        raise _empty(missing, what)
    return torch.from_numpy(lookup[codes].astype(np.int64)), chosen


def _empty(rows: np.ndarray, what: str) -> BadInput:
    return BadInput(f"There is nothing in {which_rows(rows)} of {what}; {_FILL}.")


_FILL = "fill it in or leave the row out"


def class_name(value: Any, what: str) -> str:
    if isinstance(value, float | np.floating):
        if not float(value).is_integer():
            raise BadInput(
                f"{_sentence(what)} hold {value}; classes must be whole numbers or names."
            )
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _sorted_classes(found: Iterable[str]) -> list[str]:
    found = list(found)
    try:
        return sorted(found, key=lambda name: (int(name), name))  # 1 and 01 are two classes
    except ValueError:
        return sorted(found)


def _renumber(
    labels: Any, names: Sequence[str], fixed: Sequence[str] | None, what: str, clean: bool = False
) -> Tensor:
    """Integer labels that count into `names`, as int64 labels that count into `fixed`."""
    y = torch.as_tensor(np.asarray(labels).astype(np.int64))
    lowest = IGNORE if clean or y.ndim > 1 else 0
    if y.numel() and not lowest <= int(y.min()) <= int(y.max()) < len(names):
        raise BadInput(f"{_sentence(what)} lie outside the {len(names)} class names beside them.")
    place, _ = encode(np.array(names, dtype=object), fixed or names, what=f"the names of {what}")
    return torch.cat([place, place.new_full((1,), IGNORE)])[y]  # the label -1 takes the last


def _labels(
    y: Any, clean: Any, n: int, options: _Options, what: str, names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor | None, list[str]]:
    """y, clean and class names, in the order that the caller or the schema fixed.

    names: the source's own class names; its integer labels count into them.
    """
    fixed = options.names or (options.schema.names if options.schema else None)
    if not options.labelled:
        return torch.full((n,), IGNORE), None, list(fixed or names or ())
    parts: list[Tensor | None] = []
    chosen = [str(name) for name in fixed or names or ()]
    for labels, kind in ((y, "labels"), (clean, "clean labels")):
        where, truth = f"the {kind} of {what}", kind == "clean labels"
        if labels is None:
            parts.append(None)
        elif not np.ndim(labels):
            raise BadInput(f"{_sentence(where)} are one number; give one for every row.")
        elif names and np.asarray(labels).dtype.kind in "iu":
            parts.append(_renumber(labels, names, fixed, where, truth))
        else:
            part, chosen = encode(labels, chosen or None, what=where, clean=truth)
            parts.append(part)
    assert parts[0] is not None
    if not (fixed or names):
        _check_classes(chosen, len(parts[0]), f"the labels of {what}")
        options.notes.extend(_alike(chosen))
    return parts[0], parts[1], chosen


def _check_classes(names: Sequence[str], rows: int, what: str) -> None:
    """Refuse a quantity: many numbers, some with fractions, and fewer than three rows for each.

    And an id: many texts, all different.
    """
    try:
        whole = all(float(name.replace(",", ".")).is_integer() for name in names)
    except ValueError:
        if len(names) == rows > 10:
            raise BadInput(
                f"{_sentence(what)} are all different ({few(names, 3)}): an id or a text, not "
                "classes; name the column of the classes with --label (label=)."
            ) from None
        return
    if not whole and len(names) > max(10, rows / 3):
        raise BadInput(
            f"{_sentence(what)} are {len(names)} different numbers in {rows} rows: a quantity, not "
            "classes; cut it into classes (pandas.cut), or write classes as names, not as numbers."
        )


def _alike(names: Sequence[str]) -> list[str]:
    """A note on each group of classes that differ by spaces or capitals alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(name.split()).casefold(), []).append(repr(name))
    return [
        f"the classes {' and '.join(group)} differ by spaces or capitals alone; are they one?"
        for group in groups.values()
        if len(group) > 1
    ]


# ------------------------------------------------------------------ arrays, npz


def as_inputs(x: Any, what: str = "the array") -> Tensor:
    """Features [N, D] as float32, or images as [N, C, H, W]: uint8, or float32 in [0, 1].

    Images may come as [N, H, W] or with the channels (1, 3 or 4) last.
    """
    if hasattr(x, "toarray"):
        raise BadInput(f"{_sentence(what)} is sparse; give x.toarray().")
    tensor = x.detach().cpu() if isinstance(x, Tensor) else _tensor(np.asarray(x), what)
    if tensor.ndim not in (2, 3, 4):
        raise BadInput(
            f"{_sentence(what)} has shape {tuple(tensor.shape)}; features are [rows, columns], "
            "images [rows, channels, height, width]."
        )
    if tensor.ndim == 2:
        return _finite(tensor.float(), what)
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    elif tensor.shape[1] not in (1, 3, 4) and tensor.shape[3] in (1, 3, 4):
        tensor = tensor.permute(0, 3, 1, 2)
    if tensor.dtype == torch.uint8 or not tensor.numel():
        return tensor.contiguous()
    low, high = tensor.amin().item(), tensor.amax().item()
    if not tensor.is_floating_point():
        if low < 0 or high > 255:
            raise BadInput(f"The pixels of {what} run from {low} to {high}; they must be 0 to 255.")
        return tensor.to(torch.uint8).contiguous()
    tensor = _finite(tensor.float(), what)
    if low < 0 or high > 1:
        raise BadInput(
            f"The pixels of {what} run from {low:g} to {high:g}; give bytes, or floats from 0 to 1 "
            "without normalisation (divide yours by 255)."
        )
    return tensor.contiguous()


def _tensor(array: np.ndarray, what: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{_sentence(what)} holds {array.dtype} instead of numbers.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))


def _finite(x: Tensor, what: str) -> Tensor:
    bad = ~torch.isfinite(x.flatten(1))
    if bad.any():
        rows, column = bad.any(1).nonzero()[:, 0].numpy(), int(bad.nonzero()[0, 1])
        raise BadInput(
            f"There is a missing or infinite value in {which_rows(rows)} of {what} (column "
            f"{column}); {_FILL}."
        )
    return x


def _arrays(
    x: Any, y: Any, clean: Any, options: _Options, what: str, names: Sequence[str] | None = None
) -> Source:
    inputs = as_inputs(x, what)
    observed, truth, chosen = _labels(y, clean, len(inputs), options, what, names)
    if observed.ndim > 1 and tuple(observed.shape[1:]) != tuple(inputs.shape[2:]):
        raise BadInput(
            f"Labels of shape {tuple(observed.shape)} do not fit inputs of shape "
            f"{tuple(inputs.shape)} in {what}; give one label a row, or one a pixel."
        )
    found = _with_schema(Data(inputs, observed, len(chosen), truth, tuple(chosen)))
    return replace(found, texts=partial(array_texts, x)) if inputs.ndim == 2 else found


def array_texts(x: Any, rows: Sequence[int]) -> pd.DataFrame:
    """Rows of features [N, D] as Python writes their values."""
    array = x.detach().float().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    frame = pd.DataFrame(array[list(rows)])
    texts = own_texts(frame.set_axis([f"feature {k}" for k in frame.columns], axis=1))
    return texts.set_axis(list(rows))


def _npz(path: Path, options: _Options) -> Source:
    """Keys x, y; optional clean, and names, which integer labels then count into."""
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} cannot be read as plain arrays (it is damaged, or no npz file).")
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = {key: file[key] for key in file.files}
    except Exception as error:  # damaged archives raise many kinds
        raise BadInput(f"{path} cannot be read as plain arrays ({error}).") from error
    for key in ("x", "y") if options.labelled else ("x",):
        if key not in parts:
            raise BadInput(f"{path} has no array {key!r}; it holds {', '.join(parts)}.")
    names = [str(name) for name in parts["names"].reshape(-1)] if "names" in parts else None
    found = _arrays(parts["x"], parts.get("y"), parts.get("clean"), options, str(path), names)
    return found if found.texts is None else replace(found, texts=partial(_npz_texts, path))


def _npz_texts(path: Path, rows: Sequence[int]) -> pd.DataFrame:
    with np.load(path, allow_pickle=False) as file:
        return array_texts(file["x"], rows)


# ------------------------------------------------------------------ tables


def _read_table(path: Path, options: _Options) -> pd.DataFrame:
    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        return _read_csv(path, options)
    except ImportError as error:
        raise BadInput(f"{path} needs pyarrow: pip install 'ytilde[parquet]'.") from error
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not written in UTF-8; save it as csv in UTF-8.") from error
    except Exception as error:  # pandas and pyarrow raise many kinds on damaged files
        reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        raise BadInput(f"{path} cannot be read as a table ({reason}).") from error


def label_column(path: Path, label: str | None) -> tuple[list[Any], str, int, str | None]:
    """A table's labels as they stand, their column and its place, and what separates a text's."""
    options = _Options(label=label, labelled=True)
    frame = _read_table(path, options)
    column, _ = _label_columns(list(frame.columns), options, str(path))
    assert column is not None
    separator = None if path.suffix.lower() == ".parquet" else _separator(path)
    return list(frame[column]), column, list(frame.columns).index(column), separator


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def _usual(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _separator(path: Path) -> str:
    """What separates the names of the header: the usual, or else the only one that is in it."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = next((line for line in file if line.strip()), "").strip()
    header = re.sub('"[^"]*"', "", header)  # a quoted name may hold any
    found = [separator for separator in _SEPARATORS if separator in header]
    return found[0] if len(found) == 1 else _usual(path)


def _read_csv(path: Path, options: _Options) -> pd.DataFrame:
    separator = _separator(path)
    with warnings.catch_warnings():
        # Rows longer than the header: pandas would drop the surplus and only warn.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame = pd.read_csv(path, sep=separator, index_col=False)
    # Labels are read again as they stand, so that a class called NA or 007 keeps its name.
    labels = [c for c in _label_columns(list(frame.columns), options, str(path)) if c is not None]
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, index_col=False)
    for name in labels:  # pandas calls the second label.1, and a copy of the label is no feature
        if (header.iloc[0] == name).sum() > 1:
            raise BadInput(f"{path} has several columns called {name!r}; rename or remove one.")
    raw = pd.read_csv(path, sep=separator, usecols=labels, dtype=str, keep_default_na=False)
    decimals = _decimal_commas(frame, labels) if separator != "," else []
    frame[labels] = raw[labels]
    if separator != _usual(path) or decimals:
        commas = f", with decimal commas in {few(decimals)}" if decimals else ""
        options.notes.append(f"{path} is separated by {_SEPARATORS[separator]}{commas}")
    return frame


def _decimal_commas(frame: pd.DataFrame, labels: list[str]) -> list[str]:
    """Turn columns of numbers like 1,5 into numbers, in place; and say which they are."""
    found = []
    for name in (c for c in frame.columns if c not in labels and _is_text(frame[c])):
        numbers = pd.to_numeric(frame[name].str.replace(",", "."), errors="coerce")
        if numbers.isna().equals(frame[name].isna()):
            frame[name] = numbers
            found.append(name)
    return found


def _label_columns(
    columns: Sequence[Any], options: _Options, what: str
) -> tuple[str | None, str | None]:
    """The columns of the observed and of the clean label."""
    schema = options.schema
    if schema:  # what the model takes for a feature is none, whatever it is called
        columns = [c for c in columns if str(c) not in schema.columns]
    label = options.label or (schema.label if schema else None)
    clean = options.clean_label or (schema.clean_label if schema else None)
    if label and label == clean:
        raise BadInput(f"{label!r} cannot be both the label and the clean label; name another one")
    found = label or next((c for c in ("label", "y") if c in columns and c != clean), None)
    if options.labelled and (found is None or found not in columns):
        raise _no_column(found or "label", "label", columns, what)
    if clean not in columns and schema:
        clean = None  # test data need not have it: its labels are then taken for the truth
    elif options.clean_label and clean not in columns:
        raise _no_column(options.clean_label, "clean label", columns, what)
    if clean is None:  # the truth must never become a feature
        clean = next((c for c in ("clean_label", "clean") if c in columns and c != found), None)
    return found if found in columns else None, clean if clean in columns else None


def _no_column(name: str, kind: str, columns: Sequence[Any], what: str) -> BadInput:
    listed = [str(c) if str(c) == str(c).strip() else repr(c) for c in columns]
    near = difflib.get_close_matches(name, listed, 3)
    shown = ", ".join(near) if near and len(listed) > 20 else few(listed, 20)
    how = "; name the right one with --label (label=)" if kind == "label" else ""
    if len(listed) == 1 and "|" in listed[0]:
        how = "; it seems to be separated by |: write it with commas, semicolons or tabs"
    return BadInput(f"There is no {kind} column {name!r} in {what}; its columns: {shown}{how}.")


def _table(
    frame: pd.DataFrame, folder: Path, options: _Options, what: str, texts: Texts | None = None
) -> Source:
    frame = frame.reset_index(drop=True)
    schema = options.schema
    for column in () if schema else options.drop:  # a second file need not have it
        if column not in frame.columns:
            raise _no_column(column, "dropped", list(frame.columns), what)
    label, clean_label = _label_columns(list(frame.columns), options, what)
    if not len(frame):
        raise BadInput(f"There are no rows in {what}.")
    y, clean, names = _labels(
        frame[label] if label is not None else None,
        frame[clean_label] if clean_label is not None else None,
        len(frame),
        options,
        what,
    )
    # an index that pandas saved says nothing of the rows
    index = [column for column in frame.columns[:1] if str(column).startswith("Unnamed: 0")]
    others = [label, clean_label, *index, *options.drop]
    features = frame.drop(columns=[c for c in others if c in frame.columns])
    ids = _id_columns(frame, features, (label, clean_label), options, what)
    x, paths, roles = _inputs(features.drop(columns=ids, errors="ignore"), folder, options, what)
    roles |= {"label": label, "clean_label": clean_label}
    if schema is None:
        options.notes.append(_taken(list(frame.columns), **roles))
    roles["id_column"] = str(ids[0]) if ids else None
    found = _with_schema(Data(x, y, len(names), clean, tuple(names)), paths, **roles)
    return _with_texts(found, texts or partial(own_texts, frame))


def _id_columns(
    frame: pd.DataFrame, features: pd.DataFrame, labels: Any, options: _Options, what: str
) -> list[Any]:
    """The columns that name the rows; the first of them is carried along."""
    schema = options.schema
    named = options.id_column or (schema.id_column if schema else None)
    if named == NONE or (schema and named not in frame.columns):
        return []
    if named is not None:
        if named not in frame.columns:
            raise _no_column(named, "id", list(frame.columns), what)
        if named in labels:
            raise BadInput(f"{named!r} holds the labels of {what}; name another column as the id")
        return [named]
    picture = _image_column(features, options, what)
    found = find_ids(features.drop(columns=[] if picture is None else [picture]))
    if found:
        one = len(found) == 1
        options.notes.append(
            f"{'column' if one else 'columns'} {few(map(repr, found))} of {what} "
            f"{'differs' if one else 'differ'} in every row: taken as {'an id' if one else 'ids'}, "
            "not as a feature (--id names the one to carry along, --id none keeps all as features)"
        )
    return found


Texts = Callable[[list[str], Sequence[int] | None], pd.DataFrame]  # of columns and rows, or all


def _with_texts(found: Source, read: Texts) -> Source:
    """With what its owner wrote: the ids, and a way to the features' columns."""
    name, columns = found.schema.id_column, list(found.schema.columns)
    ids = None if name is None else read([name], None)[name].tolist()
    return replace(found, ids=ids, texts=(lambda rows: read(columns, rows)) if columns else None)


def file_texts(path: Path, columns: list[str] | None, rows: Sequence[int] | None) -> pd.DataFrame:
    """A table's columns and rows (None: all) as its file has them; of parquet, as Python does."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq  # pandas would round whole numbers in a column with gaps

        table = pq.read_table(path, columns=columns)
        table = table if rows is None else table.take(list(rows))
        parts = {n: pd.Series(table[n].to_pylist(), dtype=object) for n in table.column_names}
        frame = own_texts(pd.DataFrame(parts), columns)
        return frame if rows is None else frame.set_axis(list(rows))
    separator = _separator(path)
    header = pd.read_csv(path, sep=separator, index_col=False, nrows=0).columns
    places = [k for k, name in enumerate(header) if columns is None or name in columns]
    parts = pd.read_csv(
        path, sep=separator, index_col=False, usecols=places, dtype=str, keep_default_na=False,
        chunksize=100_000,
    )  # fmt: skip
    wanted = [part if rows is None else part[part.index.isin(rows)] for part in parts]
    frame = pd.concat(wanted)[list(header[places] if columns is None else columns)]
    return frame if rows is None else frame.loc[list(rows)]


def read_features(frame: pd.DataFrame, schema: Schema | None = None) -> Source:
    """A table of features alone, whatever its columns are called; y is -1. schema: as in `read`."""
    options = _Options(schema=schema)
    if not len(frame):
        raise BadInput("There are no rows in the table.")
    x, paths, roles = _inputs(frame.reset_index(drop=True), Path(), options, "the table")
    data = Data(x, torch.full((len(frame),), IGNORE), 0)
    return replace(_with_schema(data, paths, **roles), notes=options.notes)


def _inputs(
    frame: pd.DataFrame, folder: Path, options: _Options, what: str
) -> tuple[Rows, list[str] | None, dict[str, Any]]:
    """The inputs in the columns of features; the image files; what the schema says of them."""
    image_column = _image_column(frame, options, what)
    if image_column is not None:
        paths = [str(folder / str(name)) for name in frame[image_column]]
        return _read_images(paths, options), paths, {"image_column": image_column, "columns": {}}
    columns = options.schema.columns if options.schema else _columns(frame, what)
    x = _features(frame, columns, what, options.notes)
    return x, None, {"image_column": None, "columns": columns}


def _taken(
    names: Sequence[Any],
    columns: dict[str, list[str] | None],
    image_column: str | None,
    label: str | None,
    clean_label: str | None,
) -> str:
    """Which columns became features, and which did not."""
    numbers = sum(categories is None for categories in columns.values())
    kinds = ((numbers, "number", "numbers"), (len(columns) - numbers, "category", "categories"))
    counts = " and ".join(f"{n} {one if n == 1 else many}" for n, one, many in kinds if n)
    taken = f"{counts} ({few(columns)})" if columns else f"the images of column {image_column!r}"
    roles = {label: " (the labels)", clean_label: " (the truth)"}
    used = {*columns, image_column}
    left = [f"{name}{roles.get(name, '')}" for name in names if str(name) not in used]
    return f"features are {taken}; left out: {few(left) or 'nothing'}"


def _image_column(frame: pd.DataFrame, options: _Options, what: str) -> str | None:
    schema = options.schema
    name = options.image_column or (schema.image_column if schema else None)
    if name is not None:
        if name not in frame.columns:
            raise _no_column(name, "image", list(frame.columns), what)
        return name
    if schema is not None:
        return None
    texts = (c for c in frame.columns if _is_text(frame[c]))
    return next((c for c in texts if all(is_image(value) for value in frame[c])), None)


def _is_text(column: pd.Series) -> bool:
    kind = pd.api.types
    return kind.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)


def _columns(frame: pd.DataFrame, what: str) -> dict[str, list[str] | None]:
    """What each feature column holds: numbers (None), or one of these categories."""
    columns: dict[str, list[str] | None] = {}
    long = {}  # text that is no category
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):
            columns[str(name)] = None
        elif _is_text(column):
            values = _categories(column, f"column {name!r} of {what}")
            columns[str(name)] = values
            if values and len(values) > CATEGORIES:
                long[name] = len(values)
        else:
            raise BadInput(
                f"Column {name!r} of {what} holds {column.dtype}; turn it into numbers or leave "
                "it out (--drop on the command line)."
            )
    if long:
        counts = few((f"{name!r} ({count})" for name, count in long.items()), 20)
        raise BadInput(
            f"There is text with too many different values for a category in {what}, in column "
            f"{counts}; turn it into numbers or leave it out (--drop on the command line)."
        )
    if not columns:
        raise BadInput(f"There is no feature column in {what}.")
    return columns


def _categories(column: pd.Series, what: str) -> list[str] | None:
    """The values of a text column; None where the text is numbers."""
    numbers = pd.to_numeric(column.astype(object), errors="coerce")
    wrong = np.flatnonzero(numbers.isna() & column.notna())
    if wrong.size < 0.5 * len(column) and column.notna().any():
        if not wrong.size:
            return None
        text = column[wrong[0]]
        raise BadInput(
            f"There is no number, unlike in the others, in {which_rows(wrong)} of {what} (but "
            f"{text!r})."
        )
    return sorted(str(value) for value in column.dropna().unique())


def _features(
    frame: pd.DataFrame, columns: dict[str, list[str] | None], what: str, notes: list[str]
) -> Tensor:
    """[N, D] float32: numbers as they are, a category as one column of 0 and 1 for each value."""
    if not columns:
        raise BadInput(f"{what} is a table, and the model was not trained on one.")
    parts = []
    frame = frame.rename(columns=str)
    for name, categories in columns.items():
        if name not in frame.columns:
            raise _no_column(name, "feature", list(frame.columns), what)
        where = f"column {name!r} of {what}"
        if categories is None:
            parts.append(_numbers(frame[name], where)[:, None])
        else:
            parts.append(_one_hot(frame[name], categories, where, notes))
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _one_hot(column: pd.Series, categories: list[str], what: str, notes: list[str]) -> np.ndarray:
    """[N, categories] of 0 and 1; a value that training did not have is 0 everywhere."""
    text = column.astype(object).where(column.notna(), "").map(str)
    if (text == "").any():
        raise _empty(np.flatnonzero(text == ""), what)
    code = pd.Index(categories).get_indexer(pd.Index(text))
    if (code < 0).any():
        new = np.flatnonzero(code < 0)
        notes.append(
            f"{which_rows(new)} of {what} hold a value that training did not have "
            f"({text[new[0]]!r}): taken as none of {few(categories)}"
        )
    return np.eye(len(categories) + 1, len(categories), dtype=np.float32)[code]  # -1 is the last


def _numbers(column: pd.Series, what: str) -> np.ndarray:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise BadInput(
            f"There is no finite number in {which_rows(bad)} of {what} "
            f"(but {column.iloc[bad[0]]}); {_FILL}."
        )
    return values


# ------------------------------------------------------------------ images


def _read_images(paths: list[str], options: _Options) -> Rows:
    if options.schema is None:
        how = (options.lazy, options.strict, options.notes)
        return read_images(paths, options.size, None, *how)
    if len(options.schema.shape) != 3:
        raise BadInput("The model was fitted on features, not on images; give it a table.")
    channels, height, width = options.schema.shape
    return read_images(paths, (height, width), channels, options.lazy, options.strict)


def _image_folder(folder: Path, options: _Options) -> Source:
    """FOLDER/CLASS/**/image, or FOLDER/SPLIT/CLASS/**/image. Unlabelled: any images in FOLDER."""
    if (folder / options.split).is_dir():
        folder = folder / options.split
    paths = list_images(folder)
    if not paths:
        raise BadInput(f"There are no images in {folder}.")
    classes = [Path(path).relative_to(folder).parts[:-1] for path in paths]
    if options.labelled and not all(classes):
        loose = paths[next(i for i, parts in enumerate(classes) if not parts)]
        raise BadInput(f"{loose} lies in no class folder; images belong in {folder}/CLASS/.")
    labels = np.array([parts[0] if parts else "" for parts in classes], dtype=object)
    y, _, names = _labels(labels, None, len(paths), options, str(folder))
    if options.schema is None and options.labelled and len(names) < 2:
        raise BadInput(f"{folder} holds one class folder only; learning needs two or more.")
    return _with_schema(
        Data(_read_images(paths, options), y, len(names), None, tuple(names)), paths
    )


class Items:
    """A lazy reader over a Dataset: the inputs, at `key` of its items, of the rows asked for."""

    def __init__(self, dataset: Any, key: Any, shape: Sequence[int], size: tuple[int, int]) -> None:
        self.dataset, self.key, self.size = dataset, key, size
        self.shape = (len(dataset), *shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        items = [self.dataset[i][self.key] for i in index.tolist()]
        return _stack([_item(item, self.shape[1], self.size) for item in items])


def _item(item: Any, channels: int, size: tuple[int, int]) -> Tensor:
    if isinstance(item, Image.Image):
        return pixels(item, size, channels)
    return item if isinstance(item, Tensor) else torch.as_tensor(np.asarray(item))


def _stack(items: list[Tensor]) -> Tensor:
    try:
        return as_inputs(torch.stack(items), "the data set")
    except RuntimeError as error:
        raise BadInput("The inputs of the data set differ in shape; make them alike.") from error


def _torch_dataset(dataset: Any, options: _Options) -> Source:
    first = dataset[0] if len(dataset) else None
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise BadInput("A Dataset must have items (input, label) and not be empty.")
    labels = [_plain(dataset[i][1]) for i in range(len(dataset))] if options.labelled else None
    return _items(dataset, 0, labels, None, options, None)


def _plain(label: Any) -> Any:
    if isinstance(label, Tensor):
        label = label.cpu().numpy()
    return label.item() if isinstance(label, np.ndarray | np.generic) and label.ndim == 0 else label


def _items(
    dataset: Any, key: Any, labels: Any, clean: Any, options: _Options, names: list[str] | None
) -> Source:
    """Data from a Dataset's items: in memory up to 2 GB, else lazily."""
    first = dataset[0][key]
    size, channels = (0, 0), 0
    if isinstance(first, Image.Image):
        square = (options.size, options.size) if options.size else (first.height, first.width)
        size, channels = square, 1 if first.mode in ("L", "1") else 3
    if options.schema is not None and len(options.schema.shape) == 3:
        channels, height, width = options.schema.shape
        size = (height, width)
    sample = _stack([_item(first, channels, size)])
    x: Rows = Items(dataset, key, sample.shape[1:], size)
    lazy = options.lazy
    if lazy is None:
        lazy = sample.numel() * sample.element_size() * len(dataset) > LIMIT
    if not lazy:
        x = x[torch.arange(len(dataset))]
    y, truth, chosen = _labels(labels, clean, len(dataset), options, "the data set", names)
    return _with_schema(Data(x, y, len(chosen), truth, tuple(chosen)))


def _hugging_face(dataset: Any, options: _Options) -> Source:
    """A `datasets.Dataset`: its picture column, or its other columns as a table."""
    columns = list(dataset.column_names)
    label, clean_label = _label_columns(columns, options, "the data set")
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
        return _table(frame, Path(), fixed, "the data set")
    picture = options.image_column or pictures[0]
    y, clean = (None if c is None else list(dataset[c]) for c in (label, clean_label))
    return _items(dataset, picture, y, clean, options, names)


# ------------------------------------------------------------------ fingerprint, split


def fingerprint(data: Data) -> str:
    """A hash of the inputs, the observed labels and the classes: the same data, the same hash.

    Above 256 MB, and of lazy readers, only some rows, evenly spaced, are hashed.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((tuple(data.x.shape), data.num_classes, data.names)).encode())
    digest.update(data.y.contiguous().numpy().tobytes())
    if isinstance(data.x, Images):
        digest.update("\0".join(Path(path).name for path in data.x.paths).encode())
    n = len(data)
    if isinstance(data.x, Tensor):
        wanted = _HASHED * n // max(1, data.x.numel() * data.x.element_size())
    else:
        wanted = 64
    index = torch.arange(0, n, max(1, -(-n // max(1, wanted))))
    digest.update(data.x[index].contiguous().numpy().tobytes())
    return digest.hexdigest()


def split(y: Tensor | int, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold out, sorted; y is the observed labels, or a number of rows.

    `round(fraction * n)` rows are held out, of each observed class its share (to within one row).
    """
    if not 0 <= fraction < 1:
        raise BadInput(f"The held-out fraction is {fraction}; it must be at least 0 and below 1.")
    n = y if isinstance(y, int) else len(y)
    order = torch.randperm(n, generator=generator, device=generator.device).cpu()
    if isinstance(y, Tensor) and y.ndim == 1:
        order = order[torch.argsort(y.cpu()[order], stable=True)]
    m = min(n - 1, max(1, round(fraction * n))) if fraction > 0 else 0
    held = torch.zeros(n, dtype=torch.bool)
    held[order[(torch.arange(m) * n + n // 2) // max(1, m)]] = True  # evenly along the classes
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]
