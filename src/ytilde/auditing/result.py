"""What an audit found: a row for every label, the sums over them, and the files they go to."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd

from ..data import BadInput, plural
from ..data.ids import own_text
from ..files import csv_text, write_atomic, write_csv, write_text
from ..hashing import digest_of
from ..outputs import check_replaceable
from ..signing import sign
from .checked import Count
from .context import ReportContext
from .estimate import Estimate
from .inputs import Array
from .issues import records, worst_first, write_issues
from .similar import Similar, similar_rows
from .totals import Totals

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
        >>> import numpy as np
        >>> from ytilde import audit
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
