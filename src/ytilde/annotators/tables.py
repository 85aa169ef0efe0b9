"""What a consensus says of every item, annotator and vote, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..data.readers import read_votes
from ..data.votes import Votes
from .consensus import Array, Consensus, choose, consensus, expected_votes
from .skills import skills

RELIABLE, GUESSING, TOO_FEW = "reliable", "no better than guessing", "too few votes to tell"


@dataclass(frozen=True)
class Annotations:
    """What `find_consensus` found.

    Attributes:
        items: a row an item: item, consensus_label, consensus_prob, runner_up_label,
            runner_up_prob, votes, agreement (the share of its votes for the consensus).
        annotators: a row an annotator: annotator, votes, accuracy with its 95 % interval
            (accuracy_low, accuracy_high), agreement (of their votes with the consensus), remark.
        matrices: T_a[true_label, given_label] of every annotator, with a 95 % interval.
        votes: a row a vote: item, annotator, label, consensus_label, p_wrong.
        probs: P(label | votes) [N, K], columns in the order of `names`.
        names: of the classes.
        method: of the consensus.
        notes: what a reader should know, a sentence each.
    """

    items: pd.DataFrame
    annotators: pd.DataFrame
    matrices: pd.DataFrame
    votes: pd.DataFrame
    probs: Array
    names: tuple[str, ...]
    method: str
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """A few sentences for a person."""
        doubtful = int((self.items.consensus_prob < 0.9).sum())
        wrong = float(self.votes.p_wrong.sum())
        return (
            f"{len(self.votes)} votes of {len(self.annotators)} annotators on {len(self.items)} "
            f"items in {len(self.names)} classes. About {wrong:.0f} votes "
            f"({100 * wrong / len(self.votes):.1f} %) are wrong, and {doubtful} items have a "
            "consensus that is less than 90 % sure."
        )


def find_consensus(
    annotations: Any,
    method: str = "auto",
    *,
    item: str | None = None,
    annotator: str | None = None,
    label: str | None = None,
    names: list[str] | None = None,
    seed: int = 0,
) -> Annotations:
    """What several annotators say together, and how good each of them is; needs no inputs.

    Args:
        annotations: a long table (task, worker, label), a matrix [items, annotators] with gaps, or
            the path of a file with either.
        method: "dawid_skene", "majority" or "one_coin"; "auto": Dawid-Skene where there are votes
            enough for a matrix an annotator, else one coin.
        item: the column of items; None: the one called task or item.
        annotator: the column of annotators; None: the one called worker or annotator.
        label: the column of labels; None: the one called label.
        names: the classes in their order; None: the labels that there are.
        seed: of the draws behind the intervals.

    Returns:
        Tables of the items, the annotators and the votes.

    Example:
        >>> found = find_consensus(np.array([[0, 0, 1], [1, 1, 1], [0, 0, -1]]), "majority")
        >>> found.items.consensus_label.tolist(), found.votes.p_wrong.round(2).tolist()[:3]
        (['0', '1', '0'], [0.33, 0.33, 0.67])
    """
    columns = {"item": item, "annotator": annotator, "label": label}
    votes = read_votes(annotations, names=names, **columns)
    method = choose(votes, method)
    found = consensus(votes, method)
    return Annotations(
        items=item_table(votes, found.probs),
        annotators=annotator_table(votes, found.probs, seed),
        matrices=_matrix_table(votes, found),
        votes=vote_table(votes, found.probs),
        probs=found.probs,
        names=tuple(votes.names),
        method=method,
        notes=[*votes.notes, *_notes(votes, method)],
    )


def item_table(votes: Votes, probs: Array) -> pd.DataFrame:
    """The consensus of each item, its probability and the runner-up; see `Annotations.items`."""
    order = np.argsort(-probs, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(probs, order, 1).T
    names = np.array(votes.names, dtype=object)
    agree = order[votes.item, 0] == votes.label
    return pd.DataFrame(
        {
            "item": list(votes.items),
            "consensus_label": names[order[:, 0]],
            "consensus_prob": first,
            "runner_up_label": names[order[:, 1]],
            "runner_up_prob": second,
            "votes": votes.per_item,
            "agreement": np.bincount(votes.item, agree, len(probs)) / np.maximum(votes.per_item, 1),
        }
    )


def vote_table(votes: Votes, probs: Array) -> pd.DataFrame:
    """Each vote beside the consensus, and the chance that it is wrong; see `Annotations.votes`."""
    names = np.array(votes.names, dtype=object)
    return pd.DataFrame(
        {
            "item": np.array(votes.items, dtype=object)[votes.item],
            "annotator": np.array(votes.annotators, dtype=object)[votes.annotator],
            "label": names[votes.label],
            "consensus_label": names[probs.argmax(1)[votes.item]],
            "p_wrong": np.clip(1 - probs[votes.item, votes.label], 0, 1),
        }
    )


def annotator_table(votes: Votes, probs: Array, seed: int = 0) -> pd.DataFrame:
    """How good each annotator is; see `Annotations.annotators`."""
    size, found = votes.per_annotator, skills(votes, seed=seed)
    agree = probs.argmax(1)[votes.item] == votes.label
    table = pd.DataFrame(
        {
            "annotator": list(votes.annotators),
            "votes": size,
            "accuracy": found.accuracy,
            "accuracy_low": found.low,
            "accuracy_high": found.high,
            "agreement": np.bincount(votes.annotator, agree, len(size)) / np.maximum(size, 1),
        }
    )
    average = float((found.accuracy * size).sum() / size.sum())
    return table.assign(remark=_remarks(table, average, 1 / len(votes.names)))


def _remarks(table: pd.DataFrame, average: float, chance: float) -> np.ndarray:
    """Who is reliable (at least as the average vote, surely), and who may be guessing."""
    unsure = table.accuracy_high - table.accuracy_low > 0.7 * (1 - chance)
    return np.select(
        [unsure, table.accuracy_low <= chance + 0.05, table.accuracy_low >= average],
        [TOO_FEW, GUESSING, RELIABLE],
        "",
    )


def _matrix_table(votes: Votes, found: Consensus) -> pd.DataFrame:
    """A row an entry of T_a; the interval is that of a Beta with half a vote more for each side."""
    from scipy.stats import beta

    K, expected = len(votes.names), expected_votes(votes, found.probs)
    total = expected.sum(2, keepdims=True)
    sides = (expected + 0.5, total - expected + 0.5)
    labels = np.array(votes.names, dtype=object)
    return pd.DataFrame(
        {
            "annotator": np.repeat(np.array(votes.annotators, dtype=object), K * K),
            "true_label": np.tile(np.repeat(labels, K), len(expected)),
            "given_label": np.tile(labels, len(expected) * K),
            "probability": found.matrices.ravel(),
            "low": beta.ppf(0.025, *sides).ravel(),
            "high": beta.ppf(0.975, *sides).ravel(),
            "expected_votes": expected.ravel(),
        }
    )


def _notes(votes: Votes, method: str) -> list[str]:
    """Where a matrix an annotator is more than the votes can tell."""
    K, each = len(votes.names), len(votes) / len(votes.annotators)
    if method != "dawid_skene" or each >= 2 * K * K:
        return []
    return [
        f"Dawid-Skene fits {K * (K - 1)} numbers to some {each:.0f} votes of each annotator: its "
        "probabilities are surer than they should be; --method one_coin fits one"
    ]
