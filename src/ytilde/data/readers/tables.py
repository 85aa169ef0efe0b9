"""Tables: csv, tsv, parquet and DataFrames, with numbers, categories or names of images."""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...errors import BadInput, sentence, shorten_list, which_rows
from ...files import check_no_stream
from ..ids import NONE, find_ids, own_texts
from ..images import is_image
from ..precision import features
from ..types import IGNORE, Data, Rows
from .folders import read_pictures
from .labels import FILL, empty_cells, read_labels
from .separators import SEPARATORS, separator_of, usual_separator
from .source import ReadOptions, Schema, Source, with_schema
from .texts import Texts, with_texts

TABLES = (".csv", ".tsv", ".parquet")
MISSING = (  # what pandas takes for no value
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
CATEGORIES = 20  # a text column with more different values is not a category


def load_table(path: Path, options: ReadOptions) -> pd.DataFrame:
    check_no_stream(path)
    if path.suffix.lower() == ".parquet":
        return readable_table(path, lambda: pd.read_parquet(path))
    return readable_table(path, lambda: _read_csv(path, options))


def readable_table(path: Path, read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """What `read` gives; what is wrong with the file, in one sentence."""
    try:
        return read()
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
    options = ReadOptions(label=label, labelled=True)
    frame = load_table(path, options)
    column, _ = label_columns(list(frame.columns), options, str(path))
    assert column is not None
    separator = None if path.suffix.lower() == ".parquet" else separator_of(path)
    return list(frame[column]), column, list(frame.columns).index(column), separator


def _read_csv(path: Path, options: ReadOptions) -> pd.DataFrame:
    separator = separator_of(path)
    columns = list(pd.read_csv(path, sep=separator, nrows=0, index_col=False).columns)
    labels = [c for c in label_columns(columns, options, str(path)) if c is not None]
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, index_col=False)
    for name in labels:  # pandas calls the second label.1, and a copy of the label is no feature
        if (header.iloc[0] == name).sum() > 1:
            raise BadInput(f"{path} has several columns called {name!r}; rename or remove one.")
    try:
        frame = _parse(path, separator, columns, labels)
    except pd.errors.ParserWarning:  # rows are longer than the header: by a comma at their end?
        surplus = f"Unnamed: {len(columns)}"
        frame = _parse(path, separator, [*columns, surplus], labels)
        if frame[surplus].notna().any():
            raise
    decimals = _decimal_commas(frame, labels) if separator != "," else []
    if separator != usual_separator(path) or decimals:
        commas = f", with decimal commas in {shorten_list(decimals)}" if decimals else ""
        options.notes.append(f"{path} is separated by {SEPARATORS[separator]}{commas}")
    return frame


def _parse(path: Path, separator: str, columns: list[str], labels: list[str]) -> pd.DataFrame:
    """The rows under these names; labels as they stand: a class called NA or 007 keeps its name."""
    with warnings.catch_warnings():
        # Rows longer than the header: pandas would drop the surplus and only warn.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            path,
            sep=separator,
            header=0,
            names=columns,
            index_col=False,
            dtype=dict.fromkeys(labels, str),  # type: ignore[arg-type]
            na_values={name: MISSING for name in columns if name not in labels},
            keep_default_na=False,
        )


def _decimal_commas(frame: pd.DataFrame, labels: list[str]) -> list[str]:
    """Turn columns of numbers like 1,5 into numbers, in place; and say which they are."""
    found = []
    for name in (c for c in frame.columns if c not in labels and _is_text(frame[c])):
        numbers = pd.to_numeric(frame[name].str.replace(",", "."), errors="coerce")
        if numbers.isna().equals(frame[name].isna()):
            frame[name] = numbers
            found.append(name)
    return found


