"""Which column of a table is what: the labels, the truth, ids, groups, pictures, texts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd

from ...errors import BadInput, shorten_list
from ..columns import is_long, is_text
from ..ids import NONE, find_ids
from ..images import is_image
from .embeddings import holds_vectors
from .source import ReadOptions

Result = TypeVar("Result")


class Problems:
    """What is wrong with a file, gathered so that its owner hears of all of it at once."""

    def __init__(self) -> None:
        self.found: list[BadInput] = []

    def ask(self, read: Callable[..., Result], *args: Any) -> Result | None:
        """What `read` gives; None where it refuses."""
        try:
            return read(*args)
        except BadInput as problem:
            self.found.append(problem)
            return None

    def check(self) -> None:
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            listed = " ".join(f"({k}) {problem}" for k, problem in enumerate(self.found, 1))
            raise BadInput(f"There are {len(self.found)} problems: {listed}")


def no_column(name: str, kind: str, columns: Sequence[Any], what: str) -> BadInput:
    """One sentence for a column that there is not, with the near ones."""
    listed = [str(c) if str(c) == str(c).strip() else repr(c) for c in columns]
    near = difflib.get_close_matches(name, listed, 3)
    shown = ", ".join(near) if near and len(listed) > 20 else shorten_list(listed, 20)
    how = "; name the right one with --label (label=)" if kind == "label" else ""
    if near and kind != "label":
        how = f"; did you mean {' or '.join(map(repr, near))}?"
    if len(listed) == 1 and "|" in listed[0]:
        how = "; it seems to be separated by |: write it with commas, semicolons or tabs"
    end = "" if how.endswith("?") else "."
    return BadInput(f"There is no {kind} column {name!r} in {what}; its columns: {shown}{how}{end}")


def same_column(name: str | None, columns: Sequence[Any]) -> Any:
    """The column of this name, or the only one that differs from it by capitals and spaces."""
    if name is None or name in columns:
        return name
    alike = [c for c in columns if _plain(c) == _plain(name)]
    return alike[0] if len(alike) == 1 else name


def _plain(name: Any) -> str:
    return "".join(str(name).split()).casefold()


def label_columns(
    columns: Sequence[Any], options: ReadOptions, what: str
) -> tuple[Any | None, Any | None]:
    """The columns of the observed and of the clean label."""
    schema = options.schema
    if schema:  # what the model takes for a feature is none, whatever it is called
        columns = [c for c in columns if str(c) not in schema.columns]
    label = same_column(options.label or (schema.label if schema else None), columns)
    clean = same_column(options.clean_label or (schema.clean_label if schema else None), columns)
    if label and label == clean:
        raise BadInput(f"{label!r} cannot be both the label and the clean label; name another one")
    found = label or next((c for c in ("label", "y") if c in columns and c != clean), None)
    if found is None and (near := same_column("label", columns)) in columns and near != clean:
        found = near
    if options.labelled and found is None and clean in columns and str(clean) in ("label", "y"):
        raise BadInput(
            f"{clean!r} of {what} is named as the clean label, and no other column is called label "
            "or y; name that of the observed labels with --label (label=)"
        )
    if options.labelled and (found is None or found not in columns):
        raise no_column(found or "label", "label", columns, what)
    if clean not in columns and schema:
        clean = None  # test data need not have it: its labels are then taken for the truth
    elif options.clean_label and clean not in columns:
        raise no_column(options.clean_label, "clean label", columns, what)
    if clean is None:  # the truth must never become a feature
        clean = next((c for c in ("clean_label", "clean") if c in columns and c != found), None)
    return found if found in columns else None, clean if clean in columns else None


def dropped_columns(columns: Sequence[Any], options: ReadOptions, what: str) -> list[Any]:
    """The columns of --drop, of which one word may name several: a,b."""
    found: list[Any] = []
    missing: list[Any] = []
    for word in options.drop:
        for name in [word] if word in columns else word.split(","):
            column = same_column(name.strip() if name not in columns else name, columns)
            (found if column in columns else missing).append(column)
    if missing and not options.schema:  # a second file need not have it
        raise no_column(missing[0], "dropped", columns, what)
    return found


def without_dropped(
    label: Any,
    clean: Any,
    dropped: Sequence[Any],
    columns: Sequence[Any],
    options: ReadOptions,
    what: str,
) -> tuple[Any, Any]:
    """The columns of labels; a clean label that nobody named may be dropped.

    The labels, and a column that another option asks for, may not.
    """
    clean = clean if options.clean_label or clean not in dropped else None
    if options.schema:  # what was read so before is read so again
        return label, clean
    asked = {
        "--label": label if options.labelled else None,
        "--clean-label": options.clean_label,
        "--id": None if options.id_column == NONE else options.id_column,
        "--group": options.group_column,
        "--text": options.text_column,
        "--image-column": options.image_column,
    }
    for flag, name in asked.items():
        if name is not None and (column := same_column(name, columns)) in dropped:
            raise BadInput(
                f"--drop leaves out column {column!r} of {what}, which {flag} reads; take it out "
                f"of --drop, or name another column with {flag}."
            )
    return label, clean


@dataclass(frozen=True)
class Roles:
    """The columns that are no features, and those that are read in a way of their own."""

    label: Any = None
    clean_label: Any = None
    image: Any = None
    ids: tuple[Any, ...] = ()  # the first is carried along
    group: Any = None
    text: Any = None
    features: tuple[Any, ...] = ()  # all columns that are left


def find_roles(frame: pd.DataFrame, options: ReadOptions, what: str, problems: Problems) -> Roles:
    """What each column is; what cannot be found is told to `problems`."""
    columns = list(frame.columns)
    label, clean = problems.ask(label_columns, columns, options, what) or (None, None)
    dropped = problems.ask(dropped_columns, columns, options, what) or []
    label, clean = without_dropped(label, clean, dropped, columns, options, what)
    group = problems.ask(_group_column, columns, (label, clean), options, what)
    others = {label, clean, group, *nameless(frame), *dropped}
    features = frame[[c for c in columns if c not in others]]
    image = problems.ask(image_column, features, options, what)
    taken = (label, clean)
    ids = problems.ask(id_columns, frame, features, image, taken, options, what) or []
    features = features.drop(columns=[c for c in ids if c in features.columns])
    text = None if image is not None else problems.ask(_text_column, features, options, what)
    return Roles(label, clean, image, tuple(ids), group, text, tuple(features.columns))


def find_features(frame: pd.DataFrame, options: ReadOptions, what: str) -> Roles:
    """Of a table of features alone: which column holds pictures, and which texts."""
    image = image_column(frame, options, what)
    text = None if image is not None else _text_column(frame, options, what)
    return Roles(image=image, text=text, features=tuple(frame.columns))


def _group_column(columns: Sequence[Any], labels: Any, options: ReadOptions, what: str) -> Any:
    """The column of groups; by groups of one class nothing could be learned."""
    found = _named(options.group_column, "group", columns, options, what)
    if found is not None and found in labels:
        raise BadInput(f"Column {found!r} of {what} holds the labels, and so no groups.")
    return found


def _named(
    name: str | None, kind: str, columns: Sequence[Any], options: ReadOptions, what: str
) -> Any:
    """A column that has to be there if it is named; in data like the training data it has not."""
    found = same_column(name, columns)
    if found is None or found in columns:
        return found
    if options.schema:
        return None
    raise no_column(found, kind, columns, what)


def nameless(frame: pd.DataFrame) -> list[Any]:
    """Columns that nobody named and that say nothing of the rows.

    An index that pandas saved, and what stands behind a comma at the end of every line: nothing.
    """
    index = [c for c in frame.columns[:1] if str(c).startswith("Unnamed: 0")]
    nameless = [c for c in frame.columns[1:] if str(c).startswith("Unnamed: ")]
    return index + [c for c in nameless if frame[c].isna().all()]


def image_column(frame: pd.DataFrame, options: ReadOptions, what: str) -> Any:
    schema = options.schema
    name = options.image_column or (schema.image_column if schema else None)
    if name is not None:
        found = same_column(name, list(frame.columns))
        if found not in frame.columns:
            raise no_column(name, "image", list(frame.columns), what)
        return found
    if schema is not None:
        return None
    texts = (c for c in frame.columns if is_text(frame[c]))
    return next((c for c in texts if all(is_image(value) for value in frame[c])), None)


def id_columns(
    frame: pd.DataFrame,
    features: pd.DataFrame,
    image: Any,
    labels: tuple[Any, Any],
    options: ReadOptions,
    what: str,
) -> list[Any]:
    """The columns that name the rows; the first of them is carried along."""
    schema = options.schema
    named = options.id_column or (schema.id_column if schema else None)
    named = named if named == NONE else same_column(named, list(frame.columns))
    if named == NONE or (schema and named not in frame.columns):
        return []
    if named is not None:
        if named not in frame.columns:
            raise no_column(named, "id", list(frame.columns), what)
        if named in labels:
            raise BadInput(f"{named!r} holds the labels of {what}; name another column as the id")
        return [named]
    others = features.drop(columns=[] if image is None else [image])
    if options.text_column:
        others = others.drop(columns=[options.text_column], errors="ignore")
    rest = (image, options.text_column, options.features)  # without which ids alone are no inputs
    found = find_ids(others, all_may_be=any(part is not None for part in rest))
    if found:
        one = len(found) == 1
        options.notes.append(
            f"{'column' if one else 'columns'} {shorten_list(map(repr, found))} of {what} "
            f"{'differs' if one else 'differ'} in every row: taken as {'an id' if one else 'ids'}, "
            "not as a feature (--id names the one to carry along, --id none keeps all as features)"
        )
    return found


def _text_column(frame: pd.DataFrame, options: ReadOptions, what: str) -> Any:
    """The column of texts to be read: the one that is named, or the only one of long texts."""
    columns = list(frame.columns)
    if options.schema is not None:
        return None  # its columns say which it is
    if options.text_column is None and (
        options.features is not None or any(holds_vectors(frame[c]) for c in columns)
    ):
        return None  # a model sees vectors; texts are only shown
    if options.text_column is not None:
        found = same_column(options.text_column, columns)
        if found not in columns:
            raise no_column(options.text_column, "text", columns, what)
        return found
    long = [c for c in columns if is_long(frame[c])]
    if len(long) > 1:
        longest = max(long, key=lambda c: frame[c].dropna().astype(str).str.len().mean())
        raise BadInput(
            f"There are several columns of long texts in {what} ({shorten_list(map(repr, long))}); "
            f"name the one to be read, such as --text {longest}, and the others are left out."
        )
    return long[0] if long else None
