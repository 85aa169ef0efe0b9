"""The benchmark: runs the cells of the papers' tables and keeps what came out.

A run is decided by its inputs, and its line in `results/TABLE.jsonl` carries their hash: what is
there already is not run again, so every command can be stopped, killed and repeated.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from . import bench_report, datasets, noise
from .bench_tables import (
    PROTOCOLS,
    SCALES,
    Cell,
    Table,
    cells,
    choose,
    digest,
    experiment,
    inputs,
    is_of,
    list_tables,
    load_table,
)
from .checkpoint import locked
from .data import BadInput, Batch, Data, unknown
from .engine import Diverged, Recipe, Record, Trainer, choose_device
from .method import CACHE, create, fit_method
from .transition import class_floor, relative_l1, row_error

LIVES = 5  # how often the process of one run may die before the run counts as failed
STANDARD = Path("results")
NOTHING_TO_TUNE = "there is nothing to tune: no cell asked for can be run and has a grid to search"

Line = dict[str, Any]  # of a results file
Say = Callable[[str, "Job", Any], None]  # say("epoch" | "done", job, record or line)


@dataclass(frozen=True)
class Job:
    """One run of a cell."""

    cell: Cell
    scale: str
    seed: int

    @property
    def inputs(self) -> dict[str, Any]:
        return inputs(self.cell, self.scale, self.seed)

    @property
    def hash(self) -> str:
        return digest(self.inputs)

    def __str__(self) -> str:
        return f"{self.cell.table}: {self.cell.key} | seed {self.seed}"


@dataclass(frozen=True)
class Place:
    """Where runs read, work and write; no part of what decides a result."""

    results: Path = STANDARD
    work: Path = Path("runs/bench")  # checkpoints of runs that are not done
    data_root: Path | None = None
    device: str = "auto"
    compile: bool = False
    commit: str | None = None


# ---- the results files --------------------------------------------------------------------------


def load_results(folder: Path) -> list[Line]:
    """The lines of all results files, in order; a line that is broken is passed over."""
    texts = (t for path in sorted(folder.glob("*.jsonl")) for t in path.read_bytes().splitlines())
    return [line for text in texts if (line := _read(text)) is not None]


_FIGURES = dict[str, float]
_ALWAYS: dict[str, Any] = {"hash": str, "experiment": str}
_NEEDED = {  # by status: what the reports rely on, and its type
    "failed": _ALWAYS | {"error": str},
    "done": _ALWAYS
    | {"seed": int, "inputs": dict, "noise_rate": float | None, "seconds": float, "device": str}
    | {"commit": str | None, "last": _FIGURES},
}


def _read(text: bytes) -> Line | None:
    """A line of a results file; None: a crash cut it short, or it does not tell of a run."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or line.get("status") not in tuple(_NEEDED):
        return None
    needed = _NEEDED[line["status"]]
    sound = all(name in line and is_of(line[name], hint) for name, hint in needed.items())
    return line if sound and (line["status"] == "failed" or _has_figures(line)) else None


def _has_figures(line: Line) -> bool:
    """Has a result, by each of its protocols, all that its inputs ask to be measured?"""
    made_of = line["inputs"]
    tests = made_of.get("tests", [])
    if not is_of(tests, list[str]):
        return False
    wanted = {"test_accuracy", "test_nll", *(f"{name}/test_accuracy" for name in tests[1:])}
    wanted |= {"test_miou"} if made_of.get("miou") else set()
    wanted |= {"noisy_test_accuracy", "noisy_test_nll"} if made_of.get("noisy_test") else set()
    needed = dict.fromkeys(PROTOCOLS, wanted)
    needed |= {name: {"val_accuracy", "val_nll"} for name in ("val_last", "val_chosen")}
    present = {name: keys for name, keys in needed.items() if name in line}
    return all(is_of(line[k], _FIGURES) and keys <= set(line[k]) for k, keys in present.items())


def done(folder: Path) -> dict[str, Line]:
    """The result of every run that has one, by its hash; whichever table asked for it."""
    return {line["hash"]: line for line in load_results(folder) if line["status"] == "done"}


