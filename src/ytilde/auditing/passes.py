"""The audit of tables that are larger than memory, in two passes over their rows.

The first pass takes the sample that the readings are fitted to, and refuses what cannot be judged;
the second judges the rows. Either is a function of a PART of the rows, and the results of all parts
are put together in order, so it does not matter where a part is worked on: in a thread here, or on
a cluster (see `on_ray`). What is computed is what `verdict.judge` computes, to the last bit.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from ..data import IGNORE, BadInput
from ..data.readers.stream import Block
from ..files import write_atomic
from .blocks import PART, add, blocks
from .issues import IssuesFile, arrow_table, issue_columns, issues_frame, worst_first
from .readings import Evidence
from .sample import Sample
from .totals import AMBIGUOUS, Totals
from .verdict import Counts, Rules, Sums, judge_rows, suspects

THREADS = 4  # at most: memory grows with them
WORST, HARDEST = 10_000, 100  # rows that an audit keeps to be shown


class Table(Protocol):
    """Probabilities and labels that are read in blocks, such as `ProbabilityFiles`."""

    names: list[str]

    @property
    def rows(self) -> int: ...
    def blocks(self, cuts: Iterator[slice]) -> Iterator[Block]: ...


Work = Callable[[int, int], Any]  # of the rows from the first number to before the second
Map = Callable[[Work, list[tuple[int, int]]], Iterator[Any]]  # of all parts, in order


class Together(NamedTuple):
    """What rows add up to."""

    sums: Sums
    counts: Counts
    totals: Totals

    def plus(self, other: Together) -> Together:
        return Together(
            add(self.sums, other.sums),
            add(self.counts, other.counts),
            add(self.totals, other.totals),
        )


class Part(NamedTuple):
    """Rows with a label, judged."""

    issues: Any  # an Arrow table
    together: Together
    shown: pd.DataFrame  # some of them, classes as numbers


class Found(NamedTuple):
    """What is known of all rows together, and the rows that are shown."""

    together: Together
    unjudged: int
    shown: pd.DataFrame


def audit_table(table: Table, out: Path | None, map_parts: Map) -> Found:
    """Judge all rows; what is found of each of them goes to the parquet file `out`."""
    parts = [(first, min(first + PART, table.rows)) for first in range(0, table.rows, PART)]
    sample = Sample.together(map_parts(partial(sample_part, table), parts))
    if not len(sample.rows):
        raise BadInput("No row has a label, so there is nothing to audit.")
    rules = Rules.fit(sample.evidence())
    judged = filter(None, map_parts(partial(judge_part, table, rules), parts))
    together, shown = None, pd.DataFrame()

    def judge(write: Callable[[Any], None]) -> None:
        nonlocal together, shown
        for part in judged:
            write(part.issues)
            together = part.together if together is None else together.plus(part.together)
            shown = _to_show([shown, part.shown])

    if out is None:
        judge(lambda issues: None)
    else:
        write_atomic(out, partial(_write, judge))
    assert together is not None
    unjudged = table.rows - int(together.totals.rows[0])
    shown = issues_frame(shown.sort_values("index", ignore_index=True), table.names)
    return Found(together, unjudged, shown)


def _write(judge: Callable[[Callable[[Any], None]], None], path: Path) -> None:
    with IssuesFile(path) as file:
        judge(file.write)


def sample_part(table: Table, first: int, stop: int) -> Sample:
    """The first pass: which of these rows are in the sample."""
    cuts = blocks(first, stop, len(table.names))
    return Sample.together(Sample.of(b.first, b.p, b.y) for b in table.blocks(cuts))


def judge_part(table: Table, rules: Rules, first: int, stop: int) -> Part | None:
    """The second pass: the verdict on those of these rows that have a label."""
    import pyarrow as pa

    cuts = blocks(first, stop, len(table.names))
    judged = [_judge_block(block, rules, table.names) for block in table.blocks(cuts)]
    known = [part for part in judged if part is not None]
    if not known:
        return None
    issues, together, shown = zip(*known, strict=True)
    return Part(pa.concat_tables(issues), reduce(Together.plus, together), _to_show(shown))


def _judge_block(block: Block, rules: Rules, names: list[str]) -> Part | None:
    rows = np.flatnonzero(block.y != IGNORE)
    if not len(rows):
        return None
    everything = slice(0, len(rows))
    p, y = block.p[rows], block.y[rows]
    evidence = Evidence(block.p, block.y, rows, None)
    raw, sums, score = judge_rows(evidence, rules.readings, everything)
    found = rules.order.apply(raw, score, y)
    sums, flagged = sums.expecting(y, found.p_wrong), suspects(found.p_wrong, rules.cut)
    found = found.suggesting(y, flagged)
    ids = None if block.ids is None else block.ids.take(rows)
    columns = issue_columns(rows + block.first, y, found, flagged, ids)
    counts = Counts.of(p, y, found, flagged)
    keep = np.flatnonzero(flagged | (found.ambiguity > AMBIGUOUS))
    shown = {name: column.take(keep) for name, column in columns.items()}
    if ids is not None:
        shown["id"] = shown["id"].to_pylist()
    together = Together(sums, counts, Totals.of(columns))
    return Part(arrow_table(columns, names), together, pd.DataFrame(shown))


def _to_show(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The worst of these rows, and the most ambiguous of those that are none."""
    rows = pd.concat(
        [part for part in parts if len(part)] or parts[-1:]
    )  # the first has no columns
    if len(rows) <= HARDEST:
        return rows
    worst = worst_first(rows[rows.is_label_issue]).head(WORST)
    hard = rows[~rows.is_label_issue].sort_values(["ambiguity", "index"], ascending=[False, True])
    return pd.concat([worst, hard.head(HARDEST)])


def in_threads(work: Work, parts: list[tuple[int, int]]) -> Iterator[Any]:
    """The parts' results, in order; a few are worked on at once."""
    threads = min(THREADS, len(os.sched_getaffinity(0)))
    running: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in parts:
                running.append(pool.submit(work, *part))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for each in running:
                each.cancel()
