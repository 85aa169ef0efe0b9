"""The closed form of the logistic-normal head against torch's low-rank normal: time and memory.

    PYTHONPATH=src python benchmarks/bench_heads.py [--cuda]

Forward and backward of the loss at batch 128, medians, both in the same run: on one CPU thread in
CPU time, so that other work on the machine does not count, or on the GPU. Two tables: from mean
and c on (the likelihood alone: the bar is 10x), and with the head's two linear layers, which both
sides share. Then the peak memory of one step at 20,000 classes (the bar is 300 MB over what Python
and torch take), in a fresh process. Exits with 1 where a bar is missed.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal

from ytilde.heads import LogisticNormal

BATCH, DIM, LAM, REPEATS = 128, 512, 0.5, 41
SPEED_BAR, MEMORY_BAR = 10.0, 300.0


def low_rank_nll(target: Tensor, mean: Tensor, c: Tensor) -> Tensor:
    """The same likelihood, by torch: covariance lam^2 I + (2 lam + |c|^2) c c^T."""
    factor = (2 * LAM + c.square().sum(-1, keepdim=True)).sqrt() * c
    diagonal = torch.full_like(mean, LAM**2)
    return -LowRankMultivariateNormal(mean, factor.unsqueeze(-1), diagonal).log_prob(target)


DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"


def now() -> float:
    if DEVICE == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(step: Callable[[], Tensor]) -> float:
    times = []
    for _ in range(REPEATS + 3):
        start = now()
        step().mean().backward()
        times.append(now() - start)
    return statistics.median(times[3:])


def measure(classes: int, layers: bool) -> tuple[float, float]:
    head = LogisticNormal(DIM if layers else 1, classes, lam=LAM).to(DEVICE)
    y = torch.randint(0, classes, (BATCH,), device=DEVICE)
    target = head.target * torch.nn.functional.one_hot(y, classes).float()
    if layers:
        h = torch.randn(BATCH, DIM, device=DEVICE)
        ours = seconds(lambda: head.nll(h, y))
        return ours, seconds(lambda: low_rank_nll(target, head.mean(h), head.spread(h)))
    mean, c = (torch.randn(BATCH, classes, device=DEVICE, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(
        head._energy(target - mean, c).diff(),
        low_rank_nll(target, mean, c).diff(),
        rtol=1e-3,
        atol=1e-1,
    )
    ours = seconds(lambda: head._energy(target - mean, c))
    return ours, seconds(lambda: low_rank_nll(target, mean, c))


def process_memory(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MB.

    Not ru_maxrss: it starts from the memory of the process that started this one.
    """
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def peak_memory() -> float:
    """Megabytes that one step at 20,000 classes adds to a process that has done a small one."""

    def step(classes: int) -> None:
        head = LogisticNormal(DIM, classes, lam=LAM)
        head.nll(torch.randn(BATCH, DIM), torch.randint(0, classes, (BATCH,))).mean().backward()

    step(10)
    before = process_memory("VmRSS")
    step(20_000)
    return process_memory("VmHWM") - before


def main() -> int:
    torch.set_num_threads(1)
    if "--memory" in sys.argv:
        print(peak_memory())
        return 0
    torch.manual_seed(0)
    where = "one thread" if DEVICE == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, batch {BATCH}, {where}, median of {REPEATS}")
    print(f"{'forward + backward':<26}{'classes':>8}{'ours ms':>10}{'torch ms':>10}{'ratio':>8}")
    ratios = []
    for layers in (False, True):
        for classes in (10, 100, 1000):
            ours, theirs = measure(classes, layers)
            what = f"with two layers of {DIM}" if layers else "likelihood"
            print(f"{what:<26}{classes:>8}{1e3 * ours:>10.2f}{1e3 * theirs:>10.2f}", end="")
            print(f"{theirs / ours:>7.1f}x")
            if not layers and classes >= 100:
                ratios.append(theirs / ours)
    child = subprocess.run(
        [sys.executable, __file__, "--memory"], check=True, capture_output=True, text=True
    )
    memory = float(child.stdout)
    print(f"peak memory of a step at 20,000 classes, {DIM} features: {memory:.0f} MB")
    passed = min(ratios) >= SPEED_BAR and memory <= MEMORY_BAR
    print(f"bars (>= {SPEED_BAR:.0f}x, <= {MEMORY_BAR:.0f} MB): {'held' if passed else 'MISSED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