def append(path: Path, line: Line) -> None:
    """Add a line, unless the file holds the result of that run already."""
    with locked(path.parent / f".{path.stem}.lock"), path.open("a+b") as file:
        file.seek(0)
        before = file.read()
        result = f'"hash": "{line["hash"]}", "status": "done"'.encode()
        if any(result in text and _read(text) for text in before.splitlines()):
            return
        cut = b"\n" if before and not before.endswith(b"\n") else b""  # after a crash
        file.write(cut + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


# ---- data ---------------------------------------------------------------------------------------


@cache
def _load(name: str, split: str, root: Path | None, stand_in: bool) -> Data:
    return _stand_in(name, split) if stand_in else datasets.load(name, root, split)


# The tiny scale's sets: shape of an input, classes, rows of (train, test).
_SIZES: dict[str, tuple[tuple[int, int, int], int, tuple[int, int]]] = {
    "mnist": ((1, 28, 28), 10, (200, 100)),
    "fashion": ((1, 28, 28), 10, (200, 100)),
    "cifar10": ((3, 32, 32), 10, (200, 100)),
    "svhn": ((3, 32, 32), 10, (200, 100)),
    "cifar10n": ((3, 32, 32), 10, (200, 100)),
    "cifar100": ((3, 32, 32), 100, (200, 100)),
    "cifar100n": ((3, 32, 32), 100, (200, 100)),
    "clothing1m": ((3, 224, 224), 14, (28, 14)),
    "webvision": ((3, 224, 224), 50, (50, 25)),
    "ilsvrc12": ((3, 224, 224), 50, (50, 25)),
    "voc2012": ((3, 256, 256), 21, (4, 2)),
    "cityscapes": ((3, 256, 512), 19, (4, 2)),
    "camvid": ((3, 160, 224), 11, (4, 2)),
}


def _stand_in(name: str, split: str) -> Data:
    """A made set of the same shape and classes, with few rows: one pattern a class, and noise."""
    if name.split("-")[0] not in _SIZES:
        return datasets.load(name, split=split)  # small, and always at hand
    shape, k, sizes = _SIZES[name.split("-")[0]]
    n = sizes[0] if split == "train" else sizes[1]
    pixels = name in ("voc2012", "cityscapes", "camvid")
    patterns = torch.rand(k, shape[0], 4, 4, generator=Recipe().generator("noise", name))
    generator = Recipe().generator("noise", f"{name}/{split}")
    if pixels:  # blocks of a class each, in the class's colour
        coarse = torch.randint(k, (n, shape[1] // 32, shape[2] // 32), generator=generator)
        y = coarse.repeat_interleave(32, 1).repeat_interleave(32, 2)
        x = patterns[:, :, 0, 0][y].permute(0, 3, 1, 2)
    else:
        y = torch.arange(n) % k
        x = torch.nn.functional.interpolate(patterns, shape[1:], mode="bilinear")[y]
    x = x + 0.1 * torch.randn(x.shape, generator=generator)
    data = Data((x.clamp(0, 1) * 255).to(torch.uint8), y, k)
    if name.startswith(("cifar10n", "cifar100n")) and split == "train":
        wrong = noise.symmetric(y, k, rate=0.3, generator=generator)
        return dataclasses.replace(data, y=wrong.y, clean=y)
    return data


def prepare(
    made_of: dict[str, Any], recipe: Recipe, root: Path | None
) -> tuple[Data, dict[str, Data], float | None, noise.Noisy | None]:
    """Training data with its noise, the test sets by prefix of their metrics, the realised rate,
    and, where the noise was made here, what made it.

    The noisy test set has the training set's noise, from its own draws.
    """
    data = _load(made_of["data"], "train", root, made_of["stand_in"])
    if made_of["rows"]:
        data = data.rows(torch.arange(min(made_of["rows"], len(data))))
    data, made = _corrupt(data, made_of["noise"], recipe.generator("noise"))
    tests = {}
    for k, name in enumerate(made_of["tests"]):
        test = _load(name, "test", root, made_of["stand_in"])
        tests[f"{name}/test_" if k else "test_"] = test
        if made_of["noisy_test"] and k == 0:
            noisy, _ = _corrupt(test, made_of["noise"], recipe.generator("noise", "test"))
            tests["noisy_test_"] = noisy
    if data.clean is None:
        return data, tests, None, made
    known = data.clean >= 0
    return data, tests, float((data.y != data.clean)[known].double().mean()), made


def _corrupt(
    data: Data, text: str | None, generator: torch.Generator
) -> tuple[Data, noise.Noisy | None]:
    if text is None:
        return data, None
    made = noise.corrupt(text, data.x, data.y, data.num_classes, generator=generator)
    return dataclasses.replace(data, y=made.y, clean=data.y), made


# ---- one run ------------------------------------------------------------------------------------


def run_cell(
    job: Job, place: Place, on_record: Callable[[Record], None] = lambda record: None
) -> Line:
    """Train and measure; the line for the results file. The same inputs give the same figures."""
    made_of, began = job.inputs, time.perf_counter()
    recipe = Recipe(**made_of["recipe"], seed=job.seed, device=place.device, compile=place.compile)
    data, tests, rate, made = prepare(made_of, recipe, place.data_root)
    method = create(made_of["method"], **_known(made_of["fields"], rate, made))
    root = datasets.home(place.data_root)
    with _alone(data) if made_of["stand_in"] else nullcontext(), _shared_encoders(place):
        trainer = fit_method(
            method,
            data,
            recipe,
            backbone=made_of["backbone"].replace("{data}", str(root)),
            folder=place.work / job.hash,
            resume=True,
            monitor=lambda trainer: measure(trainer, tests),
            on_record=on_record,
            checkpoint_every=30,
        )
        history = trainer.history
        if not any("test_accuracy" in record for record in history):  # nothing was validated
            history = [*history, measure(trainer, tests)]
        most = 64 if made_of["stand_in"] else 4000
        errors = transition_errors(trainer, data, made, most)
    return {
        "hash": job.hash,
        "status": "done",
        "experiment": experiment(made_of),
        "table": job.cell.table,
        "row": job.cell.row,
        "group": job.cell.group,
        "column": job.cell.column,
        "scale": job.scale,
        "seed": job.seed,
        "inputs": made_of,
        "noise_rate": rate,
        **protocols(history),
        **errors,
        "seconds": round(time.perf_counter() - began, 2),
        **circumstances(place),
    }


def circumstances(place: Place) -> dict[str, Any]:
    """What a run's inputs do not decide; `compile` is told where it was on: it rounds otherwise."""
    device = choose_device(place.device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **({"compile": True} if place.compile else {}),
        "versions": versions(),
        "commit": place.commit,
    }


@contextmanager
def _shared_encoders(place: Place) -> Iterator[None]:
    """Seeds and columns of one data set share what pre-training makes of its inputs."""
    if CACHE in os.environ:
        yield
        return
    os.environ[CACHE] = str((place.work / "encoders").absolute())
    try:
        yield
    finally:
        del os.environ[CACHE]


@contextmanager
def _alone(data: Data) -> Iterator[None]:
    """For tiny runs: one thread, so that their figures are the same whatever runs beside them.

    oneDNN's backward convolutions over few channels of large pictures write past their memory
    (torch 2.13 on the CPU): tiny networks on such pictures do without it.
    """
    onednn: Any = torch.backends.mkldnn
    threads, enabled = torch.get_num_threads(), onednn.enabled
    torch.set_num_threads(1)
    onednn.enabled = enabled and max(data.shape[1:], default=1) <= 64
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        onednn.enabled = enabled


def _known(fields: dict[str, Any], rate: float | None, made: noise.Noisy | None) -> dict[str, Any]:
    """Knowledge that a row is handed: `rate = "realised"`, as the papers do, and `T = "true"`."""
    told: dict[str, Any] = {"realised": "auto" if rate is None else rate}
    told["true"] = None if made is None else made.matrix.tolist()
    return {k: told.get(v, v) if isinstance(v, str) else v for k, v in fields.items()}


def measure(trainer: Trainer, tests: dict[str, Data]) -> Record:
    """Test figures of an epoch: of the true labels, and of noisy ones under the noisy posterior."""
    record: Record = {}
    for prefix, data in tests.items():
        noisy = prefix.startswith("noisy")
        record |= {f"{prefix}{k}": v for k, v in trainer.score(data, noisy=noisy).items()}
    return record


def transition_errors(
    trainer: Trainer, data: Data, made: noise.Noisy | None, most: int = 4000
) -> Record:
    """How far the method's T(x) is from the one that made the noise.

    transition_l1: of the mean T, relative L1. row_error: squared error of the true class's row,
    mean over up to `most` training rows; class_floor: what the best class-level T would have there.
    """
    if made is None or data.clean is None or data.y.dim() > 1:
        return {}
    some = data.rows(torch.arange(min(most, len(data))))
    method: Any = trainer.method
    first = torch.zeros(1, dtype=torch.int64, device=trainer.device)
    if method.transition(trainer.batch(some, first)) is None:
        return {}

    def T_of(batch: Batch) -> Tensor:
        T = method.transition(batch)
        return T.expand(len(batch.x), *T.shape[-2:])

    T, clean = trainer.map(T_of, some).float().cpu(), data.clean[: len(some)]
    rows = made.rows[: len(some)]
    return {
        "transition_l1": float(relative_l1(T.mean(0), made.matrix)),
        "row_error": float(row_error(T[torch.arange(len(T)), clean], rows)),
        "class_floor": float(class_floor(rows, clean)),
    }


def protocols(history: list[Record]) -> dict[str, Any]:
    """Every test figure by each protocol: last epoch, chosen by noisy validation, mean of ten.

    Epochs of an earlier stage (a warm-up) are not chosen, and count only where the last stage has
    fewer than ten.
    """
    measured = [record for record in history if "test_accuracy" in record]
    last = measured[-1]
    keys = [key for key in last if "test_" in key]
    ten = measured[-10:]
    found: dict[str, Any] = {
        "epochs": len(history),
        "last": {key: last[key] for key in keys},
        "mean_of_last_ten": {key: float(np.mean([r[key] for r in ten])) for key in keys},
    }
    rivals = [r for r in measured if r.get("stage") == last.get("stage") and "val_accuracy" in r]
    if rivals:
        chosen = max(rivals, key=lambda record: record["val_accuracy"])
        found |= {"chosen": {key: chosen[key] for key in keys}, "chosen_epoch": chosen["epoch"]}
        for name, record in (("val_last", last), ("val_chosen", chosen)):
            found[name] = {key: record[key] for key in ("val_accuracy", "val_nll")}
    return found


def run_job(job: Job, place: Place, say: Say) -> None:
    """Run a job unless its result is there, and add its line; a failure is a line as well."""
    folder = place.work / job.hash
    with locked(folder.with_suffix(".lock")):  # an orphan of a killed sweep may be at it still
        if job.hash in done(place.results):
            say("done", job, done(place.results)[job.hash])
            return
        over = True
        try:
            line = run_cell(job, place, lambda record: say("epoch", job, record))
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            line = failure(job, place, f"{type(error).__name__}: {reason}")
            over = isinstance(error, BadInput | Diverged)  # would end so again
        append(place.results / f"{job.cell.table}.jsonl", line)
        if over:  # else the next try goes on from the last checkpoint
            shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".lock").unlink(missing_ok=True)
    say("done", job, line)


def failure(job: Job, place: Place, error: str) -> Line:
    """The line of a run that failed; it is tried again by the next command."""
    where = {"table": job.cell.table, "row": job.cell.row, "group": job.cell.group}
    where |= {"column": job.cell.column, "scale": job.scale, "experiment": experiment(job.inputs)}
    line = {"hash": job.hash, "status": "failed", "error": error, **where, "seed": job.seed}
    return line | {"inputs": job.inputs, "versions": versions(), "commit": place.commit}


# ---- three ways to run many ---------------------------------------------------------------------


def run_here(jobs: Sequence[Job], place: Place, say: Say, workers: int) -> None:
    for job in jobs:
        run_job(job, place, say)


def run_processes(jobs: Sequence[Job], place: Place, say: Say, workers: int) -> None:
    """Worker processes; a job whose process dies goes to another one, which resumes it."""
    context = multiprocessing.get_context("spawn")
    waiting, deaths = deque(jobs), Counter[str]()
    busy: dict[Any, tuple[Any, Job]] = {}  # our end of the pipe -> process, its job

    def start() -> None:
        """A new worker with the next job."""
        if waiting:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, place))
            process.start()
            theirs.close()
            busy[ours] = (process, waiting.popleft())
            with suppress(OSError):  # it is dead already: recv will tell
                ours.send(busy[ours][1])

    def go_on(ours: Any, process: Any) -> None:
        """The next job for a worker that is done with one, or its end."""
        if waiting:
            try:
                ours.send(waiting[0])
            except OSError:  # killed between two runs: the job has lost nothing
                process.join()
                start()
            else:
                busy[ours] = (process, waiting.popleft())
                return
        ours.close()  # the worker ends

    try:
        for _ in range(min(workers, len(jobs))):
            start()
        while busy:
            for ours in cast(list[Any], wait(list(busy))):
                process, job = busy[ours]
                try:
                    kind, value = ours.recv()
                except (EOFError, OSError):  # it was killed
                    del busy[ours]
                    process.join()
                    deaths[job.hash] += 1
                    if deaths[job.hash] < LIVES:
                        waiting.appendleft(job)
                    else:
                        line = failure(job, place, f"its process died {LIVES} times")
                        append(place.results / f"{job.cell.table}.jsonl", line)
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


