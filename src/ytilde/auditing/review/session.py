"""A review of an audited run: its suspects, what is shown of them, what was decided."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from ...data import IGNORE, BadInput, Data, Rows
from ...data.columns import Kind
from ...data.ids import own_texts
from ...files import spreadsheet_safe, write_csv
from ...hashing import digest_of
from ...runfolder import AUDIT, ISSUES
from ...signing import verify
from ..context import one_line
from ..items import encode, file_picture, picture_of, table
from ..pages import text_of
from ..sampling import Sample, draw
from ..similar import Similar
from .log import ACTIONS, LOG, Choice, Conflict, Decision, Log

HELD = 120.0  # seconds for which an item that one tab shows is not offered to another
SIDES = {"small": 160, "page": 640, "full": 4096}  # of a picture, at most
LOSSLESS = 1_000_000  # pixels of a picture up to which it is a PNG
COLUMNS = 40  # values of a table's row on the page
FIGURES = ("predicted_prob", "runner_up_prob", "p_wrong", "ambiguity")
CHARACTERS = 4000  # of these values together; each may have 200
BAD = ""  # the label of a bad item in labels.csv: no class has this name

Pair = tuple[int, int]  # given and suggested class


class Exported(NamedTuple):
    """How many labels were written, were changed by hand, and are missing as the item is bad."""

    labels: int
    changed: int
    bad: int


class Listing:
    """Items in the order in which they are shown: all, or the suspects of one pair of classes."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.place = {row: k for k, row in enumerate(rows)}
        self.first = self.undone = 0

    def open(self, undone: int, is_open: Callable[[int], bool]) -> Iterator[int]:
        """Rows without a decision: all before `first` have one, or had one taken back since.

        undone: how many decisions were taken back so far.
        """
        if self.undone != undone:
            self.undone, self.first = undone, 0
        while self.first < len(self.rows) and not is_open(self.rows[self.first]):
            self.first += 1
        rows = (self.rows[k] for k in range(self.first, len(self.rows)))
        return (row for row in rows if is_open(row))


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
        columns: dict[str, Kind] | None = None,
        ids: Sequence[str] | None = None,
        texts: Callable[[Sequence[int]], pd.DataFrame] | None = None,
        pictures: Rows | None = None,
        text_column: str | None = None,
        sample: int | None = None,
    ) -> None:
        """paths, ids, texts, text_column: as in ReportContext; columns: a table's, where texts is
        not given; pictures: of the rows, where data.x holds embeddings of them; sample: so many
        rows drawn at random come first."""
        self.run, self.data, self.paths, self.columns = run, data, paths, columns
        self.ids, self.texts, self.text_column = ids, texts, text_column
        self.pictures = data.x if pictures is None and len(data.shape) > 1 else pictures
        self.names = [data.class_name(k) for k in range(data.num_classes)]
        self.issues = _suspects(run, self.names, data)
        self.sample = _sample(run, self.names, data, sample) if sample is not None else []
        drawn = {item["index"] for item in self.sample}
        self.issues = self.sample + [item for item in self.issues if item["index"] not in drawn]
        self.position = {issue["index"]: k for k, issue in enumerate(self.issues)}
        none = dict.fromkeys(Similar._fields, ())
        self._similar = {issue["index"]: issue.pop("similar", none) for issue in self.issues}
        pairs: dict[Pair | None, list[int]] = {None: list(self.position)}
        # A drawn row is looked at by itself: it is in no pair that could be accepted at once.
        drawn |= _drawn_before(run)
        for issue in (issue for issue in self.issues if issue["index"] not in drawn):
            pairs.setdefault((issue["given"], issue["predicted"]), []).append(issue["index"])
        self._drawn = drawn
        self._listings = {pair: Listing(rows) for pair, rows in pairs.items()}
        self.log = Log(run / LOG, self.position)
        self._choosing = threading.Lock()
        self._shown: dict[int, tuple[str, float]] = {}  # row: tab and time

    @cached_property
    def visible(self) -> frozenset[int]:
        """The rows that the page may ask for: the suspects and what they are compared with."""
        beside = (row for near in self._similar.values() for rows in near.values() for row in rows)
        return frozenset(chain(self.position, beside))

    @cached_property
    def _values(self) -> pd.DataFrame:
        """What the owner wrote in the rows that the page may ask for."""
        rows = sorted(self.visible)
        if self.texts is not None:
            return self.texts(rows)
        return own_texts(table(self.data.x[torch.tensor(rows)], self.columns)).set_axis(rows)

    def labels(self) -> pd.DataFrame:
        """Every label with the decisions applied, in the columns of `audit --fix-above`."""
        rows = (self.data.y != IGNORE).nonzero()[:, 0].tolist()
        given = [int(label) for label in self.data.y[rows]]
        decided = {d.row: d.label for d in self.log.current().values() if d.action != "skip"}
        if any(r >= len(self.data.y) or (k or 0) >= len(self.names) for r, k in decided.items()):
            raise BadInput(f"{self.run / LOG} is the review of another run; move it away")
        names: dict[int | None, str] = {None: BAD, **dict(enumerate(self.names))}
        label = [decided.get(row, old) for row, old in zip(rows, given, strict=True)]
        frame = pd.DataFrame({"index": rows, "label": [names[k] for k in label]})
        frame["fixed"] = [new != old for new, old in zip(label, given, strict=True)]
        frame["given_label"] = [names[k] for k in given]
        if self.ids is not None:
            frame.insert(1, "id", [self.ids[row] for row in rows])
        if self.paths:
            frame["path"] = [self.paths[row] for row in rows]
        return frame

    # ---- what the page asks for ------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        return {
            "classes": [text_of(name) for name in self.names],
            "picture": self.pictures is not None,
            "run": text_of(self.run, 200),
            "sample": len(self.sample),
        }

    def pairs(self) -> dict[str, Any]:
        """Every pair of a given and a suggested class, the most frequent first."""
        self.log.refresh()
        found = [self._of_pair(pair) for pair in self._listings if pair is not None]
        return {"pairs": sorted(found, key=lambda each: -each["total"])}

    def next(self, tab: str, kind: str = "open", pair: Pair | None = None) -> dict[str, Any]:
        """The next item without a decision (`open`), or the longest skipped one (`skipped`)."""
        self.log.refresh()
        with self._choosing:
            listing = self._listings[pair]
            rows = (
                self._skipped(listing)
                if kind == "skipped"
                else listing.open(self.log.undone, self._is_open)
            )
            first = next(rows, None)
            now = time.monotonic()
            both = chain([] if first is None else [first], rows)
            row = next((row for row in both if self._is_free(row, tab, now)), first)
            if row is not None:
                self._shown[row] = (tab, now)
        return self._answer(row, pair)

    def _skipped(self, listing: Listing) -> Iterator[int]:
        """The longest skipped first."""
        skipped = (d.row for d in self.log.current().values() if d.action == "skip")
        return (row for row in skipped if row in listing.place)

    def _is_open(self, row: int) -> bool:
        """Nothing was decided on it; on a drawn row nothing by itself."""
        held = self.log.holds(row)
        return held is None or (row in self._drawn and not self.log.is_by_hand(held))

    def _is_free(self, row: int, tab: str, now: float) -> bool:
        other, since = self._shown.get(row, (tab, now))
        return other == tab or now - since > HELD

    def at(self, position: int, pair: Pair | None = None) -> dict[str, Any]:
        near = self._listings[pair].rows[: position + 1][-1:]  # past the end: the last one
        self.log.refresh()
        return self._answer(near[0] if near else None, pair)

    def decide(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Writes a decision, then answers with the next item, or with what stood in its way."""
        tab, kind, pair = word(asked, "tab"), word(asked, "kind"), self.pair(asked)
        row, action, label = self._decision(asked)
        try:
            self.log.decide(word(asked, "request"), tab, row, action, label, number(asked, "seen"))
        except Conflict:
            return self._answer(row, pair) | {"conflict": True}
        return self.next(tab, kind, pair)

    def accept_pair(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Accepts every open suggestion of a pair of classes at once; one undo takes all back.

        open: how many there are for all that the page knows. Where another tab has decided on one
        in the meantime, nothing is written and the page hears of it. only: the pair that the page
        shows alone.
        """
        tab, kind, request = (word(asked, key) for key in ("tab", "kind", "request"))
        pair, only, wanted = self.pair(asked), self.pair(asked, "only"), number(asked, "open")
        if pair is None or not wanted:
            raise BadInput("a pair of classes with open suggestions is needed")
        self.log.refresh()
        rows = [row for row in self._listings[pair].rows if not self.log.holds(row)]
        try:
            if not self.log.rows_of(request):
                if len(rows) != wanted:
                    raise Conflict
                self.log.decide_all(request, tab, [Choice(row, "accept", pair[1]) for row in rows])
        except Conflict:
            return self.next(tab, kind, only) | {"conflict": True}
        answer = self.next(tab, kind, only)
        return answer | {"decided": len(self.log.rows_of(request))}

    def pair(self, asked: dict[str, Any], key: str = "pair") -> Pair | None:
        """A pair of classes that the page names; None: all."""
        value = asked.get(key)
        if value is None:
            return None
        known = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
        if not known or tuple(value) not in self._listings:
            raise BadInput(f"{key} must be the numbers of a given and a suggested class")
        return value[0], value[1]

    def _decision(self, asked: dict[str, Any]) -> tuple[int, str, int | None]:
        row, action = number(asked, "row"), word(asked, "action")
        if row not in self.position:
            raise BadInput(f"row {row} is not among the suspects")
        issue = self.issues[self.position[row]]
        labels = {"accept": issue["predicted"], "keep": issue["given"], "bad": None, "skip": None}
        if action == "choose":
            label = number(asked, "label")
            if not 0 <= label < len(self.names):
                raise BadInput(f"there is no class {label}")
            return row, action, label
        if action not in labels:
            raise BadInput(f"there is no action {action!r}")
        return row, action, labels[action]

    def undo(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Takes back the last step of this tab; `undone` says how many decisions that were."""
        request, pair = word(asked, "request"), self.pair(asked)
        row = self.log.undo(request, word(asked, "tab"))
        if row not in self.position:
            return self.next(word(asked, "tab"), word(asked, "kind"), pair) | {"nothing": True}
        self.log.refresh()
        pair = pair if row in self._listings[pair].place else None
        return self._answer(row, pair) | {"undone": len(self.log.rows_of(request))}

    def picture(self, row: int, size: str = "page") -> tuple[bytes, str]:
        """The picture of a row and what kind of file it is; `full` is that of its own file."""
        own = file_picture(self.paths[row]) if size == "full" and self.paths else None
        picture = own or picture_of(self.pictures, row)
        picture.thumbnail((SIDES[size], SIDES[size]))
        if picture.width * picture.height <= LOSSLESS:
            return encode(picture, "png"), "png"
        return encode(picture, "jpeg", quality=92), "jpeg"

    def similar(self, row: int) -> dict[str, Any]:
        """What a suspect may be compared with: near rows of its given and its suggested class."""
        if row not in self.position:
            raise BadInput(f"row {row} is not among the suspects")
        near = self._similar[row]
        return {"row": row} | {key: [self._look(each) for each in near[key]] for key in near}

    def _answer(self, row: int | None, pair: Pair | None = None) -> dict[str, Any]:
        """The item, how far the review is, and how much of its pair of classes is open.

        A drawn row has no pair: it would tell what the model thinks of it.

        pair: what the page shows alone, None for all; the page hears it again as `filter`.
        """
        item = None if row is None else self._item(row, self.log.holds(row), pair)
        own = (item["given"], item["predicted"]) if item and row not in self._drawn else pair
        return {
            "item": item,
            "progress": self._count(),
            "filter": pair,
            "pair": self._of_pair(own) if own in self._listings and own else None,
        }

    def progress(self) -> dict[str, int]:
        """How many suspects there are, are open, and were decided in which way."""
        self.log.refresh()
        return self._count()

    def _count(self) -> dict[str, int]:
        counts = {name: self.log.counts[name] for name in ACTIONS}
        return counts | {"total": len(self.issues), "open": len(self.issues) - sum(counts.values())}

    def _of_pair(self, pair: Pair) -> dict[str, Any]:
        rows = self._listings[pair].rows
        left = sum(not self.log.holds(row) for row in rows)
        return {"pair": pair, "total": len(rows), "open": left}

    def _look(self, row: int) -> dict[str, Any]:
        """What is shown of any row."""
        values: list[tuple[str, str]] = []
        if self.pictures is None:
            shown = self._values.loc[row].iloc[:COLUMNS]
            longest = max(200, CHARACTERS // max(1, len(shown)))
            for name, value in shown.items():
                is_read = name == self.text_column
                value = text_of(one_line(value), CHARACTERS) if is_read else text_of(value, longest)
                values.append((text_of(name, 60), value))
        return {
            "row": row,
            "id": text_of(self.ids[row]) if self.ids else "",
            "path": text_of(self.paths[row], 200) if self.paths else "",
            "values": values,
        }

    def _item(self, row: int, decision: Decision | None, pair: Pair | None) -> dict[str, Any]:
        issue = self.issues[self.position[row]]
        return issue | self._look(row) | {
            "position": self._listings[pair].place[row],
            "drawn": self.position[row] < len(self.sample),
            "similar": any(self._similar[row].values()),
            "seen": decision.id if decision else 0,
            "action": decision.action if decision else "",
            "label": decision.label if decision else None,
        }  # fmt: skip


def _read_audit(run: Path) -> dict[str, Any]:
    path = run / AUDIT
    if not path.exists():
        raise BadInput(f"{run} is not audited yet; run `ytilde audit {run}` first")
    try:
        return verify(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read ({error!r}); run `ytilde audit {run}` again"
        ) from error


def _suspects(run: Path, names: list[str], data: Data) -> list[dict[str, Any]]:
    """The flagged rows of audit.json, the worst first, as it has them; classes as numbers."""
    path, found = run / AUDIT, _read_audit(run)
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
            | {"similar": _rows_beside(issue.get("similar"), len(data.y))}
            for issue in found["issues"]
        ]
        same = all(int(data.y[issue["index"]]) == issue["given"] for issue in issues)
    except (ValueError, LookupError, TypeError) as error:
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
        text = path.read_bytes().decode()
        if _read_audit(run).get("issues_csv") not in (None, digest_of(text)):  # 0.1 had none
            raise ValueError("it has changed since it was written")
        table = pd.read_csv(io.StringIO(text, newline=""), dtype=str, keep_default_na=False)
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


def _drawn_before(run: Path) -> set[int]:
    """Rows of the sample that a run has, if it has one."""
    sample = Sample.load(run)
    return set() if sample is None else set(sample.drawn.tolist())


def _rows_beside(similar: dict[str, list[int]] | None, rows: int) -> dict[str, list[int]]:
    """Audits that had no features, and those of earlier versions, say nothing of similar rows."""
    found = {key: [int(row) for row in (similar or {}).get(key, ())] for key in Similar._fields}
    if not all(0 <= row < rows for near in found.values() for row in near):
        raise ValueError("a similar row that does not exist")
    return found


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


def export(review: Review, path: Path) -> Exported:
    """Write the labels with the decisions applied; a bad item has an empty one."""
    frame = review.labels()
    write_csv(path, frame)
    bad = int((frame.label == BAD).sum())
    return Exported(len(frame), int(frame.fixed.sum()) - bad, bad)
