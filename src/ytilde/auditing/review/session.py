"""A review of an audited run: its suspects, what is shown of them, what was decided."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...data import IGNORE, BadInput, Data
from ...data.ids import own_texts
from ...files import spreadsheet_safe, write_csv
from ...runfolder import AUDIT, ISSUES
from ..items import encode, picture_of, table
from ..pages import text_of
from ..sampling import draw
from .log import LOG, Conflict, Decision, Log

HELD = 120.0  # seconds for which an item that one tab shows is not offered to another
LARGEST = 640  # side of a picture on the page
COLUMNS = 40  # values of a table's row on the page
FIGURES = ("predicted_prob", "runner_up_prob", "p_wrong", "ambiguity")


class Review:
    """The suspects of an audited run, the worst first, and what was decided on them.

    A random sample comes before them where one is asked for.
    """

    def __init__(
        self,
        run: Path,
        data: Data,
        *,
        paths: Sequence[str] | None = None,
        columns: dict[str, list[str] | None] | None = None,
        ids: Sequence[str] | None = None,
        texts: Callable[[Sequence[int]], pd.DataFrame] | None = None,
        sample: int | None = None,
    ) -> None:
        """paths, ids, texts: as in ReportContext; columns: a table's, where texts is not given;
        sample: so many rows drawn at random come first."""
        self.run, self.data, self.paths, self.columns = run, data, paths, columns
        self.ids, self.texts = ids, texts
        self.names = [data.class_name(k) for k in range(data.num_classes)]
        self.issues = _suspects(run, self.names, data)
        self.sample = _sample(run, self.names, data, sample) if sample is not None else []
        drawn = {item["index"] for item in self.sample}
        self.issues = self.sample + [item for item in self.issues if item["index"] not in drawn]
        self.position = {issue["index"]: k for k, issue in enumerate(self.issues)}
        self.log = Log(run / LOG, self.position)
        self._choosing = threading.Lock()
        self._first = self._undone = 0
        self._shown: dict[int, tuple[str, float]] = {}  # row: tab and time

    @cached_property
    def _values(self) -> pd.DataFrame:
        """What the owner wrote in the rows of the suspects."""
        rows = list(self.position)
        if self.texts is not None:
            return self.texts(rows)
        return own_texts(table(self.data.x[torch.tensor(rows)], self.columns)).set_axis(rows)

    def labels(self) -> pd.DataFrame:
        """Every label with the decisions applied, in the columns of `audit --fix-above`."""
        rows = (self.data.y != IGNORE).nonzero()[:, 0].tolist()
        given = [int(label) for label in self.data.y[rows]]
        decided = {d.row: d.label for d in self.log.current().values() if d.label is not None}
        if any(r >= len(self.data.y) or k >= len(self.names) for r, k in decided.items()):
            raise BadInput(f"{self.run / LOG} is the review of another run; move it away")
        label = [decided.get(row, old) for row, old in zip(rows, given, strict=True)]
        fixed = [new != old for new, old in zip(label, given, strict=True)]
        named = {"label": label, "given_label": given}
        frame = pd.DataFrame({"index": rows, "label": label, "fixed": fixed, "given_label": given})
        if self.ids is not None:
            frame.insert(1, "id", [self.ids[row] for row in rows])
        return frame.assign(**{c: [self.names[k] for k in v] for c, v in named.items()})

    # ---- what the page asks for ------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        return {
            "classes": [text_of(name) for name in self.names],
            "picture": len(self.data.shape) > 1,
            "run": text_of(self.run, 200),
            "sample": len(self.sample),
        }

    def next(self, tab: str, kind: str = "open") -> dict[str, Any]:
        """The next item without a decision (`open`), or the longest skipped one (`skipped`)."""
        self.log.refresh()
        with self._choosing:
            rows = self._skipped() if kind == "skipped" else self._open()
            first = next(rows, None)
            now = time.monotonic()
            both = chain([] if first is None else [first], rows)
            row = next((row for row in both if self._is_free(row, tab, now)), first)
            if row is not None:
                self._shown[row] = (tab, now)
        return self._answer(row)

    def _skipped(self) -> Iterator[int]:
        """The longest skipped first."""
        return (d.row for d in self.log.current().values() if d.action == "skip")

    def _open(self) -> Iterator[int]:
        """Rows without a decision, the worst first: all before `_first` have one, or had one
        taken back since."""
        if self._undone != self.log.undone:
            self._undone, self._first = self.log.undone, 0
        total = len(self.issues)
        while self._first < total and self.log.holds(self.issues[self._first]["index"]):
            self._first += 1
        rows = (self.issues[k]["index"] for k in range(self._first, total))
        return (row for row in rows if not self.log.holds(row))

    def _is_free(self, row: int, tab: str, now: float) -> bool:
        other, since = self._shown.get(row, (tab, now))
        return other == tab or now - since > HELD

    def at(self, position: int) -> dict[str, Any]:
        near = self.issues[: position + 1][-1:]  # past the end: the last one
        self.log.refresh()
        return self._answer(near[0]["index"] if near else None)

    def decide(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Writes a decision, then answers with the next item, or with what stood in its way."""
        tab, kind = word(asked, "tab"), word(asked, "kind")
        row, action, label = self._decision(asked)
        try:
            self.log.decide(word(asked, "request"), tab, row, action, label, number(asked, "seen"))
        except Conflict:
            return self._answer(row) | {"conflict": True}
        return self.next(tab, kind)

    def _decision(self, asked: dict[str, Any]) -> tuple[int, str, int | None]:
        row, action = number(asked, "row"), word(asked, "action")
        if row not in self.position:
            raise BadInput(f"row {row} is not among the suspects")
        issue = self.issues[self.position[row]]
        labels = {"accept": issue["predicted"], "keep": issue["given"], "skip": None}
        if action == "choose":
            label = number(asked, "label")
            if not 0 <= label < len(self.names):
                raise BadInput(f"there is no class {label}")
            return row, action, label
        if action not in labels:
            raise BadInput(f"there is no action {action!r}")
        return row, action, labels[action]

    def undo(self, asked: dict[str, Any]) -> dict[str, Any]:
        row = self.log.undo(word(asked, "request"), word(asked, "tab"))
        if row not in self.position:
            return self.next(word(asked, "tab"), word(asked, "kind")) | {"nothing": True}
        self.log.refresh()
        return self._answer(row)

    def picture(self, row: int) -> bytes:
        picture = picture_of(self.data.x, row)
        picture.thumbnail((LARGEST, LARGEST))
        return encode(picture, "png")

    def _answer(self, row: int | None) -> dict[str, Any]:
        item = None if row is None else self._item(row, self.log.holds(row))
        return {"item": item, "progress": self._count()}

    def progress(self) -> dict[str, int]:
        """How many suspects there are, are open, and were decided in which way."""
        self.log.refresh()
        return self._count()

    def _count(self) -> dict[str, int]:
        counts = {name: self.log.counts[name] for name in ("accept", "keep", "choose", "skip")}
        return counts | {"total": len(self.issues), "open": len(self.issues) - sum(counts.values())}

    def _item(self, row: int, decision: Decision | None) -> dict[str, Any]:
        issue = self.issues[self.position[row]]
        values: list[tuple[str, str]] = []
        if len(self.data.shape) == 1:
            shown = self._values.loc[row].iloc[:COLUMNS]
            values = [(text_of(name, 60), text_of(value, 200)) for name, value in shown.items()]
        return issue | {
            "row": row,
            "position": self.position[row],
            "drawn": self.position[row] < len(self.sample),
            "id": text_of(self.ids[row]) if self.ids else "",
            "path": text_of(self.paths[row], 200) if self.paths else "",
            "values": values,
            "seen": decision.id if decision else 0,
            "action": decision.action if decision else "",
            "label": decision.label if decision else None,
        }


