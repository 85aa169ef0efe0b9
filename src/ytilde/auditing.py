"""Which labels are wrong? An audit of anybody's (out-of-fold) probabilities against the labels.

Probabilities and labels alone cannot tell a wrong label from a hard example: T = I and a blurred
classifier explain any data. So the audit reads the data twice, with the same model and two
attitudes, and says how far the two disagree:

* lenient: temperature and class-level T by maximum likelihood of the given labels;
* strict: the same, plus the belief that the truth is nearly a function of the input (the entropy
  of the clean posterior costs, as in Grandvalet and Bengio, 2004).

`p_wrong` is the mean of the two; their distance is the model's share of the interval.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from .checkpoint import write_csv, write_text
from .data import IGNORE, BadInput, which_rows
from .transition import confident_joint

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

__all__ = [
    "BASELINES",
    "Audit",
    "Estimate",
    "audit",
    "aum",
    "confident_learning",
    "knn_vote",
    "margin",
    "overlap",
    "self_confidence",
    "small_loss",
]

TEMPERATURES = np.geomspace(0.1, 4.0, 13)
STRICTNESS = 0.5  # what a nat of clean entropy costs in the strict reading
FLOOR = 1e-6  # smallest clean probability before the temperature: nobody is surer than that
FIT_ROWS = 20_000  # rows that the two readings are fitted to; all rows are then judged by them
CHUNK = 4_000_000  # numbers worked on at once, so that memory does not grow with N

NOTE_ASSUMPTION = (
    "Without a clean sample the rate is known only under an assumption: the truth is nearly a "
    "function of the input. The interval spans a lenient and a strict reading of it."
)
WEAK = 0.7  # of the labels are the model's best guess: below, it may be the model that is wrong
NOTE_WEAK = (
    "The model's best guess is the given label in only {share:.0f} % of the rows: either that many "
    "labels are wrong, or the model is too weak to judge them. Look at some before you fix any, or "
    "train longer, with more data or a better network."
)
CHANCE = 0.05  # a model whose Cohen's kappa with the labels is not surely above this cannot judge
NOTE_CHANCE = (
    "The model's best guess is the given label in only {share:.0f} % of the rows, where chance "
    "alone gives {chance:.0f} %: it has learnt next to nothing of these labels, so it cannot tell "
    "which are wrong. Change no label by this audit. See whether inputs and labels belong "
    "together, then train longer, with more data or a better network, and audit again."
)
MANY_UNLABELLED = 0.05  # of the rows are -1, and a class is missing: it may be meant as that class
NOTE_OUT_OF_FOLD = "The probabilities should come from models that did not train on the row."


class Estimate(float):
    """A number with a 95 % interval."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Estimate:
        self = super().__new__(cls, value)
        self.low, self.high = float(low), float(high)
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    def __repr__(self) -> str:
        return f"{float(self):.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, repr=False)