def _serve(connection: Connection, place: Place) -> None:
    """A worker: runs the jobs that come through the pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends us
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
        run_job(job, place, say)


def run_ray(jobs: Sequence[Job], place: Place, say: Say, workers: int) -> None:
    """Tasks of a Ray cluster whose nodes share the folders; Ray retries those that are killed."""
    try:
        import ray
    except ImportError:
        raise BadInput("--ray needs Ray: pip install 'ytilde[ray]'") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    # the nodes decide, not this one, which may be the only one without a GPU
    gpu = 1 / workers if place.device != "cpu" and ray.cluster_resources().get("GPU") else 0
    place = dataclasses.replace(
        place,
        results=place.results.absolute(),
        work=place.work.absolute(),
        data_root=datasets.home(place.data_root).absolute(),
    )

    @ray.remote(num_cpus=1, num_gpus=gpu, max_retries=LIVES)
    def task(job: Job) -> Line:
        torch.set_num_threads(1)
        lines: list[Line] = []
        run_job(job, place, lambda kind, _, value: lines.append(value))
        return lines[-1]

    waiting = {task.remote(job): job for job in jobs}
    while waiting:
        ready, _ = ray.wait(list(waiting))
        for reference in ready:
            job = waiting.pop(reference)
            try:
                line = ray.get(reference)
            except ray.exceptions.RayError as error:
                line = failure(job, place, f"{type(error).__name__}")
                append(place.results / f"{job.cell.table}.jsonl", line)
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
    place: Place | None = None,
    say: Say = lambda kind, job, value: None,
) -> list[Line]:
    """Run what is missing of a table; returns the lines of all runs asked for, in their order.

    seeds: how many; default the paper's number at the full scale, else 1. tuned: with the fields
    that `tune` found best instead of the paper's.
    """
    place = place or Place(default_results(scale))
    found = choose(cells(_table(table)), only, columns)
    jobs = plan(_table(table), found, seeds, scale, list(done(place.results).values()), tuned)
    return sweep(jobs, workers=workers, ray=ray, place=place, say=say)


def plan(
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


def sweep(jobs: Sequence[Job], *, workers: int, ray: bool, place: Place, say: Say) -> list[Line]:
    """Run the jobs that have no result yet; the lines of all of them, in their order."""
    if not all(job.scale in SCALES for job in jobs):
        raise BadInput(unknown("scale", jobs[0].scale, SCALES))
    place = dataclasses.replace(place, commit=place.commit or commit())
    known = done(place.results)
    unique = {job.hash: job for job in jobs}
    missing = [job for name, job in unique.items() if name not in known]
    _check_data(missing, place)
    place.results.mkdir(parents=True, exist_ok=True)
    execute = run_ray if ray else run_processes if workers > 1 else run_here
    execute(missing, place, say, workers)
    lines = {line["hash"]: line for line in load_results(place.results)} | done(place.results)
    return [lines[job.hash] for job in jobs if job.hash in lines]


def needed_data(cell: Cell, scale: str, root: Path | None) -> list[str]:
    """The named sets of a cell that are not at hand; tiny runs make their own."""
    if scale == "tiny":
        return []
    wanted = [(cell.data, "train"), *((name, "test") for name in cell.tests)]
    lacking = [name for name, split in wanted if not datasets.at_hand(name, root, split)]
    return list(dict.fromkeys(lacking))


def _check_data(jobs: Sequence[Job], place: Place) -> None:
    """Refuse runs that all lack their data; where some have it, the others fail by themselves."""
    lacking = [needed_data(job.cell, job.scale, place.data_root) for job in jobs]
    if not jobs or not all(lacking):
        return
    names = dict.fromkeys(name for of_job in lacking for name in of_job)
    how = [f"{name} ({datasets.origin(name)})" for name in names]
    raise BadInput(
        f"The data of these runs is not in {datasets.home(place.data_root)}: {', '.join(how)}; get "
        "it, or name its folder with --data-root or $YTILDE_DATA."
    )


def tune(
    table: str | Table,
    *,
    only: Sequence[str] = (),
    columns: Sequence[str] = (),
    scale: str = "full",
    workers: int = 1,
    ray: bool = False,
    trials: int | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    place: Place | None = None,
    say: Say = lambda kind, job, value: None,
) -> dict[str, dict[str, Any]]:
    """Search the papers' grids by noisy validation, one seed; the best fields of each cell.

    grid: only these values of these fields. trials: so many points, proposed by Optuna, instead of
    all. The runs are ordinary ones of seed 0: `run --tuned` reads the winner off them and adds the
    other seeds.
    """
    place = place or Place(default_results(scale))
    table = _table(table)
    asked = to_tune(choose(cells(table), only, columns), grid or {})
    if not asked:
        raise BadInput(NOTHING_TO_TUNE)
    options: dict[str, Any] = {"workers": workers, "ray": ray, "place": place, "say": say}
    return search(table, asked, scale, trials, options)


def to_tune(found: Sequence[Cell], grid: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Those of the cells that can be run and have a grid, with only these values of it."""
    return [narrowed(cell, grid) for cell in found if cell.reason is None and cell.grid]


