"""Data whose labels are the votes of several annotators, in a table of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..annotators import choose, consensus
from ..data import BadInput, plural, readers
from ..data.readers import Source, read_votes, table_columns
from ..data.votes import Votes


def read_annotated(source: str, annotations: dict[str, Any], **options: Any) -> Source:
    """The inputs of a source, with votes; the labels are their consensus.

    annotations: the `path` of the votes and the columns `item`, `annotator` and `label`; options:
    those of `readers.read`. A label column of the source itself is left out; `label` may
    name it, or that of the votes.
    """
    own = _own_label(annotations)
    found = readers.read(source, **options, label=annotations["label"], labelled=False)
    if own is not None and found.schema.label != own:
        raise BadInput(
            f"There is no column {own!r} in {annotations['path']}, nor in {source}; name the "
            "column of labels with --label."
        )
    if found.data.y.dim() > 1:
        raise BadInput("annotations are labels of rows; labels of pixels have one annotator")
    votes = row_votes(found, annotations, source)
    method, names = choose(votes), list(votes.names)
    data = replace(
        found.data,
        y=torch.from_numpy(consensus(votes, method).probs.argmax(1)),
        clean=_clean(source, found, names, options),
        num_classes=len(names),
        names=tuple(names),
        votes=votes.padded(),
        annotators=tuple(votes.annotators),
    )
    told = [f"column {found.schema.label!r} left out: the labels are the votes"]
    told = told if found.schema.label else []
    told.append(
        f"{plural(len(votes), 'vote')} of {plural(len(votes.annotators), 'annotator')}, "
        f"{len(votes) / len(data):.1f} a row; labels are their consensus ({method})"
    )
    notes = [*found.notes, *votes.notes, *told]
    return replace(found, data=data, schema=replace(found.schema, names=names), notes=notes)


def row_votes(found: Source, annotations: dict[str, Any], source: str) -> Votes:
    """The votes on the rows of a source; the items are called as the votes call them."""
    columns = {name: annotations[name] for name in ("item", "annotator", "label")}
    if _own_label(annotations):
        columns["label"] = None
    votes = read_votes(annotations["path"], **columns)
    return votes.in_order_of(_row_names(found, votes), source)


def _own_label(annotations: dict[str, Any]) -> str | None:
    """The column that --label names, if it is a column of the data and not of the votes."""
    label, path = annotations["label"], Path(annotations["path"])
    if label is None or not path.is_file() or path.suffix.lower() not in readers.TABLES:
        return None
    return None if label in table_columns(path) else label


def _row_names(found: Source, votes: Votes) -> list[str]:
    """What votes call the rows: their ids, their files' names, or their numbers."""
    numbers = [str(row) for row in range(len(found.data))]
    files = [Path(path).name for path in found.paths or ()]
    known = set(votes.items)
    ways = [way for way in (found.ids, found.paths, files, numbers) if way]
    return max(ways, key=lambda way: len(known.intersection(way)))  # the first of equals


def _clean(source: str, found: Source, names: list[str], options: dict[str, Any]) -> Any:
    """The true labels, where a column holds them: they are the only labels of a second reading."""
    column = found.schema.clean_label
    if column is None:
        return None
    others = {k: v for k, v in options.items() if k not in ("clean_label", "names", "schema")}
    return readers.read(source, **others, label=column, names=names).data.y