class Audit:
    """What `audit` found.

    issues: a row for every labelled example, in the order given, with cleanlab's names: index,
        given_label, predicted_label, label_quality in [0, 1] (low = bad), is_label_issue; and
        predicted_prob (of the predicted label), p_wrong, ambiguity in [0, 1] (two classes tie),
        runner_up_label and runner_up_prob: the likeliest class beside the given and the predicted
        one, or, of two classes, the other.
    transition: T[i, j] = P(given j | true i), rows sum to 1, [K, K].
    """

    issues: pd.DataFrame
    noise_rate: Estimate
    num_errors: Estimate
    transition: Array
    per_class: pd.DataFrame
    pairs: pd.DataFrame
    names: tuple[str, ...] | None = None
    notes: list[str] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)  # images, history ... for the report
    at_chance: bool = False  # the model agrees with the labels as chance does: nothing can be told
    unjudged: int = 0  # rows without a label, or whose image cannot be read

    def __repr__(self) -> str:
        return f"<Audit: {self.summary()}>"

    def summary(self) -> str:
        """A few sentences for a person."""
        n, found = len(self.issues), int(self.issues.is_label_issue.sum())
        if self.at_chance:
            return f"Nothing can be said of these {n} labels: the model knows no more than chance."
        low, high = round(self.num_errors.low), round(self.num_errors.high)
        left_out = f" {self.unjudged} of {n + self.unjudged} rows could not be judged."
        suspects = f"{found} {'is' if found == 1 else 'are'} more likely wrong than right."
        return (
            f"About {round(self.num_errors)} of {n} labels are wrong "
            f"({100 * self.noise_rate:.1f} %; 95 % interval {low} to {high}). "
            f"{suspects}{left_out if self.unjudged else ''}"
        )

    def fixed_labels(self, above: float) -> pd.DataFrame:
        """The labels, with the suggestion in the place of those whose p_wrong is above this.

        A model at chance level (`at_chance`) fixes none.
        """
        if not 0 <= above <= 1:  # NaN too
            raise BadInput(f"above is a probability from 0 to 1, not {above}")
        sure = (self.issues.p_wrong > above) & (not self.at_chance)
        label = self.issues.predicted_label.where(sure, self.issues.given_label)
        fix = label != self.issues.given_label
        columns = {"index": self.issues["index"], "label": label, "fixed": fix}
        return self._with_paths(pd.DataFrame(columns | {"given_label": self.issues.given_label}))

    def with_classes(self, classes: Sequence[Any]) -> Audit:
        """The same in the classes' own values, one for each of `names`: 7 instead of "7"."""
        own = dict(zip(self.names or (), classes, strict=True))

        def told(table: pd.DataFrame) -> pd.DataFrame:
            labels = [column for column in table.columns if column.endswith("label")]
            return table.assign(**{column: table[column].map(own) for column in labels})

        issues, per_class, pairs = map(told, (self.issues, self.per_class, self.pairs))
        return replace(self, issues=issues, per_class=per_class, pairs=pairs)

    def _with_paths(self, table: pd.DataFrame) -> pd.DataFrame:
        """With the image files of the rows, where they are known."""
        paths = self.context.get("paths")
        return table if paths is None else table.assign(path=[paths[i] for i in table["index"]])

    def to_cleanlab(self) -> Array:
        """T as cleanlab has its noise_matrix: [given, true], columns sum to 1."""
        return self.transition.T

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes `issues`, the worst first; formulas that a spreadsheet would run are harmless."""
        worst_first = self.issues.sort_values(["p_wrong", "index"], ascending=[False, True])
        write_csv(Path(path), self._with_paths(worst_first))

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes the figures, the tables and the flagged rows (the rest are in the csv)."""
        figures = {
            name: {"value": float(e), "low": e.low, "high": e.high}
            for name, e in (("noise_rate", self.noise_rate), ("num_errors", self.num_errors))
        }
        tables = {
            "per_class": _records(self.per_class),
            "pairs": _records(self.pairs),
            "issues": _records(self.issues[self.issues.is_label_issue]),
        }
        everything = {
            "rows": len(self.issues),
            "unjudged": self.unjudged,
            "at_chance": self.at_chance,
            **figures,
            "names": list(self.names) if self.names else None,
            "transition": self.transition.tolist(),
            "notes": self.notes,
            **tables,
        }
        text = json.dumps(everything, ensure_ascii=False, allow_nan=False, indent=1)
        write_text(Path(path), text)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        from . import report  # the report stands above the audit, so it is met only here

        report.write(self, path, **self.context)

    def to_label_studio(self, path: str | os.PathLike[str]) -> None:
        """Writes the flagged rows as Label Studio tasks, and their labelling config beside (.xml).

        The suggestion is each task's prediction; pictures are in the file.
        """
        from . import labelling

        labelling.write_label_studio(self, Path(path))

    def to_argilla(self, path: str | os.PathLike[str]) -> None:
        """Writes the flagged rows as Argilla records: `dataset.records.from_json(path)`.

        The dataset needs a LabelQuestion "label" and a field "image" (ImageField) or "item" (text).
        """
        from . import labelling

        labelling.write_argilla(self, Path(path))


def audit(
    pred_probs: np.ndarray | Tensor | pd.DataFrame,
    y: Sequence | np.ndarray | Tensor,
    *,
    transition: np.ndarray | Tensor | None = None,
    names: Sequence[str] | None = None,
) -> Audit:
    """Judges every label by the probabilities of a model that did not see it.

    pred_probs [N, K] may estimate the clean label (a robust method) or the given one (any
    classifier); y [N] are classes 0..K-1 or names, -1 = no label. With `transition` ([K, K] or
    [N, K, K]) the probabilities are taken as the clean posterior f and
    P(clean = i | x, y = j) = f_i T_ij / sum_k f_k T_kj; without, both are estimated (see above).
    Without `names` they are a DataFrame's columns, if these are texts, or else the labels sorted.
    """
    p = _as_numpy(pred_probs)
    if names is None and isinstance(pred_probs, pd.DataFrame):
        columns = list(pred_probs.columns)
        names = columns if all(isinstance(name, str) for name in columns) else None
    given, names = _labels(y, p, names)
    rows = np.flatnonzero(given != IGNORE)
    known = _Known(p, given, rows, _transitions(transition, p))
    readings = _readings(known)
    judged = _judge(known, readings)
    return _summary(known, judged, names)


