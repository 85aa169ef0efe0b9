"""Votes: the labels that several annotators gave to the same items, rows with one and with twenty.

They are held long, one entry a vote, because most of the matrix [items, annotators] is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import BadInput, plural, shorten_list
from .types import IGNORE

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Votes:
    """Vote v: `annotators[annotator[v]]` called `items[item[v]]` a `names[label[v]]`.

    Args:
        item: the item of each vote, [V].
        annotator: who gave it, [V].
        label: the class it names, [V].
        items: what the items are called; every one has a vote.
        annotators: what the annotators are called.
        names: of the classes, in label order.
        notes: sentences on how they were read, which their owner may want to check.

    Example:
        >>> one = np.array([0, 0, 1])
        >>> votes = Votes(one, np.array([0, 1, 1]), one, ["a", "b"], ["Ann", "Bo"], ["cat", "dog"])
        >>> len(votes), votes.padded()[1].tolist()
        (3, [[1, 1], [-1, -1]])
    """

    item: Numbers
    annotator: Numbers
    label: Numbers
    items: Sequence[str]
    annotators: Sequence[str]
    names: Sequence[str]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.label)

    @property
    def per_item(self) -> Numbers:
        """How many votes each item has, [N]."""
        return np.bincount(self.item, minlength=len(self.items))

    @property
    def per_annotator(self) -> Numbers:
        """How many votes each annotator gave, [A]."""
        return np.bincount(self.annotator, minlength=len(self.annotators))

    def in_order_of(self, ids: Sequence[str], what: str) -> Votes:
        """The same votes with these items, in this order: the rows of a data set.

        ids: what its rows are called. what: the data set, for messages.
        """
        rows = {name: row for row, name in enumerate(ids)}
        if len(rows) < len(ids):
            raise BadInput(
                f"The ids of {what} are not all different, so votes cannot be told apart by them; "
                "name the column that identifies its rows (--id)."
            )
        unknown = [name for name in self.items if name not in rows]
        if unknown:
            raise BadInput(
                f"There are votes for {plural(len(unknown), 'item')} that {what} does not have "
                f"({shorten_list(map(repr, unknown), 3)}; its rows are called "
                f"{shorten_list(map(repr, ids), 3)}); name the column that identifies its rows "
                "(--id), or leave these votes out."
            )
        place = np.array([rows[name] for name in self.items], dtype=np.int64)
        found = replace(self, item=place[self.item], items=list(ids))
        found.check_items(what)
        return found

    def check_items(self, what: str) -> None:
        """Refuse an item without a vote."""
        empty = [self.items[row] for row in np.flatnonzero(self.per_item == 0).tolist()]
        if empty:
            raise BadInput(
                f"There is no vote for {plural(len(empty), 'item')} of {what} "
                f"({shorten_list(map(repr, empty), 3)}); leave them out, or have them labelled."
            )

    def padded(self) -> Tensor:
        """The votes of each item as (annotator, label), int32 [N, most votes of an item, 2].

        Where an item has fewer votes than that there is (-1, -1).
        """
        order = np.argsort(self.item, kind="stable")
        item, size = self.item[order], self.per_item
        place = np.arange(len(item)) - np.repeat(np.cumsum(size) - size, size)
        table = np.full((len(self.items), int(size.max()), 2), IGNORE, dtype=np.int32)
        table[item, place, 0], table[item, place, 1] = self.annotator[order], self.label[order]
        return torch.from_numpy(table)

    @classmethod
    def from_padded(cls, table: Tensor, annotators: Sequence[str], names: Sequence[str]) -> Votes:
        """The votes of a table [N, M, 2] as `padded` makes it; the items are called by their rows.

        An item may have none: that of a picture that cannot be read.
        """
        pairs = table.numpy().astype(np.int64)
        item, place = np.nonzero(pairs[..., 0] != IGNORE)
        annotator, label = pairs[item, place].T
        return cls(item, annotator, label, list(map(str, range(len(pairs)))), annotators, names)
