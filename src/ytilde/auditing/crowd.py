"""Several annotators judged with a model: what an audit is told of their votes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..annotators import add_model, annotator_table, consensus, vote_table, with_model
from ..data.readers import read_votes
from .inputs import Array, Labels, check_labels


class Crowd(NamedTuple):
    """The consensus of the votes alone [N], what it is with the model [N, K], and the tables."""

    given: Labels
    probs: Array
    annotators: pd.DataFrame
    votes: pd.DataFrame
    names: tuple[str, ...] | None
    notes: list[str]


def judge_votes(p: np.ndarray, annotations: Any, names: Sequence[str] | None) -> Crowd:
    """The votes on rows with these probabilities of a model [N, K], checked and judged."""
    check_labels(np.zeros(len(p), dtype=np.int64), p, names)  # of the probabilities
    classes = list(map(str, names)) if names is not None else list(map(str, range(p.shape[1])))
    votes = read_votes(annotations, names=classes)
    votes = votes.in_order_of([str(row) for row in range(len(p))], "pred_probs")
    model = p / p.sum(1, keepdims=True)
    alone, joint = consensus(votes), with_model(votes, model)
    everyone = add_model(votes, model)
    shown = vote_table(votes, joint.probs)
    return Crowd(
        given=alone.probs.argmax(1).astype(np.int64),
        probs=joint.probs,
        annotators=annotator_table(everyone, joint.probs),
        votes=shown,
        names=tuple(classes) if names is not None else None,
        notes=votes.notes,
    )
