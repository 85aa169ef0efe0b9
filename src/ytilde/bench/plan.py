"""`bench plan`: what to run next, by value over cost, within so many minutes.

A first run of a cell is worth more than a second one, a cell of the paper's own method in one of
its strongest columns (a table's `headline`) more than any other. What is done, running elsewhere or
failed before is not planned, and no run is started that would not be finished in time; so the
command can be stopped, killed and repeated until the tables are full.
"""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections.abc import Iterable
from typing import NamedTuple

from ..data import BadInput
from ..versions import commit
from .cost import Costs, Expected
from .pool import check_data, needed_data, serve
from .results import Line, load_results
from .run import RunPaths, Say, circumstances, is_running, seconds_spent
from .tables import Cell, Job, Table

HEADLINE = 9.0  # what a run of the paper's own method in a strong column is worth
HALF = 3.0  # of the paper's own method elsewhere, or of another one in a strong column
PLAIN = 1.0
OVERHEAD = 10.0  # seconds that a worker may need to start


class Wanted(NamedTuple):
    """A run that is missing, what it is worth and what it will cost."""

    job: Job
    value: float
    expected: Expected  # of the whole run
    left: float  # seconds: less than that where a checkpoint holds a part of it

    @property
    def priority(self) -> float:
        return self.value / self.left

    @property
    def at_most(self) -> float:
        return OVERHEAD + self.left * self.expected.at_most / self.expected.seconds


def worth(table: Table, cell: Cell) -> float:
    """Of the first run of a cell."""
    own = cell.row in table.headline.get("rows", [])
    strong = bool(cell.column_names & set(table.headline.get("columns", [])))
    return (PLAIN, HALF, HEADLINE)[own + strong]


class Plan:
    """The runs that are missing of some cells; `take` gives the best that fits into the time left.

    A run that several tables share is worth what it is worth to each. seeds: how many of each cell;
    default the paper's number at the full scale, else 1. breadth: one seed of every cell comes
    before the next seed of any.
    """

    def __init__(
        self,
        cells: Iterable[tuple[Table, Cell]],
        paths: RunPaths,
        *,
        scale: str = "full",
        seeds: int | None = None,
        breadth: bool = False,
    ) -> None:
        self.breadth = breadth
        self.paths = dataclasses.replace(paths, commit=paths.commit or commit())
        lines = load_results(paths.results)
        finished = {line["hash"] for line in lines if line["status"] == "done"}
        failed = {line["hash"] for line in lines if line["status"] == "failed"} - finished
        self.costs = Costs(lines, circumstances(paths)["device"], paths.compile)
        self.jobs: dict[str, Job] = {}
        self.value: dict[str, float] = {}
        self.failed: set[str] = set()  # runs left out because they failed before
        self.lacking: dict[str, int] = {}  # data set -> cells left out because it is not at hand
        at_hand, elsewhere, most = False, list[Job](), dict[str, float]()
        for table, cell in cells:
            if cell.reason is not None:
                continue
            count = seeds or (table.seeds if scale == "full" else 1)
            jobs = [Job(cell, scale, seed) for seed in range(count)]
            if needed := needed_data(cell, scale, paths.data_root):
                self.lacking |= {name: self.lacking.get(name, 0) + 1 for name in needed}
                elsewhere += jobs
                continue
            at_hand = True
            for job in jobs:
                name = job.hash
                if name in failed:
                    self.failed.add(name)
                elif name not in finished:
                    share = worth(table, cell) / (1 + job.seed)
                    if share > most.get(name, 0.0):  # it is the run of whom it tells most
                        self.jobs[name], most[name] = job, share
                    self.value[name] = self.value.get(name, 0.0) + share
        if not at_hand:
            check_data(elsewhere, paths)
        self.spent = {
            name: seconds_spent(job, paths)
            for name, job in self.jobs.items()
            if (paths.work / name).is_dir()
        }
        self._order: list[Wanted] | None = None

    def order(self) -> list[Wanted]:
        """All of them, the best first."""
        if self._order is None:
            expected: dict[str, Expected] = {}  # seeds of a cell cost the same
            wanted = []
            for name, job in self.jobs.items():
                cell = f"{job.cell.table}: {job.cell.key}"
                if cell not in expected:
                    expected[cell] = self.costs.expected(job.inputs)
                seconds = expected[cell].seconds
                left = max(seconds - self.spent.get(name, 0.0), seconds / 10)
                wanted.append(Wanted(job, self.value[name], expected[cell], left))
            self._order = sorted(wanted, key=self._rank)  # stable
        return self._order

    def _rank(self, wanted: Wanted) -> tuple[float, ...]:
        return (wanted.job.seed, -wanted.priority) if self.breadth else (-wanted.priority,)

    def take(self, seconds: float) -> Wanted | None:
        """The best run that will be finished in so many seconds; it is then the caller's."""
        wanted = self._best(self.order(), seconds)
        if wanted:
            del self.jobs[wanted.job.hash]
        return wanted

    def _best(self, order: list[Wanted], seconds: float) -> Wanted | None:
        """Taken out of the order."""
        for place, wanted in enumerate(order):
            if wanted.at_most <= seconds and not is_running(wanted.job, self.paths):
                return order.pop(place)
        return None

    def put_back(self, job: Job) -> None:
        """Its process died: what its checkpoint holds is not lost."""
        self.jobs[job.hash] = job
        self.spent[job.hash] = seconds_spent(job, self.paths)
        self._order = None

    def add(self, line: Line) -> None:
        """A run has ended: the cost of the other ones is known better."""
        self.costs.add(line)
        self._order = None

    def schedule(self, seconds: float, workers: int) -> list[Wanted]:
        """What so many workers would do in this time, as far as is known now; takes nothing."""
        order, free, found = list(self.order()), [0.0] * workers, []
        while free:
            now = heapq.heappop(free)
            if wanted := self._best(order, seconds - now):
                found.append(wanted)
                heapq.heappush(free, now + wanted.left)
        return found


class Outcome(NamedTuple):
    lines: list[Line]  # of the runs that ended
    interrupted: list[Job]


def run_plan(
    plan: Plan, seconds: float, workers: int = 1, say: Say = lambda kind, job, value: None
) -> Outcome:
    """Run the plan in worker processes until nothing fits any more, for so many seconds at most."""
    if seconds <= 0 or workers < 1:
        raise BadInput("a plan needs some time and at least one worker")
    deadline, lines = time.monotonic() + seconds, list[Line]()
    plan.paths.results.mkdir(parents=True, exist_ok=True)

    def tell(kind: str, job: Job, value: object) -> None:
        if kind == "done":
            assert isinstance(value, dict)
            lines.append(value)
            plan.add(value)
        say(kind, job, value)

    class InTime:
        def take(self) -> Job | None:
            wanted = plan.take(deadline - time.monotonic())
            return wanted.job if wanted else None

        def put_back(self, job: Job) -> None:
            plan.put_back(job)

    interrupted = serve(InTime(), plan.paths, tell, workers, deadline)
    return Outcome(lines, interrupted)
