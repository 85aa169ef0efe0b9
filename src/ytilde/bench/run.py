"""One run of a cell: its data, its training, its measurements, and the line that is kept.

A run is decided by its inputs alone, and goes on from its last checkpoint, so that every command
can be stopped, killed and repeated.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoint, datasets, noise
from ..data import BadInput, Batch, Data
from ..engine import Diverged, Recipe, Record, Trainer, choose_device
from ..engine.protocols import protocols
from ..files import locked
from ..fitting import CACHE, fit_method
from ..method import create
from ..runfolder import CHECKPOINTS
from ..transition import class_floor, relative_l1, row_error
from ..versions import versions
from .results import STANDARD, Line, append, check_results, done
from .stand_ins import load_set
from .tables import Job, experiment

Say = Callable[[str, Job, Any], None]  # say("epoch" | "done", job, record or line)


@dataclass(frozen=True)
class RunPaths:
    """Where runs read, work and write, and on what; no part of what decides a result."""

    results: Path = STANDARD
    work: Path = Path("runs/bench")  # checkpoints of runs that are not done
    data_root: Path | None = None
    device: str = "auto"
    compile: bool = False
    commit: str | None = None


def prepare(
    run_inputs: dict[str, Any], recipe: Recipe, root: Path | None
) -> tuple[Data, dict[str, Data], float | None, noise.Noisy | None]:
    """Training data with its noise, the test sets by prefix of their metrics, the realised rate,
    and, where the noise was made here, what made it.

    The noisy test set has the training set's noise, from its own draws.
    """
    data = load_set(run_inputs["data"], "train", root, run_inputs["stand_in"])
    if run_inputs["rows"]:
        data = data.rows(torch.arange(min(run_inputs["rows"], len(data))))
    data, made = _corrupt(data, run_inputs["noise"], recipe.generator("noise"))
    tests = {}
    for k, name in enumerate(run_inputs["tests"]):
        test = load_set(name, "test", root, run_inputs["stand_in"])
        tests[f"{name}/test_" if k else "test_"] = test
        if run_inputs["noisy_test"] and k == 0:
            noisy, _ = _corrupt(test, run_inputs["noise"], recipe.generator("noise", "test"))
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


def run_cell(
    job: Job, paths: RunPaths, on_record: Callable[[Record], None] = lambda record: None
) -> Line:
    """Train and measure; the line for the results file. The same inputs give the same figures."""
    run_inputs, began = job.inputs, time.perf_counter()
    seen: set[tuple[str, int]] = set()  # stage and epoch of what was trained here

    def tell(record: Record) -> None:
        if "race" not in record:
            seen.add((record["stage"], record["epoch"]))
        on_record(record)

    recipe = Recipe(
        **run_inputs["recipe"], seed=job.seed, device=paths.device, compile=paths.compile
    )
    data, tests, rate, made = prepare(run_inputs, recipe, paths.data_root)
    method = create(run_inputs["method"], **_known(run_inputs["fields"], rate, made))
    root = datasets.home(paths.data_root)
    with _alone(data) if run_inputs["stand_in"] else nullcontext(), _shared_encoders(paths):
        trainer = fit_method(
            method,
            data,
            recipe,
            backbone=run_inputs["backbone"].replace("{data}", str(root)),
            folder=paths.work / job.hash,
            resume=True,
            monitor=lambda trainer: measure(trainer, tests),
            on_record=tell,
            checkpoint_every=30,
        )
        history = trainer.history
        if not any("test_accuracy" in record for record in history):  # nothing was validated
            history = [*history, measure(trainer, tests)]
        # of a run that was interrupted: what was trained before counts too
        before = [r["seconds"] for r in trainer.history if (r["stage"], r["epoch"]) not in seen]
        most = 64 if run_inputs["stand_in"] else 4000
        errors = transition_errors(trainer, data, made, most)
    return {
        "hash": job.hash,
        "status": "done",
        "experiment": experiment(run_inputs),
        "table": job.cell.table,
        "row": job.cell.row,
        "group": job.cell.group,
        "column": job.cell.column,
        "scale": job.scale,
        "seed": job.seed,
        "inputs": run_inputs,
        "noise_rate": rate,
        **protocols(history),
        **errors,
        "seconds": round(sum(before) + time.perf_counter() - began, 2),
        "train_seconds": round(sum(r.get("train_seconds", 0.0) for r in trainer.history), 2),
        **circumstances(paths),
    }


def circumstances(paths: RunPaths) -> dict[str, Any]:
    """What a run's inputs do not decide; `compile` is told where it was on: it rounds otherwise."""
    device = choose_device(paths.device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **({"compile": True} if paths.compile else {}),
        "versions": versions(),
        "commit": paths.commit,
    }


@contextmanager
def _shared_encoders(paths: RunPaths) -> Iterator[None]:
    """Seeds and columns of one data set share what pre-training makes of its inputs."""
    if CACHE in os.environ:
        yield
        return
    os.environ[CACHE] = str((paths.work / "encoders").absolute())
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


def run_job(job: Job, paths: RunPaths, say: Say) -> None:
    """Run a job unless its result is there, and add its line; a failure is a line as well."""
    folder, lock = paths.work / job.hash, _lock(job, paths)
    check_results(paths.results / f"{job.cell.table}.jsonl")
    with locked(lock):  # an orphan of a killed sweep may be at it still
        if job.hash in done(paths.results):
            say("done", job, done(paths.results)[job.hash])
            return
        over = True
        try:
            line = run_cell(job, paths, lambda record: say("epoch", job, record))
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            line = failure(job, paths, f"{type(error).__name__}: {reason}")
            over = isinstance(error, BadInput | Diverged)  # would end so again
        append(paths.results / f"{job.cell.table}.jsonl", line)
        if over:  # else the next try goes on from the last checkpoint
            shutil.rmtree(folder, ignore_errors=True)
    lock.unlink(missing_ok=True)
    say("done", job, line)


def _lock(job: Job, paths: RunPaths) -> Path:
    return (paths.work / job.hash).with_suffix(".lock")


def is_running(job: Job, paths: RunPaths) -> bool:
    """Is a process of this machine at it now?"""
    try:
        with _lock(job, paths).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def seconds_spent(job: Job, paths: RunPaths) -> float:
    """How many seconds of training the last checkpoint of an interrupted run holds."""
    files = [paths.work / job.hash / name for name in CHECKPOINTS]
    found, _ = checkpoint.newest(files, lambda tensors, meta: "history" in meta)
    return sum(record["seconds"] for record in found[1]["history"]) if found else 0.0


def failure(job: Job, paths: RunPaths, error: str) -> Line:
    """The line of a run that failed; it is tried again by the next command."""
    where = {"table": job.cell.table, "row": job.cell.row, "group": job.cell.group}
    where |= {"column": job.cell.column, "scale": job.scale, "experiment": experiment(job.inputs)}
    line = {"hash": job.hash, "status": "failed", "error": error, **where, "seed": job.seed}
    return line | {"inputs": job.inputs, "versions": versions(), "commit": paths.commit}