def overlap(pred_probs: np.ndarray | Tensor, y: np.ndarray | Tensor) -> float:
    """How far the classes overlap: the share of rows whose likeliest class is expected not to be
    the truth, even in the strict reading, which believes in clear classes wherever it can."""
    p = _as_numpy(pred_probs)
    given, _ = _labels(y, p, None)
    known = _Known(p, given, np.flatnonzero(given != IGNORE), None)
    _, strict = _readings(known)
    doubt = sum(len(part) - strict.clean(part).max(1).sum() for _, part, _, _ in known.chunks())
    return float(doubt / len(known.rows))


# --- the model -----------------------------------------------------------------------------


class _Known(NamedTuple):
    """What is audited: the labelled rows of p [N, K] and y [N], and T where it was given."""

    p: np.ndarray
    y: Labels
    rows: NDArray[np.int64]
    transition: np.ndarray | None

    def chunks(self) -> Iterator[tuple[slice, Array, Labels, np.ndarray | None]]:
        """Slices of the labelled rows with their normalised probabilities, labels and T."""
        size = max(1, CHUNK // self.p.shape[1])
        for start in range(0, len(self.rows), size):
            part = slice(start, min(start + size, len(self.rows)))
            at = self.rows[part]
            per_row = self.transition is not None and self.transition.ndim == 3
            t = self.transition[at] if per_row else self.transition  # type: ignore[index]
            yield part, _normalised(self.p[at].astype(np.float64)), self.y[at], t


class _Reading(NamedTuple):
    """One way to understand the probabilities: clean posterior f = softmax(log(p A^-1) / t)."""

    unmix: Array  # A^-1 [K, K]
    temperature: float
    transition: Array  # [K, K]

    def clean(self, p: Array) -> Array:
        return _tempered(_unmixed(p, self.unmix), self.temperature)


def _readings(known: _Known) -> tuple[_Reading, _Reading]:
    """The lenient and the strict reading, fitted to at most FIT_ROWS rows."""
    rows = known.rows
    if len(rows) > FIT_ROWS:
        rows = np.random.default_rng(0).choice(rows, FIT_ROWS, replace=False)
    rows = rows[np.argsort(known.y[rows], kind="stable")]  # the EM sums runs of equal labels
    p, y = _normalised(known.p[rows].astype(np.float64)), known.y[rows]
    unmix = np.asarray(np.linalg.pinv(_anchors(p)), dtype=np.float64)
    base = _unmixed(p, unmix)
    T = 0.8 * np.eye(p.shape[1]) + 0.2 / p.shape[1]
    fits = []
    for temperature in TEMPERATURES:
        f = _tempered(base, temperature)
        T, likelihood = _fit_transition(f, y, T)
        entropy = float(-(f * np.log(np.maximum(f, 1e-300))).sum(1).mean())
        fits.append((likelihood, entropy, _Reading(unmix, float(temperature), T)))
    lenient = max(fits, key=lambda fit: fit[0])[2]
    strict = max(fits, key=lambda fit: fit[0] - STRICTNESS * fit[1])[2]
    return lenient, strict


def _anchors(p: Array) -> Array:
    """A[i] = mean p over the surer half of the rows predicted i (after Patrini et al., 2017).

    A model of the noisy label is never sure: it says T[i] where the truth is i. A model of the
    clean label says the one-hot, A = I, and nothing is undone.
    """
    k = p.shape[1]
    anchors = np.eye(k)
    predicted = p.argmax(1)
    for i in range(k):
        rows = np.flatnonzero(predicted == i)
        if len(rows) >= 6:
            surest = rows[np.argsort(-p[rows, i], kind="stable")[: len(rows) // 2]]
            anchors[i] = p[surest].mean(0)
    return anchors


def _unmixed(p: Array, unmix: Array) -> Array:
    return _normalised(np.maximum(p @ unmix, FLOOR))


def _tempered(f: Array, temperature: float) -> Array:
    z = np.log(f) / temperature
    z -= z.max(1, keepdims=True)
    return _normalised(np.exp(z, out=z))


def _fit_transition(f: Array, y: Labels, T: Array, steps: int = 60) -> tuple[Array, float]:
    """EM for T in P(y | x) = sum_i f_i T[i, y]; y is sorted. Returns T and the mean log-lik.

    Half a pseudo-count on the diagonal and half a one spread over each row keep rare classes sane.
    """
    k = f.shape[1]
    prior = 0.5 * np.eye(k) + 0.5 / k
    counts = np.bincount(y, minlength=k)
    present = np.flatnonzero(counts)
    starts = np.searchsorted(y, present)
    last = -np.inf
    for _ in range(steps):
        joint = f * np.repeat(T.T, counts, axis=0)
        given = joint.sum(1)
        likelihood = float(np.log(given).mean())
        if likelihood - last < 1e-6:
            break
        last = likelihood
        joint /= given[:, None]
        expected = prior.copy()
        expected[:, present] += np.add.reduceat(joint, starts, axis=0).T
        T = expected / expected.sum(1, keepdims=True)
    return T, likelihood


def _posterior(f: Array, y: Labels, T: np.ndarray) -> Array:
    """P(clean = i | x, y) by Bayes, [N, K]; f itself where T calls the label impossible."""
    column = T.T[y] if T.ndim == 2 else np.take_along_axis(T, y[:, None, None], 2)[..., 0]
    joint = f * column
    total = joint.sum(1, keepdims=True)
    possible = total > 0
    return np.where(possible, joint / np.where(possible, total, 1.0), f)


# --- the verdict ---------------------------------------------------------------------------


class _Judged(NamedTuple):
    """Per labelled row, and in sums over the rows."""

    p_wrong: Array
    quality: Array
    predicted: Labels
    predicted_prob: Array
    runner_up: Labels
    runner_up_prob: Array
    ambiguity: Array
    joint: Array  # [K, K] expected number of rows that are truly i and were given j
    rates: Array  # the noise rate according to each reading
    model_error: float  # expected share of rows whose likeliest clean class is not the truth


def _judge(known: _Known, readings: Sequence[_Reading]) -> _Judged:
    from scipy.sparse import csr_array  # here, as scipy takes a while to import

    n, k = len(known.rows), known.p.shape[1]
    columns = {name: np.empty(n) for name in ("wrong", "quality", "prob", "next", "ambiguity")}
    predicted, runner_up = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    joint, rates, doubt = np.zeros((k, k)), np.zeros(len(readings) + 1), 0.0
    for part, p, y, T in known.chunks():
        at = np.arange(len(y))
        clean = [reading.clean(p) for reading in readings]
        posts = [_posterior(f, y, r.transition) for f, r in zip(clean, readings, strict=True)]
        rates[:-1] += [len(y) - post[at, y].sum() for post in posts]
        if T is None:
            f, post = np.mean(clean, axis=0), np.mean(posts, axis=0)
            doubt += len(y) - clean[0].max(1).sum()
        else:
            f, post = p, _posterior(p, y, T)
            doubt += len(y) - p.max(1).sum()
        quality = post[at, y]
        rates[-1] += len(y) - quality.sum()
        joint += (csr_array((np.ones(len(y)), (y, at)), shape=(k, len(y))) @ post).T
        columns["quality"][part], columns["wrong"][part] = quality, 1 - quality
        second, first = np.partition(f, -2, axis=1)[:, -2:].T
        columns["ambiguity"][part] = 1 - (first - second)
        # A label that is more likely wrong than right is never suggested again.
        post[at, y] = np.where(quality < 0.5, -1.0, quality)
        predicted[part] = best = post.argmax(1)
        columns["prob"][part] = post[at, best]
        post[at, y], post[at, best] = -1.0, -2.0
        runner_up[part] = beside = post.argmax(1)
        columns["next"][part] = np.where(beside == y, quality, post[at, beside])
    return _Judged(
        np.clip(columns["wrong"], 0, 1),
        np.clip(columns["quality"], 0, 1),
        predicted,
        columns["prob"],
        runner_up,
        columns["next"],
        np.clip(columns["ambiguity"], 0, 1),
        joint,
        rates / n,
        doubt / n,
    )


def _summary(known: _Known, judged: _Judged, names: tuple[str, ...] | None) -> Audit:
    y = known.y[known.rows]
    flagged = judged.p_wrong > 0.5
    shown = np.array(names, dtype=object) if names else np.arange(known.p.shape[1])
    issues = pd.DataFrame(
        {
            "index": known.rows,
            "given_label": shown[y],
            "predicted_label": shown[judged.predicted],
            "label_quality": judged.quality,
            "is_label_issue": flagged,
            "predicted_prob": judged.predicted_prob,
            "p_wrong": judged.p_wrong,
            "ambiguity": judged.ambiguity,
            "runner_up_label": shown[judged.runner_up],
            "runner_up_prob": judged.runner_up_prob,
        }
    )
    rate = _interval(judged, len(y))
    n = len(y)
    return Audit(
        issues=issues,
        noise_rate=rate,
        num_errors=Estimate(rate * n, rate.low * n, rate.high * n),
        transition=_row_stochastic(judged.joint),
        per_class=_per_class(judged, y, flagged, shown),
        pairs=_pairs(judged, y, flagged, shown),
        names=names,
        notes=_notes(known),
        at_chance=_Agreement.of(known.p, known.y).is_chance,
        unjudged=len(known.y) - n,
    )


def _notes(known: _Known) -> list[str]:
    assumption = [NOTE_ASSUMPTION] if known.transition is None else []
    left_out = unlabelled(known.y, known.p.shape[1])
    return [*left_out, *weakness(known.p, known.y), *assumption, NOTE_OUT_OF_FOLD]


def unlabelled(y: Labels, num_classes: int) -> list[str]:
    """What to say of rows whose label is -1, for none. Refused where -1 was meant as a class.

    That is: one of two classes is missing, or of more the last, with -1 in many rows.
    """
    none = int((y == IGNORE).sum())
    if not none:
        return []
    missing = np.setdiff1d(np.arange(num_classes), y)
    many = none >= MANY_UNLABELLED * len(y) and num_classes - 1 in missing
    if len(missing) == 1 and (num_classes == 2 or many):
        raise BadInput(
            f"The labels hold -1, which means no label, and class {missing[0]} in no row; code the "
            f"classes as 0 to {num_classes - 1}."
        )
    return [f"{none} of {len(y)} rows {'has' if none == 1 else 'have'} no label (-1)."]


class _Agreement(NamedTuple):
    """How often the best guess is the given label."""

    share: float
    chance: float  # the same for guesses and labels that know nothing of each other
    error: float  # its standard deviation for such

    @staticmethod
    def of(p: np.ndarray, y: Labels) -> _Agreement:
        rows = np.flatnonzero(y != IGNORE)
        best, given = p[rows].argmax(1), y[rows]
        guess, label = (np.bincount(v, minlength=p.shape[1]) / len(rows) for v in (best, given))
        chance = float(guess @ label)
        # Fleiss, Cohen and Everitt (1969). The share's binomial is far too large where one class is
        # frequent: it would hide a perfect model of a rare class.
        variance = chance + chance**2 - float((guess * label) @ (guess + label))
        error = math.sqrt(max(0.0, variance) / len(rows))
        return _Agreement(float((best == given).mean()), chance, error)

    @property
    def is_chance(self) -> bool:
        """Is Cohen's kappa (1960) below CHANCE, or not surely (95 %, one-sided) above it?

        Guessing the largest class always has kappa 0, however often that is right.
        """
        return self.share - 1.645 * self.error - self.chance < CHANCE * (1 - self.chance)


def weakness(p: np.ndarray, y: Labels) -> list[str]:
    """What to say of probabilities [N, K] that seldom agree with the labels [N], if they do."""
    found = _Agreement.of(p, y)
    if found.is_chance:
        return [NOTE_CHANCE.format(share=100 * found.share, chance=100 * found.chance)]
    return [NOTE_WEAK.format(share=100 * found.share)] if found.share < WEAK else []


def _interval(judged: _Judged, n: int) -> Estimate:
    """Mean p_wrong; the readings' span, widened by half the model's own expected errors (each
    could be taken for a label error, or hide one) and by 1.96 binomial standard errors."""
    rate = float(judged.p_wrong.mean())
    widen = 0.5 * judged.model_error + 1.96 * np.sqrt(max(rate * (1 - rate), 1 / n) / n)
    low, high = judged.rates.min() - widen, judged.rates.max() + widen
    return Estimate(rate, max(low, 0.0), min(high, 1.0))


def _row_stochastic(joint: Array) -> Array:
    total = joint.sum(1, keepdims=True)
    return np.where(total > 0, joint / np.where(total > 0, total, 1.0), np.eye(len(joint)))


def _per_class(judged: _Judged, y: Labels, flagged: np.ndarray, shown: np.ndarray) -> pd.DataFrame:
    k = len(shown)
    count = np.bincount(y, minlength=k)
    wrong = np.bincount(y, judged.p_wrong, minlength=k)
    return pd.DataFrame(
        {
            "label": shown,
            "given": count,
            "issues": np.bincount(y, flagged, minlength=k).astype(np.int64),
            "expected_errors": wrong,
            "noise_rate": np.divide(wrong, count, out=np.zeros(k), where=count > 0),
            "expected_true": judged.joint.sum(1),
            "lost_rate": 1 - np.diag(_row_stochastic(judged.joint)),
        }
    )


def _pairs(judged: _Judged, y: Labels, flagged: np.ndarray, shown: np.ndarray) -> pd.DataFrame:
    """Given -> true pairs by expected number of errors, those of at least half a row."""
    k = len(shown)
    found = np.bincount(y[flagged] * k + judged.predicted[flagged], minlength=k * k)
    off = judged.joint.T * (1 - np.eye(k))  # [given, true]
    given, true = np.nonzero(off >= 0.5)
    table = pd.DataFrame(
        {
            "given_label": shown[given],
            "predicted_label": shown[true],
            "expected_errors": off[given, true],
            "issues": found.reshape(k, k)[given, true],
        }
    )
    return table.sort_values("expected_errors", ascending=False, ignore_index=True, kind="stable")


# --- baselines: label quality, low = bad ----------------------------------------------------


def self_confidence(pred_probs: Array, y: Labels) -> Array:
    """The probability of the given label."""
    return np.asarray(pred_probs)[np.arange(len(y)), y]


def margin(pred_probs: Array, y: Labels) -> Array:
    """p[y] minus the largest other probability, moved to [0, 1]."""
    p = np.array(pred_probs, dtype=np.float64)
    at = np.arange(len(p))
    own = p[at, y].copy()
    p[at, y] = -np.inf
    return (own - p.max(1) + 1) / 2


def confident_learning(pred_probs: Array, y: Labels) -> Array:
    """Confident learning, pruned by noise rate (Northcutt et al., 2021, 3.2); below 0.5 = pruned.

    For every given j and true i, the joint's number of rows with the largest p_i - p_j go. The
    margin ranks within the pruned and within the kept.
    """
    p, y = np.asarray(pred_probs, dtype=np.float64), np.asarray(y, dtype=np.int64)
    share = confident_joint(torch.from_numpy(p), torch.from_numpy(y)).joint.numpy()
    joint = np.rint(share * len(y)).astype(np.int64)  # [true, given]
    pruned = np.zeros(len(y), dtype=bool)
    for j in range(p.shape[1]):
        rows = np.flatnonzero(y == j)
        for i in np.flatnonzero(joint[:, j]):
            if i != j:
                gap = p[rows, i] - p[rows, j]
                pruned[rows[np.argsort(-gap, kind="stable")[: joint[i, j]]]] = True
    return margin(p, y) / 2 + np.where(pruned, 0.0, 0.5)


def knn_vote(features: Array, y: Labels, k: int = 10) -> Array:
    """The share of the k nearest other rows (Euclidean) that carry the same label."""
    from sklearn.neighbors import NearestNeighbors

    x, y = np.asarray(features).reshape(len(y), -1), np.asarray(y)
    k = min(k, len(y) - 1)
    near = NearestNeighbors(n_neighbors=k).fit(x).kneighbors(return_distance=False)
    return (y[near] == y[:, None]).mean(1)


def small_loss(pred_probs: Array, y: Labels) -> Array:
    """P(small-loss component) of a two-Gaussian mixture of -log p[y] (DivideMix, sec. 3.1)."""
    from sklearn.mixture import GaussianMixture

    loss = -np.log(np.maximum(self_confidence(pred_probs, y), 1e-12))[:, None]
    loss = (loss - loss.min()) / max(np.ptp(loss), 1e-12)
    mixture = GaussianMixture(2, reg_covar=5e-4, max_iter=100, random_state=0).fit(loss)
    return mixture.predict_proba(loss)[:, mixture.means_.ravel().argmin()]


def aum(margins: Array) -> Array:
    """Area under the margin: Pleiss et al. (2020), eq. 1, squashed to [0, 1].

    margins [epochs, N]: logit of the given label minus the largest other logit, every epoch.
    """
    return 1 / (1 + np.exp(-np.asarray(margins, dtype=np.float64).mean(0)))


BASELINES = {
    "self_confidence": self_confidence,
    "margin": margin,
    "confident_learning": confident_learning,
    "small_loss": small_loss,
}


# --- input and output ----------------------------------------------------------------------


def _as_numpy(values: np.ndarray | Tensor | pd.DataFrame | Sequence) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def _normalised(f: Array) -> Array:
    f /= f.sum(1, keepdims=True)
    return f


def _labels(
    y: Sequence | np.ndarray | Tensor, p: np.ndarray, names: Sequence[str] | None
) -> tuple[Labels, tuple[str, ...] | None]:
    """Checks probabilities and labels; returns class numbers and the classes' names."""
    if p.ndim != 2 or p.shape[1] < 2 or not np.issubdtype(p.dtype, np.number):
        raise BadInput(f"pred_probs must be numbers [rows, classes >= 2], not {p.shape}.")
    given = _as_numpy(y)
    if given.shape != p.shape[:1] or not given.size:
        raise BadInput(f"There are {given.shape} labels for {len(p)} rows of pred_probs.")
    k = p.shape[1]
    shown = tuple(str(name) for name in names) if names is not None else None
    if shown is not None and len(set(shown)) < len(shown):
        raise BadInput(f"The class names must all be different: {', '.join(shown)}.")
    if given.dtype.kind == "O" and all(isinstance(label, Integral) for label in given):
        given = given.astype(np.int64)  # pandas' Int64, or a list that was a column of objects
    if not np.issubdtype(given.dtype, np.number):
        if (empty := np.flatnonzero(pd.isna(given))).size:
            raise BadInput(f"There is no label in {which_rows(empty)}; fill it in, or give -1.")
        shown = shown or tuple(sorted({str(label) for label in given}))
        number = {name: i for i, name in enumerate(shown)}
        unknown = next((label for label in given if str(label) not in number), None)
        if unknown is not None:
            raise BadInput(f"The label {str(unknown)!r} is not among the names of the classes.")
        given = np.array([number[str(label)] for label in given])
    if shown is not None and len(shown) != k:
        raise BadInput(
            f"There are {len(shown)} class names but {k} columns of pred_probs; give names=, one "
            "for each column."
        )
    if (given != np.rint(given)).any() or given.min() < IGNORE or given.max() >= k:
        raise BadInput(f"Labels must be classes 0 to {k - 1}, or -1 for none.")
    if (given == IGNORE).all():
        raise BadInput("Every label is -1, so there is nothing to audit.")
    size = max(1, CHUNK // k)
    for start in range(0, len(p), size):
        part = p[start : start + size]
        total = part.sum(1, dtype=np.float64)
        if not np.isfinite(total).all() or part.min() < 0 or np.abs(total - 1).max() > 0.01:
            raise BadInput("Each row of pred_probs must be non-negative and sum to 1.")
    return given.astype(np.int64), shown


def _transitions(transition: np.ndarray | Tensor | None, p: np.ndarray) -> np.ndarray | None:
    if transition is None:
        return None
    T = _as_numpy(transition)
    n, k = p.shape
    if T.shape not in ((k, k), (n, k, k)):
        raise BadInput(f"transition has shape {T.shape}, not {(k, k)} or {(n, k, k)}.")
    if not (T.min() >= -1e-6 and np.abs(T.sum(-1) - 1).max() < 0.01):
        raise BadInput(
            "Rows of transition must sum to 1: T[i, j] = P(given j | true i), the transpose of "
            "cleanlab's noise matrix."
        )
    return np.maximum(T, 0) if T.min() < 0 else T


def _records(table: pd.DataFrame) -> list[dict]:
    return json.loads(table.to_json(orient="records", double_precision=10))
