"""Where the time of a training step goes on one GPU: kernels by kind, against what the card can do.

    python benchmarks/gpu_profile.py [--batches 128 512] [--out results/gpu_profile.jsonl]

ResNet-18 (CIFAR stem) at 32x32, cross-entropy, bf16, captured and compiled, random pictures. For
each batch size: images/s with cuDNN's heuristic and with its search for the fastest algorithm
(`torch.backends.cudnn.benchmark`), then the share of each kind of kernel, the rate of arithmetic
inside the convolutions, and the rate that a large matrix product reaches in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_throughput import finish_queued_work, images, ours, rate
from ytilde.method import create

BACKBONE, SHAPE = "resnet18:stem=cifar", (3, 32, 32)
FLOPS = 3 * 2 * 0.5554e9  # of one image: multiply-adds of the forward pass, twice, three passes
KINDS = {
    "convolution": ("conv", "xmma", "cudnn", "cutlass", "implicit", "wgrad", "dgrad", "gemm"),
    "fused by the compiler": ("triton",),
    "optimiser": ("multi_tensor", "fusedsgd", "foreach"),
}


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    return next((k for k, parts in KINDS.items() if any(p in name for p in parts)), "other")


def matrix_rate(n: int = 8192, repeats: int = 20) -> float:
    """FLOP/s of a bf16 matrix product of random values: what this card can do today."""
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        a @ b
    torch.cuda.synchronize()
    return repeats * 2 * n**3 / (time.perf_counter() - began)


def shares(one: Callable[[], int], steps: int = 20) -> tuple[dict[str, float], list[Any], float]:
    """Milliseconds a step of each kind of kernel, the ten longest kernels, and the step's own."""
    for _ in range(3):
        one()
    finish_queued_work()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        began = time.perf_counter()
        for _ in range(steps):
            one()
        finish_queued_work()
        wall = time.perf_counter() - began
    kinds: Counter[str] = Counter()
    longest: list[Any] = []
    for event in found.key_averages():
        spent = event.self_device_time_total / 1e3 / steps
        if spent > 0:
            kinds[kind_of(event.key)] += spent
            longest.append((round(spent, 4), round(event.count / steps, 1), event.key[:90]))
    longest.sort(reverse=True)
    return {k: round(v, 4) for k, v in kinds.items()}, longest[:10], 1e3 * wall / steps


def look_at(batch: int, found: dict[str, Any], one: Callable[[], int]) -> float:
    """Measure a step; what was seen goes into `found`."""
    speed = rate(one)
    kinds, longest, wall = shares(one)
    convolutions = max(kinds.get("convolution", 0), 1e-9)
    found |= {
        "images_per_second": round(speed),
        "tflops": round(speed * FLOPS / 1e12, 1),
        "ms_by_kind": kinds,
        "ms_a_step": round(1e3 * batch / speed, 4),
        "ms_a_step_profiled": round(wall, 4),
        "conv_tflops": round(batch * FLOPS / 1e9 / convolutions, 1),
        "longest": longest,
    }
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    about |= {"python": platform.python_version(), "matmul_tflops": round(matrix_rate() / 1e12)}
    for batch in options.batches:
        for search in (False, True):
            torch.backends.cudnn.benchmark = search
            line: dict[str, Any] = {"batch": batch, "search": search, **about}
            for compiled in (False, True):
                found: dict[str, Any] = {}
                look = partial(look_at, batch, found)
                ours(create("ce"), BACKBONE, images(SHAPE), batch, look, compile=compiled)
                line["compiled" if compiled else "plain"] = found
            print(json.dumps(line), flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