def label_columns(
    columns: Sequence[Any], options: ReadOptions, what: str
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
    shown = ", ".join(near) if near and len(listed) > 20 else shorten_list(listed, 20)
    how = "; name the right one with --label (label=)" if kind == "label" else ""
    if len(listed) == 1 and "|" in listed[0]:
        how = "; it seems to be separated by |: write it with commas, semicolons or tabs"
    return BadInput(f"There is no {kind} column {name!r} in {what}; its columns: {shown}{how}.")


def read_frame(
    frame: pd.DataFrame, folder: Path, options: ReadOptions, what: str, texts: Texts | None = None
) -> Source:
    _check_columns(frame, what)
    frame = frame.reset_index(drop=True)
    schema = options.schema
    check_dropped(list(frame.columns), options, what)
    label, clean_label = label_columns(list(frame.columns), options, what)
    if not len(frame):
        raise BadInput(f"There are no rows in {what}.")
    y, clean, names = read_labels(
        frame[label] if label is not None else None,
        frame[clean_label] if clean_label is not None else None,
        len(frame),
        options,
        what,
    )
    others = [label, clean_label, *nameless(frame), *options.drop]
    features = frame.drop(columns=[c for c in others if c in frame.columns])
    ids = id_columns(frame, features, (label, clean_label), options, what)
    x, paths, roles = _inputs(features.drop(columns=ids, errors="ignore"), folder, options, what)
    roles |= {"label": label, "clean_label": clean_label}
    if schema is None:
        options.notes.append(taken(list(frame.columns), **roles))
    roles["id_column"] = str(ids[0]) if ids else None
    found = with_schema(Data(x, y, len(names), clean, tuple(names)), paths, **roles)
    return with_texts(found, texts or partial(own_texts, frame))


def check_dropped(columns: Sequence[Any], options: ReadOptions, what: str) -> None:
    """Refuse to leave out a column that is not there; a second file need not have it."""
    for column in () if options.schema else options.drop:
        if column not in columns:
            raise _no_column(column, "dropped", columns, what)


def id_columns(
    frame: pd.DataFrame, features: pd.DataFrame, labels: Any, options: ReadOptions, what: str
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
    others = features.drop(columns=[] if picture is None else [picture])
    found = find_ids(others, all_may_be=picture is not None)
    if found:
        one = len(found) == 1
        options.notes.append(
            f"{'column' if one else 'columns'} {shorten_list(map(repr, found))} of {what} "
            f"{'differs' if one else 'differ'} in every row: taken as {'an id' if one else 'ids'}, "
            "not as a feature (--id names the one to carry along, --id none keeps all as features)"
        )
    return found


def nameless(frame: pd.DataFrame) -> list[Any]:
    """Columns that nobody named and that say nothing of the rows.

    An index that pandas saved, and what stands behind a comma at the end of every line: nothing.
    """
    index = [c for c in frame.columns[:1] if str(c).startswith("Unnamed: 0")]
    nameless = [c for c in frame.columns[1:] if str(c).startswith("Unnamed: ")]
    return index + [c for c in nameless if frame[c].isna().all()]


def _check_columns(frame: pd.DataFrame, what: str) -> None:
    names = Counter(str(name) for name in frame.columns)
    if twice := [name for name, count in names.items() if count > 1]:
        raise BadInput(
            f"{sentence(what)} has several columns called {twice[0]!r}; rename or remove one."
        )


def read_features(frame: pd.DataFrame, schema: Schema | None = None) -> Source:
    """A table of features alone, whatever its columns are called; y is -1. schema: as in `read`."""
    options = ReadOptions(schema=schema)
    _check_columns(frame, "the table")
    if not len(frame):
        raise BadInput("There are no rows in the table.")
    x, paths, roles = _inputs(frame.reset_index(drop=True), Path(), options, "the table")
    data = Data(x, torch.full((len(frame),), IGNORE), 0)
    return replace(with_schema(data, paths, **roles), notes=options.notes)


def _inputs(
    frame: pd.DataFrame, folder: Path, options: ReadOptions, what: str
) -> tuple[Rows, list[str] | None, dict[str, Any]]:
    """The inputs in the columns of features; the image files; what the schema says of them."""
    image_column = _image_column(frame, options, what)
    if image_column is not None:
        paths = [str(folder / str(name)) for name in frame[image_column]]
        return read_pictures(paths, options), paths, {"image_column": image_column, "columns": {}}
    columns = options.schema.columns if options.schema else feature_columns(frame, what)
    raw = torch.from_numpy(feature_array(frame, columns, what, options.notes))
    x = features(raw, options.schema.double if options.schema else None)
    return x, None, {"image_column": None, "columns": columns}


def taken(
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
    taken = f"{counts} ({shorten_list(columns)})"
    if not columns:
        taken = f"the images of column {image_column!r}"
    roles = {label: " (the labels)", clean_label: " (the truth)"}
    used = {*columns, image_column}
    left = [f"{name}{roles.get(name, '')}" for name in names if str(name) not in used]
    return f"features are {taken}; left out: {shorten_list(left) or 'nothing'}"


def _image_column(frame: pd.DataFrame, options: ReadOptions, what: str) -> str | None:
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


def feature_columns(frame: pd.DataFrame, what: str) -> dict[str, list[str] | None]:
    """What each feature column holds: numbers (None), or one of these categories."""
    columns: dict[str, list[str] | None] = {}
    long = {}  # text that is no category
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column) and column.dtype.kind != "c":
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
        counts = shorten_list((f"{name!r} ({count})" for name, count in long.items()), 20)
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


def feature_array(
    frame: pd.DataFrame, columns: dict[str, list[str] | None], what: str, notes: list[str]
) -> np.ndarray:
    """[N, D] float64: numbers as they are, a category as one column of 0 and 1 for each value."""
    if not columns:
        raise BadInput(f"{what} is a table, and the model was not trained on one.")
    frame = frame.rename(columns=str)
    widths = [1 if categories is None else len(categories) for categories in columns.values()]
    out, start = np.empty((len(frame), sum(widths))), 0  # one copy: columns are written into it
    for (name, categories), width in zip(columns.items(), widths, strict=True):
        if name not in frame.columns:
            raise _no_column(name, "feature", list(frame.columns), what)
        where, place = f"column {name!r} of {what}", slice(start, start + width)
        if categories is None:
            out[:, start] = _numbers(frame[name], where)
        else:
            out[:, place] = _one_hot(frame[name], categories, where, notes)
        start += width
    return out


def _one_hot(column: pd.Series, categories: list[str], what: str, notes: list[str]) -> np.ndarray:
    """[N, categories] of 0 and 1; a value that training did not have is 0 everywhere."""
    text = column.astype(object).where(column.notna(), "").map(str)
    if (text == "").any():
        raise empty_cells(np.flatnonzero(text == ""), what)
    code = pd.Index(categories).get_indexer(pd.Index(text))
    if (code < 0).any():
        new = np.flatnonzero(code < 0)
        notes.append(
            f"{which_rows(new)} of {what} hold a value that training did not have "
            f"({text[new[0]]!r}): taken as none of {shorten_list(categories)}"
        )
    return np.eye(len(categories) + 1, len(categories), dtype=np.float64)[code]  # -1 is the last


def _numbers(column: pd.Series, what: str) -> np.ndarray:
    if column.dtype.kind == "c":
        raise BadInput(f"There are complex numbers in {what}; give real ones.")
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(numbers.astype(np.float32)))
    if bad.size:
        raise BadInput(
            f"There is no finite number in {which_rows(bad)} of {what} "
            f"(but {column.iloc[bad[0]]}); {FILL}."
        )
    return numbers
