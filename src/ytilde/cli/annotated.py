"""Data whose labels are the votes of several annotators, in a table of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..annotators import choose, consensus
from ..data import BadInput, plural, readers
from ..data.readers import Source, read_votes
from ..data.votes import Votes


def read_annotated(source: str, annotations: dict[str, Any], **options: Any) -> Source:
    """The inputs of a source, with votes; the labels are their consensus.

    annotations: the `path` of the votes and the columns `item`, `annotator` and `label`; options:
    those of `readers.read`. A label column of the source itself is left out.
    """
    columns = {name: annotations[name] for name in ("item", "annotator", "label")}
    votes = read_votes(annotations["path"], **columns)
    found = readers.read(source, **options, label=None, labelled=False)
    if found.data.y.dim() > 1:
        raise BadInput("annotations are labels of rows; labels of pixels have one annotator")
    votes = votes.in_order_of(_row_names(found, votes), source)
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
