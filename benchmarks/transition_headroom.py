"""What could T(x) gain under instance noise? An account with the true labels in hand.

    YTILDE_DATA=data python benchmarks/transition_headroom.py --sets fashion-mnist cifar10
    YTILDE_DATA=data python benchmarks/transition_headroom.py --train --seeds 0 1

Noise as in the papers' tables (raw255). Each line is one way to know T(x): one matrix for all rows
(the class means of the true rows, which no class-level method can beat); matrices of groups of
images that look alike, or one logistic regression of the label on the pixels for each class, both
learnt from the noisy labels *and the true ones*, which no method has; and the generator's own T(x),
with the mean rate in the place of each row's, which nothing shows. The squared error of the true
class's row says how near each comes; a regression's is of rows that it has not seen. With --train
a LeNet-5 learns by forward correction with each of them: what a perfect estimate would be worth.
One JSON line a row; results/transition_headroom.jsonl.
"""

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ytilde import datasets, noise
from ytilde.data import Batch, Data, Spec
from ytilde.encoders.clusters import assign, kmeans
from ytilde.encoders.features import Components
from ytilde.engine import Recipe
from ytilde.fitting import fit_method
from ytilde.methods.forward import Forward
from ytilde.transition import row_error
from ytilde.transition.groups import group_matrices
from ytilde.versions import versions

COMPONENTS = 100
PENALTIES = (1.0, 10.0, 100.0)  # scikit-learn's C; the likeliest on held-out noisy labels counts
Estimates = dict[str, Tensor]  # name -> T [N, K, K] or [K, K]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", nargs="*", default=["fashion-mnist"])
    parser.add_argument("--rates", type=float, nargs="*", default=[0.4, 0.5])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--train", action="store_true", help="LeNet-5 with each T(x)")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/transition_headroom.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    with args.out.open("a") as out:
        for name in args.sets:
            train, test = (datasets.load(name, split=part) for part in ("train", "test"))
            for rate, seed in ((rate, seed) for rate in args.rates for seed in args.seeds):
                for line in account(train, test, rate, seed, args.epochs if args.train else 0):
                    about = {"data": name, "noise": f"instance:{rate},features=raw255"}
                    about |= {"rows": len(train), "seed": seed, "versions": versions()}
                    out.write(json.dumps(line | about) + "\n")
                    out.flush()
                    print(name, rate, seed, line, flush=True)


def account(train: Data, test: Data, rate: float, seed: int, epochs: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    made = noise.instance(
        train.x, train.y, train.num_classes, rate=rate, features="raw255", generator=generator
    )
    lines = []
    for name, T in estimates(train, made, generator).items():
        own = T.expand(len(made.y), -1, -1)[torch.arange(len(made.y)), made.clean]
        line: dict[str, Any] = {"T": name, "row_error": float(row_error(own, made.rows))}
        if epochs:
            began = time.perf_counter()
            line |= {"epochs": epochs, "backbone": "lenet5"}
            line |= {"test_accuracy": trained(T, train, made.y, test, epochs, seed)}
            line["seconds"] = round(time.perf_counter() - began, 1)
        lines.append(line)
    return lines


def estimates(train: Data, made: noise.Noisy, generator: torch.Generator) -> Estimates:
    """Every row's T, by each way to know it."""
    n, k = len(train), train.num_classes
    x = torch.cat([train.x[part] for part in torch.arange(n).split(5000)])
    x = x.float() / (1 if x.is_floating_point() else 255)
    components = Components(tuple(x.shape[1:]), COMPONENTS)
    components.take(Components.solve(components.flat(x[:10_000]), COMPONENTS))
    z = components(x)
    group = assign(z, kmeans(z, 10 * k, generator))
    known = torch.nn.functional.one_hot(made.clean, k).double()
    T = group_matrices(known, made.y, group, 10 * k, made.matrix, kappa=20.0, steps=1)
    perfect = made.transition(torch.arange(n))
    mean_rate = 1 - made.matrix.diagonal()
    flips = perfect * (1 - torch.eye(k))
    flips = flips / flips.sum(-1, keepdim=True) * mean_rate[:, None]
    return {
        "no T": torch.eye(k),
        "one T for all": made.matrix,
        "groups of pixels' components": T[group],
        "logistic regressions on the pixels": regressions(z, made),
        "the generator's": flips + torch.diag(1 - mean_rate),
    }


def regressions(z: Tensor, made: noise.Noisy) -> Tensor:
    """T(x) [N, K, K]: row i by a regression on the rows of class i, each row's by the other half's.

    z: components of all rows, of mean squared length one.
    """
    n, k = len(z), len(made.matrix)
    half, found = torch.arange(n) % 2, torch.zeros(n, k, k)
    for c in range(k):
        likeliest = (-np.inf, found[:, c])
        for penalty in PENALTIES:
            row, fit = torch.zeros(n, k), 0.0
            for side in (0, 1):
                own = ((made.clean == c) & (half == side)).nonzero().flatten()
                rest = (half != side).nonzero().flatten()
                model = LogisticRegression(C=penalty, max_iter=300)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # few steps are enough here
                    model.fit(z[own].numpy(), made.y[own].numpy())
                told = torch.from_numpy(model.predict_proba(z[rest].numpy())).float()
                row[rest[:, None], torch.from_numpy(model.classes_)] = told
                judged = rest[made.clean[rest] == c]
                fit += float(row[judged, made.y[judged]].clamp_min(1e-6).log().sum())
            if fit > likeliest[0]:
                likeliest = (fit, row)
        found[:, c] = likeliest[1]
    return found


@dataclass(eq=False, repr=False)
class Known(Forward):
    """Forward correction with a T(x) for each training row."""

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.table = torch.zeros(0)

    def transition(self, batch: Batch) -> Tensor:
        return self.table if self.table.ndim == 2 else self.table[batch.index]


def trained(T: Tensor, train: Data, y: Tensor, test: Data, epochs: int, seed: int) -> float:
    method = Known(T=np.eye(train.num_classes))
    build = method.build

    def with_table(spec: Spec) -> None:
        build(spec)
        method.table = T

    method.build = with_table  # type: ignore[method-assign]
    recipe = Recipe(
        epochs=epochs, batch_size=256, optimizer="adam", lr=1e-3, weight_decay=0.0,
        schedule="cosine", augment="none", val=0.0, keep="last", seed=seed, device="cpu",
    )  # fmt: skip
    noisy = Data(train.x, y, train.num_classes)
    trainer = fit_method(method, noisy, recipe, backbone="lenet5")
    return float(trainer.score(test)["accuracy"])


if __name__ == "__main__":
    main()
