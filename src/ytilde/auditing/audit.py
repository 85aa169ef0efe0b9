"""Which labels are wrong? An audit of anybody's (out-of-fold) probabilities against the labels.

Probabilities and labels alone cannot tell a wrong label from a hard example, so the audit reads
them twice, leniently and strictly (see `readings`). `p_wrong` is the mean of the two; their
distance is the model's share of the interval.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ..data import IGNORE, BadInput, plural
from ..data.ids import own_text
from ..data.readers.stream import ProbabilityFiles
from ..files import csv_text, write_atomic, write_csv, write_text
from ..hashing import digest_of
from ..outputs import check_outputs, check_replaceable
from ..signing import sign
from .blocks import total
from .checked import Count, check_checked, count
from .context import ReportContext
from .crowd import judge_votes
from .estimate import Estimate
from .inputs import Array, as_numpy, check_features, check_labels, check_transition
from .issues import issue_columns, issues_frame, records, worst_first, write_issues
from .neighbourhood import neighbourhood
from .notes import NOTE_ASSUMPTION, notes
from .panel import panel
from .passes import Table, audit_table
from .readings import Evidence, fit_readings
from .recalibration import recalibrate
from .sample import members
from .sampling import Reviewed
from .similar import Similar, similar_rows
from .totals import Totals
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

TEXT = 1000  # characters of a text in issues.csv


@dataclass(frozen=True, repr=False)
class Audit:
    """What `audit` found.

    Attributes:
        issues: a row for every labelled example, in the order given, with cleanlab's names: index,
            given_label, predicted_label, label_quality in [0, 1] (low = bad), is_label_issue
            (worth a look: p_wrong above one half, or, where these are fewer than the wrong labels
            expected, among the likeliest of the others); and predicted_prob (of the predicted
            label), p_wrong, ambiguity in [0, 1] (two classes tie), runner_up_label and
            runner_up_prob: the likeliest class beside the given and the predicted one, or, of two
            classes or a label in the balance, the given one. With features also
            near_duplicate (a row, -1 = none), duplicate_set, is_duplicate_conflict, outlier_score
            in [0, 1), is_outlier.
        noise_rate: the share of wrong labels; `.low` and `.high` are its 95 % interval.
        num_errors: the number of wrong labels, likewise.
        transition: T[i, j] = P(given j | true i), rows sum to 1, [K, K].
        per_class: the same figures for each class.
        pairs: which class is taken for which, and how often.
        names: of the classes, where there are names.
        notes: what a reader should know, a sentence each.
        context: what the report shows beside the figures, such as pictures.
        at_chance: the model agrees with the labels as chance does: nothing can be told.
        unjudged: rows without a label, or whose image cannot be read.
        checked: what rows checked by hand say of the count, where a random sample of them was; the
            noise rate and the number of errors are then its own, and hold whatever the model is.
        whole: of an audit of files: what all their rows add up to; `issues` are then the worst
            10,000 suspects and some ambiguous rows, and every row is in the parquet file `out`.
        annotators: of several annotators: how good each is, the model among them.
        votes: of several annotators: each vote with its p_wrong.

    Example:
        >>> probs = np.array([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50)
        >>> found = audit(probs, [0] * 45 + [1] * 55)
        >>> int(found.issues.is_label_issue.sum()), found.transition.shape
        (5, (2, 2))
    """

    issues: pd.DataFrame
    noise_rate: Estimate
    num_errors: Estimate
    transition: Array
    per_class: pd.DataFrame
    pairs: pd.DataFrame
    names: tuple[str, ...] | None = None
    notes: list[str] = field(default_factory=list)
    context: ReportContext = field(default_factory=ReportContext)
    at_chance: bool = False  # the model agrees with the labels as chance does: nothing can be told
    unjudged: int = 0  # rows without a label, or whose image cannot be read
    checked: Count | None = None  # what a random sample of checked rows says
    whole: Totals | None = None  # what all rows add up to, where `issues` are some of them
    annotators: pd.DataFrame | None = None
    votes: pd.DataFrame | None = None
    second_opinion: bool = False  # did others than the model judge: neighbours, annotators?

    def __repr__(self) -> str:
        return f"<Audit: {self.summary()}>"

    @property
    def totals(self) -> Totals:
        """What all rows that were judged add up to."""
        return Totals.of(self.issues) if self.whole is None else self.whole

    def summary(self) -> str:
        """A few sentences for a person."""
        n, found = int(self.totals.rows[0]), int(self.totals.flagged[0])
        if self.at_chance and self.checked is None:
            return f"Nothing can be said of these {n} labels: the model knows no more than chance."
        low, high = round(self.num_errors.low), round(self.num_errors.high)
        left_out = f" {self.unjudged} of {n + self.unjudged} rows could not be judged."
        likely = int(self.totals.likely[0])
        told = f"{likely} {'is' if likely == 1 else 'are'} more likely wrong than right"
        told += f"; {found} are worth a look." if found > likely else "."
        if self.at_chance:
            told = "Which ones cannot be told: the model knows no more than chance."
        drawn = self.checked.drawn if self.checked else 0
        by_hand = f", checked by hand: {plural(drawn, 'row')}" if drawn else ""
        return (
            f"About {round(self.num_errors)} of {n} labels are wrong "
            f"({100 * self.noise_rate:.1f} %; 95 % interval {low} to {high}{by_hand}). "
            f"{told}{left_out if self.unjudged else ''}"
        )

    def fixed_labels(self, above: float) -> pd.DataFrame:
        """The labels, with the suggestion in the place of those that are probably wrong.

        A model at chance level (`at_chance`) fixes none, and a bad item of a review has no class
        that could be put in its place.

        Args:
            above: the smallest p_wrong of a label that is replaced.
        """
        if not isinstance(above, Real) or not 0 <= above <= 1:  # NaN too
            raise BadInput(f"above is a probability from 0 to 1, not {above}")
        if self.whole is not None:
            raise BadInput("an audit of files keeps some rows only; fix labels by the parquet file "
                           "that it wrote")  # fmt: skip
        sure = (self.issues.p_wrong > max(above, 0.5)) & (not self.at_chance)
        sure &= self.issues.predicted_prob > 0
        label = self.issues.predicted_label.where(sure, self.issues.given_label)
        fix = label != self.issues.given_label
        columns = {"index": self.issues["index"], "label": label, "fixed": fix}
        return self._named(pd.DataFrame(columns | {"given_label": self.issues.given_label}))

    @cached_property
    def similar(self) -> dict[int, Similar]:
        """Rows to compare a suspect with, by its row; none where the context has no features."""
        if self.context.features is None or self.at_chance:
            return {}
        suspects = worst_first(self.issues[self.issues.is_label_issue])
        return similar_rows(self.issues, suspects, self.context.features)

    def with_classes(self, classes: Sequence[Any]) -> Audit:
        """The same in the classes' own values, one for each of `names`: 7 instead of "7"."""
        own = dict(zip(self.names or (), classes, strict=True))

        def told(table: pd.DataFrame) -> pd.DataFrame:
            labels = [column for column in table.columns if column.endswith("label")]
            return table.assign(**{column: table[column].map(own) for column in labels})

        issues, per_class, pairs = map(told, (self.issues, self.per_class, self.pairs))
        return replace(self, issues=issues, per_class=per_class, pairs=pairs)

    def _named(self, table: pd.DataFrame) -> pd.DataFrame:
        """With the ids and the image files of the rows, where they are known."""
        ids, paths = self.context.ids, self.context.paths
        if ids is not None:
            table = table.copy()
            table.insert(1, "id", [own_text(ids[i]) for i in table["index"]])
        return table if paths is None else table.assign(path=[paths[i] for i in table["index"]])

    def to_cleanlab(self) -> Array:
        """T as cleanlab has its noise_matrix: [given, true], columns sum to 1."""
        return self.transition.T

    def to_csv(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes `issues`, the worst first; formulas that a spreadsheet would run are harmless.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "issues", force)
        write_csv(Path(path), self._csv())

    def _csv(self) -> pd.DataFrame:
        table = self._named(worst_first(self.issues))
        name = self.context.text_column
        shown = None if name is None else self.context.shown(table["index"].tolist())
        if shown is None:
            return table
        from .pages import text_of  # pages bring jinja2

        return table.assign(text=[text_of(text, TEXT) for text in shown[name]])

    def to_parquet(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes `issues` in their own order, numbers in float32: what an audit of files writes.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "issues parquet", force)
        write_atomic(Path(path), lambda temporary: write_issues(self._ids(), self.names, temporary))

    def _ids(self) -> pd.DataFrame:
        ids, table = self.context.ids, self.issues
        own = None if ids is None else [own_text(ids[i]) for i in table["index"]]
        return table if own is None else table.assign(id=own)[["index", "id", *table.columns[1:]]]

    def to_json(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes the figures, the tables and the flagged rows (the rest are in the csv).

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "audit", force)
        figures = {
            name: {"value": float(e), "low": e.low, "high": e.high}
            for name, e in (("noise_rate", self.noise_rate), ("num_errors", self.num_errors))
        }
        flagged = worst_first(self.issues[self.issues.is_label_issue])
        if self.context.ids is not None:
            ids = [own_text(self.context.ids[i]) for i in flagged["index"]]
            flagged = flagged.assign(id=ids)
        issues = records(flagged)
        for issue in issues:
            if near := self.similar.get(issue["index"]):
                issue["similar"] = near._asdict()
        tables = {
            "per_class": records(self.per_class),
            "pairs": records(self.pairs),
            "issues": issues,
        }
        everything = {
            "rows": int(self.totals.rows[0]),
            "unjudged": self.unjudged,
            "at_chance": self.at_chance,
            "checked": self.checked and self.checked.to_dict(),
            **figures,
            "names": list(self.names) if self.names else None,
            "transition": self.transition.tolist(),
            "notes": self.notes,
            # a review's sample is shown from it
            "issues_csv": digest_of(csv_text(self._csv())) if self.whole is None else None,
            **tables,
        }
        text = json.dumps(sign(everything), ensure_ascii=False, allow_nan=False, indent=1)
        write_text(Path(path), text)

    def to_html(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes the report, with what `context` holds.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        from . import report  # the report stands above the audit, so it is met only here

        check_replaceable(Path(path), "report", force)
        report.write(self, path)

    def to_label_studio(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes the flagged rows as Label Studio tasks, and their labelling config beside (.xml).

        The suggestion is each task's prediction; pictures are in the file.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        from . import exporters

        exporters.write_label_studio(self, Path(path), force)

    def to_argilla(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes the flagged rows as Argilla records: `dataset.records.from_json(path)`.

        The dataset needs a LabelQuestion "label" and a field "image" (ImageField) or "item" (text).

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        from . import exporters

        exporters.write_argilla(self, Path(path), force)


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