def search(
    table: Table, asked: Sequence[Cell], scale: str, trials: int | None, options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run points of the grids of these cells; the best fields of each, of its own grid alone."""
    if trials is None:
        sweep([Job(point, scale, 0) for cell in asked for point in cell.points()], **options)
    else:
        for cell in asked:
            _search(table, cell, scale, trials, options)
    lines = list(done(options["place"].results).values())
    best = {cell.key: best_point(table, cell, scale, lines) for cell in asked}
    return {key: cell.fields for key, cell in best.items() if cell is not None}


def narrowed(cell: Cell, grid: Mapping[str, Sequence[Any]]) -> Cell:
    """The cell with only these values of its grid."""
    for name, values in grid.items():
        known = cell.grid.get(name, [])
        for value in values:
            if value not in known:
                raise BadInput(f"the grid of {cell.key} has no {name} = {value}; it is {cell.grid}")
    # the grid's own values: 2 and 2.0 are equal, but not in a hash
    kept = {name: [v for v in cell.grid[name] if v in values] for name, values in grid.items()}
    return dataclasses.replace(cell, grid=cell.grid | kept)


def _search(table: Table, cell: Cell, scale: str, trials: int, options: dict[str, Any]) -> None:
    """Optuna's proposals from the grid, several at a time; its journal lies in the work folder."""
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise BadInput("--trials needs Optuna: pip install 'ytilde[tune]'") from None
    place = options["place"]
    place.work.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = JournalFileBackend(str(place.work / "optuna.journal"))
    # a study is of one grid, and tells nothing of runs that lie elsewhere
    runs = [Job(point, scale, 0).hash for point in cell.points()]
    of = digest({"results": str(place.results.resolve()), "runs": runs})
    study = optuna.create_study(
        study_name=f"{scale}/{cell.table}/{cell.key}/{of}",
        storage=optuna.storages.JournalStorage(journal),
        sampler=optuna.samplers.TPESampler(seed=0),
        direction="maximize",
        load_if_exists=True,
    )
    finished = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    known = done(place.results)  # a study may outlive its runs
    left = trials - sum(
        Job(cell.with_fields(trial.params), scale, 0).hash in known for trial in finished
    )
    while left > 0:
        asked = [study.ask() for _ in range(min(left, options["workers"]))]
        points = [
            cell.with_fields(
                {name: trial.suggest_categorical(name, v) for name, v in cell.grid.items()}
            )
            for trial in asked
        ]
        jobs = [Job(point, scale, 0) for point in points]
        lines = {line["hash"]: line for line in sweep(jobs, **options)}
        for trial, job in zip(asked, jobs, strict=True):
            score = validation(table, lines.get(job.hash))
            if score is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, score)
        left -= len(asked)


