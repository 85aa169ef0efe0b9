"""Many runs: in this process, in several, on a Ray cluster; what is missing of a table."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import signal
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from .. import datasets
from ..data import BadInput, unknown
from ..versions import commit
from .results import (
    Line,
    append,
    best_point,
    check_results,
    default_results,
    done,
    load_results,
)
from .run import RunPaths, Say, failure, run_job
from .tables import SCALES, Cell, Job, Table, as_table, cells, choose

LIVES = 5  # how often the process of one run may die before the run counts as failed

# ---- three ways to run many ---------------------------------------------------------------------


def run_here(jobs: Sequence[Job], paths: RunPaths, say: Say, workers: int) -> None:
    for job in jobs:
        run_job(job, paths, say)


class Waiting(Protocol):
    """Jobs for the workers; `take` answers None where there is none, or none that is worth it."""

    def take(self) -> Job | None: ...

    def put_back(self, job: Job) -> None: ...


class InOrder:
    """All of these jobs, the first one first."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = deque(jobs)

    def take(self) -> Job | None:
        return self.jobs.popleft() if self.jobs else None

    def put_back(self, job: Job) -> None:
        self.jobs.appendleft(job)


def run_processes(jobs: Sequence[Job], paths: RunPaths, say: Say, workers: int) -> None:
    """Worker processes; a job whose process dies goes to another one, which resumes it."""
    for name in {job.cell.table for job in jobs}:
        check_results(paths.results / f"{name}.jsonl")
    serve(InOrder(jobs), paths, say, min(workers, len(jobs)))


def serve(
    waiting: Waiting, paths: RunPaths, say: Say, workers: int, deadline: float | None = None
) -> list[Job]:
    """Worker processes for what is waiting, until nothing is, or until time.monotonic() says so.

    Returns the jobs that the deadline interrupted; they go on from their checkpoints.
    """
    context = multiprocessing.get_context("spawn")
    deaths = Counter[str]()
    busy: dict[Any, tuple[Any, Job]] = {}  # our end of the pipe -> process, its job

    def start() -> None:
        """A new worker with the next job."""
        if (job := waiting.take()) is not None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, paths, deadline))
            # Ctrl-C while it loads its libraries is ours too: what is blocked is inherited
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            theirs.close()
            busy[ours] = (process, job)
            with suppress(OSError):  # it is dead already: recv will tell
                ours.send(job)

    def go_on(ours: Any, process: Any) -> None:
        """The next job for a worker that is done with one, or its end."""
        if (job := waiting.take()) is not None:
            try:
                ours.send(job)
            except OSError:  # killed between two runs: the job has lost nothing
                waiting.put_back(job)
                process.join()
                start()
            else:
                busy[ours] = (process, job)
                return
        ours.close()  # the worker ends

    try:
        for _ in range(workers):
            start()
        while busy:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            for ours in cast(list[Any], wait(list(busy), left)):
                process, job = busy[ours]
                try:
                    kind, value = ours.recv()
                except (EOFError, OSError):  # it was killed
                    del busy[ours]
                    process.join()
                    deaths[job.hash] += 1
                    if deaths[job.hash] < LIVES:
                        waiting.put_back(job)
                    else:
                        line = failure(job, paths, f"its process died {LIVES} times")
                        append(paths.results / f"{job.cell.table}.jsonl", line)
                        say("done", job, line)
                    start()
                    continue
                say(kind, job, value)
                if kind == "done":
                    del busy[ours]
                    go_on(ours, process)
    finally:
        for process, _ in busy.values():
            process.terminate()
        for process, _ in busy.values():
            process.join()
    return [job for _, job in busy.values()]


