"""Cross-entropy bends around every wrong label; the logistic-normal likelihood need not.

Two moons and circles with a fifth of the labels flipped: decision surfaces of the same network,
trained alike (Englesson et al., TMLR 2023, Fig. 3). Large dots are wrong labels."""

import argparse

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Classifier, create, datasets, noise

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="moons_ln.png")
parser.add_argument("--tiny", action="store_true", help="a few epochs, for tests")
args = parser.parse_args()
EPOCHS, SIDE = (3, 40) if args.tiny else (400, 200)
METHODS = {"cross-entropy": create("ce"), "logistic-normal": create("ln", tau=0.5, lam=0.5)}

figure, axes = plt.subplots(2, 2, figsize=(9, 8), layout="constrained")
for row, name in zip(axes, ("moons", "circles"), strict=True):
    train, test = datasets.load(name, split="train"), datasets.load(name, split="test")
    made = noise.symmetric(
        train.y[:300], 2, rate=0.2, inclusive=False, generator=torch.Generator().manual_seed(0)
    )
    x, y, wrong = train.x[:300].numpy(), made.y.numpy(), (made.y != train.y[:300]).numpy()
    low, high = x.min(0) - 0.3, x.max(0) + 0.3
    grid = np.meshgrid(*np.linspace(low, high, SIDE).T)
    points = np.stack([g.ravel() for g in grid], -1).astype(np.float32)
    for ax, (title, method) in zip(row, METHODS.items(), strict=True):
        clf = Classifier(
            method, "mlp:width=128,depth=3", epochs=EPOCHS, batch_size=100,
            optimizer="adam", lr=1e-3, weight_decay=0, random_state=0,
        ).fit(x, y)  # fmt: skip
        accuracy = (clf.predict(test.x) == test.y.numpy()).mean()
        p = clf.predict_proba(points)[:, 1].reshape(SIDE, SIDE)
        ax.contourf(*grid, p, np.linspace(0, 1, 21), cmap="RdBu_r", alpha=0.8)
        ax.contour(*grid, p, [0.5], colors="black", linewidths=1)
        ax.scatter(
            *x.T, c=y, s=np.where(wrong, 45, 12), cmap="RdBu_r", edgecolors="white", linewidths=0.5
        )
        ax.set(title=f"{title}: {100 * accuracy:.1f} % of true labels", xticks=[], yticks=[])
        print(f"{name:8} {title:16} test accuracy {accuracy:.3f}")
figure.savefig(args.out, dpi=110)
