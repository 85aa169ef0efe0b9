"""Which labels are wrong? An audit of anybody's (out-of-fold) probabilities against the labels.

Probabilities and labels alone cannot tell a wrong label from a hard example, so the audit weighs
several readings of them (see `readings`). `p_wrong` is their mean; how far they differ is the
model's share of the interval.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ..data import IGNORE, BadInput
from ..data.readers.stream import ProbabilityFiles
from ..outputs import check_outputs
from .blocks import total
from .checked import check_checked, count
from .crowd import judge_votes
from .estimate import Estimate
from .inputs import Array, as_numpy, check_features, check_labels, check_transition
from .issues import issue_columns, issues_frame
from .neighbourhood import neighbourhood
from .notes import NOTE_ASSUMPTION, notes
from .panel import panel
from .passes import Table, audit_table
from .readings import Evidence, fit_readings
from .recalibration import recalibrate
from .result import Audit
from .sample import members
from .sampling import Reviewed
from .verdict import (
    Counts,
    Rows,
    Verdict,
    cut_of,
    interval,
    judge,
    pairs,
    per_class,
    row_stochastic,
    suspects,
)


def audit(
    pred_probs: np.ndarray | Tensor | pd.DataFrame | str | os.PathLike[str],
    y: Sequence | np.ndarray | Tensor | str | None = None,
    *,
    transition: np.ndarray | Tensor | None = None,
    names: Sequence[str] | None = None,
    features: np.ndarray | Tensor | pd.DataFrame | None = None,
    checked: Mapping[int, Any] | Sequence[Any] | np.ndarray | Reviewed | None = None,
    drawn: Sequence[float] | np.ndarray | None = None,
    annotations: Any = None,
    probabilities: str = "p_*",
    id_column: str | None = None,
    out: str | os.PathLike[str] | None = None,
    ray: bool = False,
    force: bool = False,
) -> Audit:
    """Judges every label by the probabilities of a model that did not see it.

    Args:
        pred_probs: [N, K], of the clean label (a robust method) or of the given one (any
            classifier); a DataFrame's columns may be the classes' names. Or the path of a parquet
            file, or of a folder of them, of any size: they are read in parts, twice, and the
            memory that it takes does not grow with them.
        y: labels [N], classes 0..K-1 or names, -1 = no label. Of files, the name of their column;
            None: the one called label or y.
        transition: T, [K, K] or [N, K, K]. The probabilities are then taken as the clean posterior
            f and P(clean = i | x, y = j) = f_i T_ij / sum_k f_k T_kj; without, both are estimated
            (see above).
        names: of the classes; None: the DataFrame's columns, if these are texts, or else the labels
            sorted.
        features: numbers [N, ...] that describe the rows, such as embeddings. Neighbours and a
            linear model then judge beside the model, without the row's label; that tells a weak
            model from wrong labels, so give them wherever you can.
        checked: true labels of rows that somebody looked at, {row: label}, or one for each row (-1,
            None or NaN: not known). They are taken for a random sample; the count and its interval
            then rest on them and hold whatever the model is, and p_wrong is recalibrated.
        drawn: the probability that each row [N] had of being checked, where it was not the same for
            all; 1: it was chosen, not drawn.
        annotations: instead of y, the votes of several annotators: a matrix [N, annotators], -1 or
            NaN where there is none, or a table (task, worker, label) whose tasks are rows. What is
            judged is their consensus, by the votes and the model together, which counts as one
            more annotator.
        probabilities: of files, the columns with the probabilities; the star is the class. Or the
            name of one column of lists.
        id_column: of files, the column that names the rows.
        out: of files, the parquet file to write, a row for every labelled row, in their order.
        ray: of files, work on the Ray cluster that this process is connected to, or else on a local
            one; all its machines must see the files under the same path.
        force: replace a file `out` that is no such output of ytilde.

    Returns:
        The verdict on every label, the noise rate with its interval, and T; of several annotators,
        how good each of them is.

    Example:
        >>> probs = np.array([[0.95, 0.05]] * 60 + [[0.05, 0.95]] * 40)
        >>> found = audit(probs, ["cat"] * 57 + ["dog"] * 43)
        >>> found.issues[found.issues.is_label_issue].predicted_label.tolist()
        ['cat', 'cat', 'cat']
    """
    if isinstance(pred_probs, str | os.PathLike):
        others = (transition, names, features, checked, drawn, annotations)
        if any(each is not None for each in others) or not isinstance(y, str | None):
            raise BadInput("An audit of files takes the label's column (y=), probabilities, "
                           "id_column, out, ray and force, and nothing else.")  # fmt: skip
        table = ProbabilityFiles(os.fspath(pred_probs), probabilities, y, id_column)
        return audit_files(table, None if out is None else Path(out), ray, force)
    if id_column is not None or out is not None or ray:
        raise BadInput(
            "id_column, out and ray are for an audit of files; give a path as pred_probs"
        )
    p = as_numpy(pred_probs, "pred_probs")
    if names is None and isinstance(pred_probs, pd.DataFrame):
        columns = list(pred_probs.columns)
        names = columns if all(isinstance(name, str) for name in columns) else None
    if (y is None) == (annotations is None):
        raise BadInput("audit needs y, one label a row, or annotations, several; give one of them.")
    if y is None:
        if transition is not None or features is not None:
            raise BadInput("transition and features are for y; of annotators T is estimated.")
        return _audit_votes(p, annotations, names, checked, drawn)
    given, names = check_labels(y, p, names)
    rows = np.flatnonzero(given != IGNORE)
    if features is None:
        evidence = Evidence(p, given, rows, check_transition(transition, p), ())
        return _judged(evidence, names, checked, drawn)
    seen = check_features(features, len(p))
    judges = panel(seen, given, p.shape[1])
    evidence = Evidence(p, given, rows, check_transition(transition, p), judges)
    found, beside = _judged(evidence, names, checked, drawn), neighbourhood(seen, given)
    told = [*found.notes, *beside.notes]
    return replace(found, issues=found.issues.assign(**beside.columns), notes=told)


def audit_files(
    table: Table, out: Path | None = None, ray: bool = False, force: bool = False
) -> Audit:
    """The audit of a table that is read in blocks; every row goes to the parquet file `out`."""
    if out is not None:
        check_outputs([(out, "issues parquet")], getattr(table, "files", ()), force)
    if ray:
        from .on_ray import on_ray as map_parts
    else:
        from .passes import in_threads as map_parts
    found = audit_table(table, out, map_parts)
    counts, n = found.together.counts, int(found.together.counts.given.sum())
    verdict = Verdict.of(Rows.empty(0), found.together.sums, n)
    shown, names = found.shown, tuple(table.names)
    ids = dict(zip(shown["index"], shown.pop("id"), strict=True)) if "id" in shown else None
    audited = _figures(shown, verdict, counts, names, unjudged=found.unjudged)
    audited.context.ids = ids  # type: ignore[assignment]
    return replace(audited, whole=found.together.totals)


def _audit_votes(p: Array, annotations: Any, names: Any, checked: Any, drawn: Any) -> Audit:
    """The audit of a consensus: `readings` have no part in it, for the votes tell how far to trust
    the model."""
    crowd, k = judge_votes(p, annotations, names), p.shape[1]
    heard = np.full((k, k), 1 / k)  # a T that says nothing: the posterior has heard the votes
    evidence = Evidence(crowd.probs, crowd.given, np.arange(len(p)), heard)
    found = _judged(evidence, crowd.names, checked, drawn)
    told = [*found.notes, *crowd.notes]
    return replace(
        found, annotators=crowd.annotators, votes=crowd.votes, notes=told, second_opinion=True
    )


def _judged(evidence: Evidence, names: tuple[str, ...] | None, checked: Any, drawn: Any) -> Audit:
    verdict = judge(evidence)
    if checked is None:
        return _summary(evidence, verdict, names)
    return _with_checked(evidence, verdict, names, checked, drawn)


def overlap(pred_probs: np.ndarray | Tensor, y: np.ndarray | Tensor) -> float:
    """How far the classes overlap: the share of rows whose likeliest class is expected not to be
    the truth, in the reading that believes most in clear classes."""
    p = as_numpy(pred_probs, "pred_probs")
    given, _ = check_labels(y, p, None)
    evidence = Evidence(p, given, np.flatnonzero(given != IGNORE), None)
    return min(fit_readings(evidence).model_errors)


def _with_checked(
    evidence: Evidence, verdict: Verdict, names: tuple[str, ...] | None, checked: Any, drawn: Any
) -> Audit:
    """The audit of rows some of which were checked."""
    y, rows, k = evidence.y, evidence.rows, evidence.p.shape[1]
    if isinstance(checked, Reviewed):
        found = checked.of_rows(rows, len(y), k, np.lexsort((-verdict.p_wrong, verdict.quality)))
    else:
        order = np.zeros(len(y))
        order[rows] = verdict.p_wrong
        found = check_checked(checked, drawn, y, names, k, order).at(rows)
    wrong = (found.truth != y[rows]) & (found.truth != IGNORE)
    by_hand = count(found, wrong, verdict.p_wrong)
    audited = _summary(evidence, recalibrate(verdict, y[rows], found), names)
    if isinstance(checked, Reviewed):
        audited.notes[:0] = checked.notes()
    if by_hand is None:
        return audited
    n = len(rows)
    told = [note for note in audited.notes if note != NOTE_ASSUMPTION]
    return replace(
        audited,
        checked=by_hand,
        num_errors=Estimate(*by_hand[:3]),
        noise_rate=Estimate(*(value / n for value in by_hand[:3])),
        notes=[by_hand.told(), *told],
    )


def _summary(evidence: Evidence, verdict: Verdict, names: tuple[str, ...] | None) -> Audit:
    def counted() -> Iterator[tuple[int, Counts]]:
        for first, part in evidence.blocks():
            p = evidence.p[evidence.rows[part]]
            yield first, Counts.of(p, y[part], rows.at(part), flagged[part])

    y = evidence.y[evidence.rows]
    in_sample = members(evidence.rows, evidence.p.shape[1])
    flagged = suspects(verdict.p_wrong, cut_of(verdict.p_wrong[in_sample]))
    rows = verdict.by_row.suggesting(y, flagged)
    columns = issue_columns(evidence.rows, y, rows, flagged)
    return _figures(
        issues_frame(columns, names),
        verdict,
        total(counted()),
        names,
        unjudged=len(evidence.y) - len(y),
        has_t=evidence.transition is not None,
        has_panel=bool(evidence.panel),
    )


def _figures(
    issues: pd.DataFrame,
    verdict: Verdict,
    counts: Counts,
    names: tuple[str, ...] | None,
    *,
    unjudged: int,
    has_t: bool = False,
    has_panel: bool = False,
) -> Audit:
    """The audit, by what its rows add up to."""
    n, joint, agreement = int(counts.given.sum()), verdict.joint, counts.agreement
    rate = Estimate(*interval(float(counts.wrong.sum()), verdict.rates, verdict.model_error, n))
    shown = np.array(names, dtype=object) if names else np.arange(len(joint))
    error = verdict.model_error if has_panel else None
    return Audit(
        issues=issues,
        noise_rate=rate,
        num_errors=Estimate(rate * n, rate.low * n, rate.high * n),
        transition=row_stochastic(joint),
        per_class=per_class(joint, counts, shown),
        pairs=pairs(joint, counts, shown),
        names=names,
        notes=notes(counts.given, unjudged, agreement, error, has_t),
        at_chance=agreement.is_chance,
        unjudged=unjudged,
        second_opinion=has_panel,
    )
