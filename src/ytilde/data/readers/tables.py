"""Tables: csv, tsv, parquet and DataFrames, with numbers, categories or names of images."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...errors import BadInput, plural, sentence, shorten_list
from ...files import check_no_stream
from ..columns import apply, as_texts, counted, is_text, learn
from ..ids import NONE, own_texts
from ..precision import features
from ..types import IGNORE, Data, Rows
from .embeddings import (
    as_features,
    embedding_column,
    placeholder,
    stack_vectors,
    without_missing,
)
from .folders import read_pictures
from .labels import read_labels
from .roles import (
    Problems,
    Roles,
    find_features,
    find_roles,
    label_columns,
    no_column,
    same_column,
)
from .separators import SEPARATORS, separator_of, table_kind, usual_separator
from .source import ReadOptions, Schema, Source, with_schema
from .texts import Texts, with_texts

MISSING = (  # what pandas takes for no value
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)


def load_table(path: Path, options: ReadOptions) -> pd.DataFrame:
    check_no_stream(path)
    if table_kind(path) == ".parquet":
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
    separator = None if table_kind(path) == ".parquet" else separator_of(path)
    return list(frame[column]), column, list(frame.columns).index(column), separator


def _read_csv(path: Path, options: ReadOptions) -> pd.DataFrame:
    separator = separator_of(path)
    columns = list(pd.read_csv(path, sep=separator, nrows=0, index_col=False).columns)
    asked = replace(options, labelled=False, clean_label=None)  # what is missing is told later
    labels = [c for c in label_columns(columns, asked, str(path)) if c is not None]
    labels += [c for c in [same_column(options.clean_label, columns)] if c in columns]
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
    for name in (c for c in frame.columns if c not in labels and is_text(frame[c])):
        numbers = pd.to_numeric(frame[name].str.replace(",", "."), errors="coerce")
        if numbers.isna().equals(frame[name].isna()):
            frame[name] = numbers
            found.append(name)
    return found


def read_frame(
    frame: pd.DataFrame, folder: Path, options: ReadOptions, what: str, texts: Texts | None = None
) -> Source:
    """A table as Data; all that stands in the way is told together."""
    _check_columns(frame, what)
    frame = frame.reset_index(drop=True)
    problems = Problems()
    roles = find_roles(frame, options, what, problems)
    if not len(frame):
        raise BadInput(f"There are no rows in {what}.")
    y = clean = names = None
    if roles.label is not None or not options.labelled:
        given, truth = (None if c is None else frame[c] for c in (roles.label, roles.clean_label))
        found_labels = problems.ask(read_labels, given, truth, len(frame), options, what)
        y, clean, names = found_labels or (None, None, None)
    inputs = problems.ask(_inputs, frame[list(roles.features)], folder, options, what, roles)
    problems.check()
    assert inputs is not None and y is not None and names is not None
    x, paths, how = inputs
    how |= {"label": roles.label, "clean_label": roles.clean_label}
    if options.schema is None:
        options.notes.append(taken(list(frame.columns), how))
    how["id_column"] = str(roles.ids[0]) if roles.ids else None
    groups = None
    if roles.group is not None:
        groups, note = _groups(frame[roles.group], str(roles.group))
        how["group_column"] = str(roles.group)
        options.notes.append(note)
    data = Data(x, y, len(names), clean, tuple(names), groups=groups)
    found = with_schema(data, paths, **how)
    vectors, shown = how.get("features"), None
    if vectors is not None:
        found = without_missing(found, options.notes, what)
    if vectors is not None or options.features is not None:
        hidden = {vectors, how["image_column"]}
        shown = [str(c) for c in (*roles.ids[1:], *roles.features) if str(c) not in hidden]
    return with_texts(found, texts or partial(own_texts, frame), shown)


def _groups(column: pd.Series, name: str) -> tuple[torch.Tensor, str]:
    """The group of each row, by numbers; a row without one is alone."""
    codes = pd.factorize(as_texts(column).where(column.notna(), None))[0].astype(np.int64)
    alone = codes < 0
    codes[alone] = codes.max(initial=-1) + 1 + np.arange(alone.sum())
    count = plural(len(np.unique(codes)), "group")
    return torch.from_numpy(codes), f"rows of one {name!r} are kept together: {count}"


def _check_columns(frame: pd.DataFrame, what: str) -> None:
    names = Counter(str(name) for name in frame.columns)
    if twice := [name for name, count in names.items() if count > 1]:
        raise BadInput(
            f"{sentence(what)} has several columns called {twice[0]!r}; rename or remove one."
        )


def read_features(frame: pd.DataFrame, schema: Schema | None = None) -> Source:
    """A table of features alone, whatever its columns are called; y is -1. schema: as in `read`."""
    options = ReadOptions(schema=schema, id_column=NONE)
    _check_columns(frame, "the table")
    if not len(frame):
        raise BadInput("There are no rows in the table.")
    frame = frame.reset_index(drop=True)
    roles = find_features(frame, options, "the table")
    x, paths, how = _inputs(frame, Path(), options, "the table", roles)
    data = Data(x, torch.full((len(frame),), IGNORE), 0)
    return replace(with_schema(data, paths, **how), notes=options.notes)


def _inputs(
    frame: pd.DataFrame, folder: Path, options: ReadOptions, what: str, roles: Roles
) -> tuple[Rows, list[str] | None, dict[str, Any]]:
    """The inputs in the columns of features; the image files; what the schema says of them."""
    schema, image = options.schema, roles.image
    vectors = embedding_column(frame, options, what)
    if vectors is not None:
        stacked = stack_vectors(frame[vectors], f"column {vectors!r} of {what}")
        x = as_features(stacked, what, schema.double if schema else None)
        return x, None, {"image_column": None, "columns": {}, "features": str(vectors)}
    if image is None and options.features is not None:
        return placeholder(len(frame)), None, {"image_column": None, "columns": {}}
    if image is not None:
        paths = [str(folder / str(name)) for name in frame[image]]
        return read_pictures(paths, options), paths, {"image_column": image, "columns": {}}
    if schema:
        how = schema.treatment
        if not how.columns:
            raise BadInput(
                f"{what} is a table, and the model was not trained on one; if it was on "
                "embeddings, give those of its rows with --features."
            )
        frame = with_columns(frame.rename(columns=str), how.columns, what)
    else:
        how = learn(frame, what, options.notes, None if roles.text is None else str(roles.text))
    raw = torch.from_numpy(apply(frame, how, what, options.notes))
    x = features(raw, schema.double if schema else None)
    kept = {"columns": how.columns, "medians": how.medians, "gaps": how.gaps, "tfidf": how.tfidf}
    return x, None, {"image_column": None, **kept}


def with_columns(frame: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    """These columns of a table, under these names; all that are not there are named."""
    here = list(frame.columns)
    places = {name: same_column(name, here) for name in columns}
    missing = [name for name, place in places.items() if place not in here]
    if len(missing) == 1:
        raise no_column(missing[0], "feature", here, what)
    if missing:
        raise BadInput(
            f"There are no feature columns {shorten_list(map(repr, missing))} in {what}; its "
            f"columns: {shorten_list(here, 20)}."
        )
    return frame[list(places.values())].set_axis(list(places), axis=1)


def taken(names: Sequence[Any], how: dict[str, Any]) -> str:
    """Which columns became features, and which did not."""
    if how.get("features") is not None:
        vectors = how["features"]
        return f"features are the vectors of column {vectors!r}; the other columns are only shown"
    columns, image = how["columns"], how["image_column"]
    if not columns and image is None:
        return "columns are only shown: the features are in a file of their own"
    shown = f"{counted(columns)} ({shorten_list(columns)})"
    if not columns:
        shown = f"the images of column {image!r}"
    roles = {how["label"]: " (the labels)", how["clean_label"]: " (the truth)"}
    used = {*columns, image}
    left = [f"{name}{roles.get(name, '')}" for name in names if str(name) not in used]
    return f"features are {shown}; left out: {shorten_list(left) or 'nothing'}"