def _serve(connection: Connection, paths: RunPaths, deadline: float | None) -> None:
    """A worker: runs the jobs that come through the pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends us
    if deadline is not None:  # if the parent is killed, nobody else ends us
        signal.alarm(max(1, math.ceil(deadline - time.monotonic()) + 1))
    torch.set_num_threads(1)

    def say(kind: str, job: Job, value: Any) -> None:
        try:
            connection.send((kind, value))
        except OSError:  # the parent is gone: finish the run, its line will be found
            return

    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        run_job(job, paths, say)


def run_ray(jobs: Sequence[Job], paths: RunPaths, say: Say, workers: int) -> None:
    """Tasks of a Ray cluster whose nodes share the folders; Ray retries those that are killed."""
    try:
        import ray
    except ImportError:
        raise BadInput("--ray needs Ray: pip install 'ytilde[ray]'") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    # the nodes decide, not this one, which may be the only one without a GPU
    gpu = 1 / workers if paths.device != "cpu" and ray.cluster_resources().get("GPU") else 0
    paths = dataclasses.replace(
        paths,
        results=paths.results.absolute(),
        work=paths.work.absolute(),
        data_root=datasets.home(paths.data_root).absolute(),
    )

    @ray.remote(num_cpus=1, num_gpus=gpu, max_retries=LIVES)
    def task(job: Job) -> Line:
        torch.set_num_threads(1)
        lines: list[Line] = []
        run_job(job, paths, lambda kind, _, value: lines.append(value))
        return lines[-1]

    waiting = {task.remote(job): job for job in jobs}
    while waiting:
        ready, _ = ray.wait(list(waiting))
        for reference in ready:
            job = waiting.pop(reference)
            try:
                line = ray.get(reference)
            except ray.exceptions.RayError as error:
                line = failure(job, paths, f"{type(error).__name__}")
                append(paths.results / f"{job.cell.table}.jsonl", line)
            say("done", job, line)


# ---- sweeps -------------------------------------------------------------------------------------


def run(
    table: str | Table,
    *,
    only: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int | None = None,
    scale: str = "full",
    workers: int = 1,
    ray: bool = False,
    tuned: bool = False,
    paths: RunPaths | None = None,
    say: Say = lambda kind, job, value: None,
) -> list[Line]:
    """Run what is missing of a table; returns the lines of all runs asked for, in their order.

    seeds: how many; default the paper's number at the full scale, else 1. tuned: with the fields
    that `tune` found best instead of the paper's.
    """
    paths = paths or RunPaths(default_results(scale))
    found = choose(cells(as_table(table)), only, columns)
    jobs = jobs_of(as_table(table), found, seeds, scale, list(done(paths.results).values()), tuned)
    return sweep(jobs, workers=workers, ray=ray, paths=paths, say=say)


def jobs_of(
    table: Table,
    found: Sequence[Cell],
    seeds: int | None,
    scale: str,
    lines: list[Line],
    tuned: bool,
) -> list[Job]:
    """The runs of those cells of a table that can be run; see `run`."""
    ready = [cell for cell in found if cell.reason is None]
    if tuned:
        ready = [best_point(table, cell, scale, lines) or cell for cell in ready]
    count = seeds or (table.seeds if scale == "full" else 1)
    return [Job(cell, scale, seed) for cell in ready for seed in range(count)]


def sweep(jobs: Sequence[Job], *, workers: int, ray: bool, paths: RunPaths, say: Say) -> list[Line]:
    """Run the jobs that have no result yet; the lines of all of them, in their order."""
    if not all(job.scale in SCALES for job in jobs):
        raise BadInput(unknown("scale", jobs[0].scale, SCALES))
    paths = dataclasses.replace(paths, commit=paths.commit or commit())
    known = done(paths.results)
    unique = {job.hash: job for job in jobs}
    missing = [job for name, job in unique.items() if name not in known]
    check_data(missing, paths)
    paths.results.mkdir(parents=True, exist_ok=True)
    execute = run_ray if ray else run_processes if workers > 1 else run_here
    execute(missing, paths, say, workers)
    lines = {line["hash"]: line for line in load_results(paths.results)} | done(paths.results)
    return [lines[job.hash] for job in jobs if job.hash in lines]


def needed_data(cell: Cell, scale: str, root: Path | None) -> list[str]:
    """The named sets of a cell that are not at hand; tiny runs make their own."""
    if scale == "tiny":
        return []
    wanted = [(cell.data, "train"), *((name, "test") for name in cell.tests)]
    lacking = [name for name, split in wanted if not datasets.at_hand(name, root, split)]
    return list(dict.fromkeys(lacking))


def check_data(jobs: Sequence[Job], paths: RunPaths) -> None:
    """Refuse runs that all lack their data; where some have it, the others fail by themselves."""
    lacking = [needed_data(job.cell, job.scale, paths.data_root) for job in jobs]
    if not jobs or not all(lacking):
        return
    names = dict.fromkeys(name for of_job in lacking for name in of_job)
    how = [f"{name} ({datasets.origin(name)})" for name in names]
    raise BadInput(
        f"The data of these runs is not in {datasets.home(paths.data_root)}: {', '.join(how)}; get "
        "it, or name its folder with --data-root or $YTILDE_DATA."
    )