def _suspects(run: Path, names: list[str], data: Data) -> list[dict[str, Any]]:
    """The flagged rows of audit.json, the worst first, as it has them; classes as numbers."""
    path = run / AUDIT
    if not path.exists():
        raise BadInput(f"{run} is not audited yet; run `ytilde audit {run}` first")
    place = {name: k for k, name in enumerate(names)}
    labels = {
        "given": "given_label",
        "predicted": "predicted_label",
        "runner_up": "runner_up_label",
    }
    try:
        issues: list[dict[str, Any]] = [
            {"index": int(issue["index"])}
            | {key: place[str(issue[f"{key}_label"])] for key in labels}
            | {key: float(issue[key]) for key in FIGURES}
            for issue in json.loads(path.read_text("utf-8"))["issues"]
        ]
        same = all(int(data.y[issue["index"]]) == issue["given"] for issue in issues)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadInput(
            f"{path} cannot be read ({error!r}); run `ytilde audit {run}` again"
        ) from error
    if not same:
        raise BadInput(f"{path} was made of other labels; run `ytilde audit {run}` again")
    return sorted(issues, key=lambda issue: -issue["p_wrong"])  # of equal ones as they stand there


def _sample(run: Path, names: list[str], data: Data, size: int) -> list[dict[str, Any]]:
    """A random sample of the rows that were judged, as it is drawn.

    `predicted` is the likeliest class that is not the given one.
    """
    path = run / ISSUES
    place = {str(spreadsheet_safe(name)): k for k, name in enumerate(names)}
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows = table["index"].astype("int64").to_numpy()
        figures = table[list(FIGURES)].astype("float64")
        labels = {
            key: table[f"{key}_label"].map(place).astype("int64").to_numpy()
            for key in ("given", "predicted", "runner_up")
        }
        same = (data.y.numpy()[rows] == labels["given"]).all() and len(set(rows)) == len(rows)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise BadInput(f"{path} cannot be read ({error!r}); `ytilde audit {run}` again") from error
    if not same:
        raise BadInput(f"{path} was made of other labels; `ytilde audit {run}` again")
    order = np.argsort(rows)  # the file has the worst first
    drawn = draw(run, size, rows[order], figures.p_wrong.to_numpy()[order]).drawn[:size]
    where = {int(row): k for k, row in enumerate(rows)}
    items = []
    for row in drawn.tolist():
        if row not in where:
            raise BadInput(f"the sample holds row {row}, which {path} has not; audit again")
        at = where[row]
        item: dict[str, Any] = {key: int(values[at]) for key, values in labels.items()}
        item |= {key: float(figures[key].iloc[at]) for key in FIGURES}
        if item["predicted"] == item["given"]:
            other = {"predicted": item["runner_up"], "predicted_prob": item["runner_up_prob"]}
            item |= other | {"runner_up": item["given"]}
        items.append({"index": row} | item)
    return items


def word(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 64 or not value.isascii():
        raise BadInput(f"{key} must be a short word")
    return value


def number(asked: dict[str, Any], key: str) -> int:
    value = asked.get(key)
    if type(value) is not int or not 0 <= value < 2**53:
        raise BadInput(f"{key} must be a whole number")
    return value


def export(review: Review, path: Path) -> tuple[int, int]:
    """Write the labels with the decisions applied; returns their number and how many changed."""
    frame = review.labels()
    write_csv(path, frame)
    return len(frame), int(frame.fixed.sum())
