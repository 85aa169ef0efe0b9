"""A review as one more annotator: its decisions beside the votes that there were."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...data import IGNORE, BadInput, Data
from ...data.votes import Votes
from .log import LOG
from .session import Review

GIVEN = "given"  # who gave the labels of data that has one label a row


class ReviewVotes(NamedTuple):
    """The table, how many votes of the review are in it, and decisions that are none.

    not_looked_at: suggestions that were accepted all at once.
    """

    table: pd.DataFrame
    votes: int
    not_looked_at: int


def given_votes(data: Data, names: list[str]) -> Votes:
    """The labels of data that has one label a row, as the votes of one annotator."""
    rows = np.flatnonzero((data.y != IGNORE).numpy())
    classes = [data.class_name(k) for k in range(data.num_classes)]
    return Votes(rows, np.zeros_like(rows), data.y.numpy()[rows], names, [GIVEN], classes)


def review_votes(review: Review, votes: Votes, annotator: str) -> ReviewVotes:
    """The votes, and a vote of `annotator` for each label that was decided on by looking at it.

    votes: on the rows of the review, in their order. A skipped or a bad item gets no vote.
    """
    if not annotator.strip():
        raise BadInput("the reviewer has no name; give one with --annotator")
    if annotator in votes.annotators:
        raise BadInput(
            f"there are votes of {annotator!r} already; give the reviewer another name with "
            "--annotator"
        )
    decided = [d for d in review.log.current().values() if d.label is not None]
    if any(d.row >= len(votes.items) or (d.label or 0) >= len(review.names) for d in decided):
        raise BadInput(f"{review.run / LOG} is the review of another run; move it away")
    seen = [decision for decision in decided if review.log.is_by_hand(decision)]
    before = pd.DataFrame({
        "item": [votes.items[k] for k in votes.item],
        "annotator": [votes.annotators[k] for k in votes.annotator],
        "label": [votes.names[k] for k in votes.label],
        "reviewed": False,
    })  # fmt: skip
    own = pd.DataFrame({
        "item": [votes.items[d.row] for d in seen],
        "annotator": annotator,
        "label": [review.names[d.label or 0] for d in seen],
        "reviewed": True,
    })  # fmt: skip
    table = pd.concat([before, own], ignore_index=True) if seen else before
    return ReviewVotes(table, len(seen), len(decided) - len(seen))
