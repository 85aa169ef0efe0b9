"""Several labels a row, each there or not: one audit a class, and one ranking of all.

A class is a question with two answers, so its audit is the ordinary one of two classes. p_wrong is
a probability, so that of one class can be compared with that of another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ..data import IGNORE, BadInput, plural
from ..errors import shorten_list, which_rows
from ..files import write_csv, write_text
from ..outputs import check_replaceable
from ..signing import sign
from .audit import audit
from .estimate import Estimate
from .inputs import as_numpy
from .pages import own_parts, template, text_of
from .result import Audit

FEWEST = 5  # rows that have a class, and that have it not, from which on it is audited
SHOWN = 300  # entries of the report
LONGEST = 400  # characters of a row's values there


@dataclass(frozen=True, repr=False)
class MultiLabelAudit:
    """What `audit_multilabel` found.

    Attributes:
        issues: an entry for every row and class, the surest error first: index, label (the class),
            given (is it among the row's labels), predicted (should it be), p_wrong,
            label_quality in [0, 1] (low = bad) and is_label_issue.
        rows: for every row: index, p_any_wrong (that one of its entries is wrong),
            expected_errors, and the class of its surest error.
        per_class: for every class: how often it is given, the expected errors, the noise rate with
            its interval, and the suspects.
        num_errors: wrong entries of the whole matrix; the interval adds up those of the classes.
        audits: the audit of each class that could be audited, by its name.
        notes: what a reader should know, a sentence each.

    Example:
        >>> probs = np.array([[0.9, 0.1], [0.2, 0.8]] * 30)
        >>> labels = np.array([[1, 0], [0, 1]] * 30)
        >>> labels[0] = [0, 0]
        >>> audit_multilabel(probs, labels).issues.iloc[0][["index", "label", "predicted"]].tolist()
        [0, '0', True]
    """

    issues: pd.DataFrame
    rows: pd.DataFrame
    per_class: pd.DataFrame
    num_errors: Estimate
    audits: dict[str, Audit]
    notes: list[str] = field(default_factory=list)
    ids: Sequence[str] | None = None
    texts: Callable[[Sequence[int]], pd.DataFrame] | None = None

    def __repr__(self) -> str:
        return f"<MultiLabelAudit: {self.summary()}>"

    def summary(self) -> str:
        """A few sentences for a person."""
        found, n = int(self.issues.is_label_issue.sum()), len(self.issues)
        low, high = round(self.num_errors.low), round(self.num_errors.high)
        return (
            f"About {round(self.num_errors)} of {n} entries ({len(self.rows)} rows, "
            f"{len(self.per_class)} classes) are wrong (95 % interval {low} to {high}). "
            f"{found} {'is' if found == 1 else 'are'} more likely wrong than right."
        )

    def to_csv(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes `issues`.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "multi-label issues", force)
        table = self.issues
        if self.ids is not None:
            table = table.copy()
            table.insert(1, "id", [self.ids[row] for row in table["index"]])
        write_csv(Path(path), table)

    def to_json(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Writes the figures and the table of classes.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
        """
        check_replaceable(Path(path), "multi-label audit", force)
        errors = self.num_errors
        figures = {"value": float(errors), "low": errors.low, "high": errors.high}
        classes = json.loads(self.per_class.to_json(orient="records"))
        everything = {
            "rows": len(self.rows), "entries": len(self.issues), "num_errors": figures,
            "notes": self.notes, "classes": classes,
        }  # fmt: skip
        write_text(Path(path), json.dumps(sign(everything), ensure_ascii=False, indent=1))

    def to_html(
        self, path: str | os.PathLike[str], force: bool = False, title: str = "multi-label audit"
    ) -> None:
        """Writes a page with the classes and the surest errors.

        Args:
            path: of the file.
            force: replace a file that is no such output of ytilde.
            title: of the page.
        """
        check_replaceable(Path(path), "report", force)
        flagged = self.issues[self.issues.is_label_issue].head(SHOWN)
        numbers = list(dict.fromkeys(flagged["index"].tolist()))
        texts = self.texts(numbers) if self.texts and numbers else None
        entries = [
            {
                "row": issue["index"],
                "id": text_of(self.ids[issue["index"]]) if self.ids else None,
                "label": text_of(issue["label"]),
                "given": issue["given"],
                "p_wrong": issue["p_wrong"],
                "text": _told(texts, issue["index"]),
            }
            for issue in flagged.to_dict("records")
        ]
        classes = [
            record | {"label": text_of(record["label"])}
            for record in self.per_class.to_dict("records")
        ]
        page = template("report/multilabel.html.j2").render(
            title=text_of(title), summary=self.summary(), notes=map(text_of, self.notes),
            classes=classes, entries=entries, found=int(self.issues.is_label_issue.sum()),
            style=own_parts("report").style,
        )  # fmt: skip
        write_text(Path(path), page.encode("utf-8", "replace").decode())


def _told(texts: pd.DataFrame | None, row: int) -> str | None:
    if texts is None:
        return None
    values = (f"{name}: {value}" for name, value in texts.loc[row].items())
    return text_of("; ".join(values), LONGEST)


def audit_multilabel(
    pred_probs: np.ndarray | Tensor | pd.DataFrame,
    labels: np.ndarray | Tensor | pd.DataFrame,
    *,
    names: Sequence[str] | None = None,
    features: np.ndarray | Tensor | pd.DataFrame | None = None,
) -> MultiLabelAudit:
    """Judges every entry of a label matrix by a model that did not see it.

    Args:
        pred_probs: [N, K] in [0, 1]: the probability that a row has a class; rows need not sum to
            1. A DataFrame's columns may be the classes' names.
        labels: [N, K], 1: the row has the class, 0: it has it not, -1: not known.
        names: of the classes.
        features: numbers [N, ...] that describe the rows, as in `audit`.
    """
    p, y = as_numpy(pred_probs, "pred_probs"), as_numpy(labels, "the labels")
    if names is None and isinstance(pred_probs, pd.DataFrame):
        names = [str(name) for name in pred_probs.columns]
    y = _check(p, y)
    classes = [str(name) for name in (range(p.shape[1]) if names is None else names)]
    if len(classes) != p.shape[1] or len(set(classes)) < len(classes):
        raise BadInput(f"{p.shape[1]} different names are needed, one for each class.")
    audits, skipped, blind = {}, [], []
    for k, name in enumerate(classes):
        count = np.bincount(y[:, k][y[:, k] != IGNORE], minlength=2)
        if count.min() < FEWEST:
            skipped.append(name)
            continue
        both = np.stack([1 - p[:, k], p[:, k]], 1)
        audits[name] = audit(both, y[:, k], features=features)
        blind += [name] if audits[name].at_chance else []
    issues = pd.concat([_entries(name, k, y, p, audits) for k, name in enumerate(classes)])
    order = ["p_wrong", "label_quality", "index"]
    issues = issues.sort_values(order, ascending=[False, True, True], kind="stable")
    issues = issues.reset_index(drop=True)
    notes = _notes(skipped, blind, features is not None)
    errors = [found.num_errors for name, found in audits.items() if name not in blind]
    parts = [(float(each), each.low, each.high) for each in errors]
    total = Estimate(*np.array(parts or [(0.0, 0.0, 0.0)]).sum(0).tolist())
    return MultiLabelAudit(
        issues, _rows(issues, len(p)), _per_class(classes, y, audits, issues), total, audits, notes
    )


def _check(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    if p.ndim != 2 or p.dtype.kind not in "iuf" or not len(p):
        raise BadInput(f"pred_probs must be numbers [rows, classes], not {p.dtype} {p.shape}.")
    if y.shape != p.shape:
        raise BadInput(
            f"The label matrix has shape {y.shape}, the probabilities {p.shape}: they must be "
            "alike."
        )
    bad = ~np.isfinite(p) | (p < 0) | (p > 1)
    if bad.any():
        raise BadInput(
            f"There is no probability from 0 to 1 in {which_rows(np.nonzero(bad)[0])} of "
            "pred_probs."
        )
    whole = y.astype(np.float64) if y.dtype.kind in "biuf" else np.full(y.shape, np.nan)
    strange = ~np.isin(whole, (0, 1, IGNORE))
    if strange.any():
        raise BadInput(
            f"Labels must be 1, 0 or -1 (not known), but not so in "
            f"{which_rows(np.nonzero(strange)[0])}."
        )
    return whole.astype(np.int64)


def _entries(
    name: str, k: int, y: np.ndarray, p: np.ndarray, audits: dict[str, Audit]
) -> pd.DataFrame:
    """One entry a row whose label is known; a class that could not be audited has no suspects."""
    rows = np.flatnonzero(y[:, k] != IGNORE)
    given = y[rows, k] == 1
    table = pd.DataFrame({"index": rows, "label": name, "given": given, "predicted": given})
    if name not in audits or audits[name].at_chance:
        quality = np.where(given, p[rows, k], 1 - p[rows, k])
        return table.assign(p_wrong=0.0, label_quality=quality, is_label_issue=False)
    found = audits[name].issues
    wrong = found.is_label_issue.to_numpy()
    return table.assign(
        predicted=given ^ wrong,
        p_wrong=found.p_wrong.to_numpy(),
        label_quality=found.label_quality.to_numpy(),
        is_label_issue=wrong,
    )


def _rows(issues: pd.DataFrame, n: int) -> pd.DataFrame:
    index, wrong = issues["index"].to_numpy(), issues.p_wrong.to_numpy()
    right, expected = np.zeros(n), np.zeros(n)
    np.add.at(right, index, np.log1p(-np.minimum(wrong, 1 - 1e-12)))
    np.add.at(expected, index, wrong)
    surest = issues.drop_duplicates("index").set_index("index")["label"].reindex(range(n))
    return pd.DataFrame({
        "index": np.arange(n), "p_any_wrong": -np.expm1(right), "expected_errors": expected,
        "surest_label": surest.to_numpy(),
    })  # fmt: skip


def _per_class(
    classes: list[str], y: np.ndarray, audits: dict[str, Audit], issues: pd.DataFrame
) -> pd.DataFrame:
    suspects = issues[issues.is_label_issue].groupby("label").size()
    lines = []
    for k, name in enumerate(classes):
        found = audits.get(name)
        told = found is not None and not found.at_chance
        rate = found.noise_rate if told and found else None
        lines.append({
            "label": name, "given": int((y[:, k] == 1).sum()),
            "known": int((y[:, k] != IGNORE).sum()),
            "expected_errors": float(found.num_errors) if told and found else None,
            "noise_rate": None if rate is None else float(rate),
            "noise_rate_low": None if rate is None else rate.low,
            "noise_rate_high": None if rate is None else rate.high,
            "issues": int(suspects.get(name, 0)), "audited": told,
        })  # fmt: skip
    return pd.DataFrame(lines)


def _notes(skipped: list[str], blind: list[str], features: bool) -> list[str]:
    notes = []
    if skipped:
        notes.append(
            f"Not audited, with fewer than {FEWEST} rows that have the class or that have it not: "
            f"{plural(len(skipped), 'class')} ({shorten_list(skipped, 5)})."
        )
    if blind:
        notes.append(
            f"Of {plural(len(blind), 'class')} ({shorten_list(blind, 5)}) the model knows no more "
            "than chance, so nothing is said of them."
        )
    if not features:
        notes.append(
            "Give features too where you have them: they tell a weak model from wrong labels."
        )
    return notes