def validation(table: Table, line: Line | None) -> float | None:
    """How good noisy validation finds a run, higher is better; None: it failed, or has none."""
    where = "val_chosen" if table.protocol == "chosen" else "val_last"
    if line is None or where not in line:
        return None
    value = line[where][table.select]
    return -value if table.select == "val_nll" else value


def best_point(table: Table, cell: Cell, scale: str, lines: Iterable[Line]) -> Cell | None:
    """The cell with the best fields of those tried; the first of equals; None: nothing tried."""
    known = {line["hash"]: line for line in lines}
    scores = [
        (validation(table, known.get(Job(point, scale, 0).hash)), point) for point in cell.points()
    ]
    tried = [(score, point) for score, point in scores if score is not None]
    return max(tried, key=lambda pair: pair[0])[1] if tried and cell.grid else None


def _table(table: str | Table) -> Table:
    return load_table(table) if isinstance(table, str) else table


def default_results(scale: str) -> Path:
    """Runs on made data are no results."""
    return Path("runs/tiny") if scale == "tiny" else STANDARD


@cache
def versions() -> dict[str, str]:
    """What runs here; asked for late, because the command line imports this file."""
    from .cli import versions

    return versions()


@cache
def commit() -> str | None:
    """The commit that runs, with + where files differ from it; None outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True)
    except OSError:
        return None
    name = found.stdout.decode().strip()
    return name + ("+" if changed.stdout.strip() else "") if name else None


# ---- what was measured --------------------------------------------------------------------------


def report(
    table: str | Table, lines: Sequence[Line], scale: str | None = None
) -> bench_report.Report:
    """What was measured of a table, cell by cell; without a scale: full runs, else reduced ones."""
    table = _table(table)
    # two tables may hold the same run
    finished = list({line["hash"]: line for line in lines if line["status"] == "done"}.values())
    errors = {line["experiment"]: line["error"] for line in lines if line["status"] == "failed"}
    by_experiment: dict[str, list[Line]] = {}
    for line in finished:
        by_experiment.setdefault(line["experiment"], []).append(line)
    entries = {}
    for cell in cells(table):
        note, runs, used, points = cell.reason, [], None, []
        # what cannot be measured stays empty, even where another column has the same inputs
        for used in [] if cell.reason else [scale] if scale else ["full", "reduced"]:
            name = experiment(inputs(cell, used, 0))
            runs, tuned = by_experiment.get(name, []), False
            note = f"failed: {errors[name]}" if name in errors else note
            points = [
                ({field: point.fields[field] for field in cell.grid}, tuple(tried))
                for point in cell.points()
                if cell.grid and (tried := by_experiment.get(experiment(inputs(point, used, 0))))
            ]
            if best := best_point(table, cell, used, finished):
                of_best = by_experiment[experiment(inputs(best, used, 0))]
                if len(of_best) > len(runs):  # more seeds than the paper's own fields got
                    runs, tuned = of_best, True
            if runs:
                note = "tuned" if tuned else None
                break
        entries[cell.group, cell.column, cell.row] = bench_report.entry(
            table, cell, runs, used if runs else None, note, points
        )
    beside = None if scale else report(table, lines, "reduced")
    return bench_report.Report(table, entries, beside)


__all__ = [
    "PROTOCOLS",
    "Job",
    "Place",
    "cells",
    "list_tables",
    "load_results",
    "load_table",
    "protocols",
    "report",
    "run",
    "run_cell",
    "tune",
]
