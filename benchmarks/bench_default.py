"""What the default costs on tables, against cross-entropy with the same network.

    python benchmarks/bench_default.py

10,000 made rows, several numbers of columns and classes; every setting is the default's. Each time
is the best of three fits in turn, one thread.
"""

import time

import torch
from sklearn.datasets import make_classification

from ytilde import Classifier

SHAPES = ((20, 5), (20, 2), (50, 10), (100, 2))  # columns, classes
METHODS = ("ce", "elr", "second_opinion")


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'columns':>8}{'classes':>8}" + "".join(f"{name:>16}" for name in METHODS))
    for columns, classes in SHAPES:
        X, y = make_classification(
            10_000, columns, n_informative=10, n_classes=classes, random_state=0
        )
        seconds = dict.fromkeys(METHODS, float("inf"))
        for _ in range(3):
            for name in METHODS:
                began = time.perf_counter()
                Classifier(name, random_state=0, device="cpu").fit(X.astype("float32"), y)
                seconds[name] = min(seconds[name], time.perf_counter() - began)
        cells = [f"{s:6.2f} s {s / seconds['ce']:4.2f} x" for s in seconds.values()]
        print(f"{columns:8}{classes:8}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
