"""Several trainings on one GPU: as processes, and as streams of one process.

    python benchmarks/gpu_many_runs.py [--out FILE]        # processes and streams
    python benchmarks/gpu_many_runs.py --mps               # the same under NVIDIA's MPS daemon

Total images/s of 1, 2, 4, 8 runs that replay their captured step, WRN-28-2 on CIFAR-10's shape and
ResNet-18 (ImageNet stem) on Fashion-MNIST's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ytilde.data import Data
from ytilde.engine import Recipe, Stage, Trainer, to_device
from ytilde.fitting import make_spec
from ytilde.method import create

MODELS = {
    "wrn_cifar": ("wide_resnet", (3, 32, 32)),
    "resnet18_fashion": ("resnet18:stem=imagenet", (1, 28, 28)),
}
N, BATCH, SECONDS = 12_800, 128, 3.0


def make_step(model: str) -> Any:
    backbone, shape = MODELS[model]
    data = Data(torch.randint(0, 256, (N, *shape), dtype=torch.uint8), torch.arange(N) % 10, 10)
    recipe = Recipe(epochs=1, batch_size=BATCH, lr=0.01, augment="crop+flip", val=0.0)
    method = create("ce")
    method.build(make_spec(data, backbone, recipe))
    trainer = Trainer(method, recipe)
    to_device(method, trainer.device)
    stage = Stage(trainer, "main", method.loss, method.param_groups(), data, recipe)
    step = stage.begin(0)
    batches = torch.randperm(N).to(trainer.device).split(BATCH)
    for k in range(8):
        step(batches[k])
    torch.cuda.synchronize()
    return lambda k: step(batches[k % len(batches)])


def in_process(model: str, start: Any, queue: Any) -> None:
    step = make_step(model)
    start.wait()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(20):
            step(count)
            count += 1
        torch.cuda.synchronize()
    queue.put(count * BATCH / (time.perf_counter() - began))


def processes(model: str, runs: int) -> float:
    context = multiprocessing.get_context("spawn")
    start, queue = context.Barrier(runs), context.Queue()
    workers = [context.Process(target=in_process, args=(model, start, queue)) for _ in range(runs)]
    for worker in workers:
        worker.start()
    total = sum(queue.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    return total


def streams(model: str, runs: int) -> float:
    lanes = [torch.cuda.Stream() for _ in range(runs)]
    steps = []
    for lane in lanes:
        with torch.cuda.stream(lane):
            steps.append(make_step(model))
    torch.cuda.synchronize()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(20):
            for lane, step in zip(lanes, steps, strict=True):
                with torch.cuda.stream(lane):
                    step(count)
            count += 1
        torch.cuda.synchronize()
    return runs * count * BATCH / (time.perf_counter() - began)


def start_mps() -> None:
    folder = tempfile.mkdtemp()
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--how", default="processes,streams")
    parser.add_argument("--runs", type=int, nargs="*", default=[1, 2, 4, 8])
    options = parser.parse_args()
    if options.mps:
        start_mps()
    lines = []
    for model in MODELS:
        for how, measure in (("processes", processes), ("streams", streams)):
            if how not in options.how.split(","):
                continue
            for runs in options.runs:
                line = {"model": model, "how": how, "runs": runs, "mps": options.mps}
                line["images_per_second"] = round(measure(model, runs))
                lines.append(line)
                print(json.dumps(line), flush=True)
    if options.out:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
