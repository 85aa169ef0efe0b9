"""What a logistic-normal or heteroscedastic head adds to a training step of ResNet-18 on a CPU.

    PYTHONPATH=src python benchmarks/bench_step.py

One step (augment, forward, backward, update) at batch 128, 3x32x32, one thread; the methods take
turns, medians in CPU time. The bar is 1.15x of softmax's. Exits with 1 where it is missed.
"""

import statistics
import sys
import time

import torch

from ytilde.data import Batch, Data, StepInfo
from ytilde.engine import Recipe
from ytilde.fitting import make_spec
from ytilde.method import create

BAR, TURNS, BATCH = 1.15, 5, 128
METHODS = {"ce": {}, "ln": {}, "het": {"train_samples": 50}}


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.rand(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    batch, data = Batch(x, y, torch.arange(BATCH)), Data(x, y, 10)
    step = StepInfo(torch.zeros(()), 1, torch.Generator().manual_seed(0), lambda x: x)
    ready = {}
    for name, fields in METHODS.items():
        method = create(name, **fields)
        method.build(make_spec(data, "resnet18:stem=cifar", Recipe()))
        ready[name] = method, torch.optim.SGD(method.parameters(), lr=0.01, momentum=0.9)
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(TURNS):
        for name, (method, optimizer) in ready.items():
            began = time.process_time()
            optimizer.zero_grad()
            method.loss(batch, step).backward()
            optimizer.step()
            times[name].append(time.process_time() - began)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    ratios = {name: value / median["ce"] for name, value in median.items()}
    for name, value in median.items():
        print(f"{name:<4} {value:.2f} s a step, {ratios[name]:.3f}x")
    held = max(ratios.values()) <= BAR
    print(f"bar (<= {BAR}x): {'held' if held else 'MISSED'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
