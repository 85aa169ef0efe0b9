"""How fast a lazy folder of JPEGs feeds a linear model, against decoding them and nothing else.

    python benchmarks/bench_lazy.py [--images 200000] [--size 32] [--out results/FILE.jsonl]

Two worker processes in both cases; the files are made first, and read once so that the disk's
cache is warm. The model trains for one epoch through `Trainer`; decoding alone reads the same
batches with the same reader in two processes, and throws the pixels away. They take turns. Memory:
the largest sum, over the epoch, of what the processes hold for themselves (shared pages split).

Both ratios are printed: of images per second, which another process on the machine disturbs, and
of processor time per image, which it does not (with all cores at work, speed is its inverse).
A linear model passes over the pixels too, so the share of decoding falls with the size: on two busy
cores 0.90 of the images per second at 32 pixels a side (200,000 images), 0.79 at 64 (20,000):
`results/lazy_folder.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from ytilde import readers
from ytilde.data import Data
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import make_spec
from ytilde.method import create

WORKERS, BATCH, CLASSES = 2, 256, 10


def make(folder: Path, number: int, size: int) -> None:
    """Smooth random pictures: noise does not compress, and photographs do."""
    rng = np.random.default_rng(0)
    for k in range(number):
        path = folder / str(k % CLASSES) / f"{k:07}.jpg"
        if k < CLASSES:
            path.parent.mkdir()
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8))
        coarse.resize((size, size), Image.Resampling.BICUBIC).save(path, quality=85)


def decode(data: Data, batches: list[torch.Tensor]) -> None:
    torch.set_num_threads(1)
    for index in batches:
        data.x[index]


class Cost(NamedTuple):
    speed: float  # images per second
    work: float  # processor seconds an image, of all processes


def measured(work: Callable[[], None], number: int) -> Cost:
    began, before = time.perf_counter(), processor_time()
    work()
    return Cost(number / (time.perf_counter() - began), (processor_time() - before) / number)


def processor_time() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def decoding_alone(data: Data) -> None:
    """Two processes that only decode."""
    batches = list(torch.randperm(len(data)).split(BATCH))
    fork = multiprocessing.get_context("fork")
    parts = [batches[k::WORKERS] for k in range(WORKERS)]
    processes = [fork.Process(target=decode, args=(data, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def training(data: Data) -> Callable[[], None]:
    """One epoch of a linear model; what comes before it is not measured."""
    recipe = Recipe(epochs=1, batch_size=BATCH, lr=0.01, val=0.0, workers=WORKERS, device="cpu")
    method = create("ce")
    method.build(make_spec(data.rows(torch.arange(500)), "identity", recipe))
    trainer = Trainer(method, recipe)

    def epoch() -> None:
        trainer.train("main", method.loss, method.param_groups(), data)

    return epoch


class Memory:
    """The peak of the proportional memory of this process and its children, in bytes."""

    def __enter__(self) -> Memory:
        self.peak, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.done.wait(0.25):
            self.peak = max(self.peak, sum(map(proportional, family())))

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


def family() -> list[int]:
    children = [p.pid for p in multiprocessing.active_children()]
    return [os.getpid(), *(pid for pid in children if pid)]


def proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has just ended
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.images, options.size)
        data = readers.read(folder, lazy=True).data
        decoding_alone(data)
        training(data.rows(torch.arange(4 * BATCH)))()  # what is imported when it is first needed
        alone, fed = [], []
        for _ in range(options.rounds):
            alone.append(measured(partial(decoding_alone, data), len(data)))
            fed.append(measured(training(data), len(data)))
        with Memory() as memory:  # apart: watching costs time
            training(data)()
    speed = statistics.median(f.speed / a.speed for f, a in zip(fed, alone, strict=True))
    work = statistics.median(a.work / f.work for f, a in zip(fed, alone, strict=True))
    line = {
        "benchmark": "lazy_folder",
        "images": options.images,
        "size": options.size,
        "workers": WORKERS,
        "rounds": options.rounds,
        "decoding_alone_per_s": round(statistics.median(a.speed for a in alone)),
        "training_per_s": round(statistics.median(f.speed for f in fed)),
        "ratio": round(speed, 3),
        "ratio_of_processor_time": round(work, 3),
        "load": round(os.getloadavg()[0], 1),
        "peak_memory_gb": round(memory.peak / 1e9, 3),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(line))
    print(f"training / decoding alone {speed:.3f}, by processor time {work:.3f}   (bar: 0.90)")
    print(f"peak memory {memory.peak / 1e9:.2f} GB   (bar: under 2)")
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
