"""Is the predicted variance of a segmentation high where the labels change? CamVid, one picture.

    PYTHONPATH=src python benchmarks/camvid_boundary.py --tau 0.2 --epochs 80 --picture camvid.png

Trains DeepLabv3+ with a heteroscedastic head and compares, over the test pictures, the mean
predicted variance of pixels within 3 pixels of a label boundary with that of all other labelled
pixels.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ytilde import Classifier, create, datasets
from ytilde.data import Data
from ytilde.versions import versions


def near_boundary(y: Tensor, pixels: int = 3) -> Tensor:
    """Pixels [N, H, W] with another label (void is one) at most so many pixels away."""
    side = 2 * pixels + 1
    label = y[:, None].float()
    highest = max_pool2d(label, side, 1, pixels)
    lowest = -max_pool2d(-label, side, 1, pixels)
    return (highest != lowest)[:, 0]


def draw(path: Path, clf: Classifier, test: Data, shown: int = 4) -> None:
    """Pictures, true labels, predictions, variance."""
    some = test.rows(torch.arange(shown) * (len(test) // shown))
    predicted, variance = clf.predict(some.x), clf.uncertainty(some.x)
    figure, axes = plt.subplots(shown, 4, figsize=(11, 2.1 * shown), layout="constrained")
    colours = {"vmin": -1, "vmax": test.num_classes - 1, "cmap": "tab20"}
    top = float(torch.tensor(variance).quantile(0.99))
    for line, x, y, p, u in zip(axes, some.x, some.y, predicted, variance, strict=True):
        line[0].imshow(x.permute(1, 2, 0))
        line[1].imshow(y, **colours, interpolation="nearest")
        line[2].imshow(p, **colours, interpolation="nearest")
        # by its square root: a few pixels of rare classes have a variance far above all others
        line[3].imshow(u**0.5, vmin=0, vmax=top**0.5, cmap="inferno")
    titles = ("picture", "true labels (void dark)", "predicted", "predicted sd")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tau", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=10**6, help="of the training set")
    parser.add_argument("--backbone", default="deeplab:features=128,output_stride=8")
    parser.add_argument("--out", type=Path, default=Path("results/camvid_boundary.jsonl"))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    train, test = datasets.load("camvid"), datasets.load("camvid", split="test")
    train = train.rows(torch.arange(min(options.rows, len(train))))
    began = time.perf_counter()
    clf = Classifier(
        create("het_tau", tau=options.tau, train_samples=20, eval_samples=50),
        options.backbone, epochs=options.epochs, batch_size=8, optimizer="adamw", lr=1e-3,
        weight_decay=1e-4, schedule="cosine", augment="flip", random_state=options.seed,
    )  # fmt: skip
    clf.fit(train.x, train.y)
    right = near = far = torch.zeros(2, dtype=torch.float64)
    for part in torch.arange(len(test)).split(32):
        some = test.rows(part)
        variance, known = torch.from_numpy(clf.uncertainty(some.x)).double(), some.y >= 0
        border = near_boundary(some.y)
        near = near + _sums(variance, border & known)
        far = far + _sums(variance, ~border & known)
        right = right + _sums((torch.from_numpy(clf.predict(some.x)) == some.y).double(), known)
    mean = {"near": float(near[0] / near[1]), "interior": float(far[0] / far[1])}
    line = {"tau": options.tau, "epochs": options.epochs, "seed": options.seed}
    line |= {"rows": len(train), "backbone": options.backbone, "variance": mean}
    line |= {"ratio": mean["near"] / mean["interior"], "accuracy": float(right[0] / right[1])}
    line |= {"seconds": round(time.perf_counter() - began), "versions": versions()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    if options.picture:
        draw(options.picture, clf, test)


def _sums(value: Tensor, where: Tensor) -> Tensor:
    return torch.stack([value[where].sum(), where.sum().double()])


if __name__ == "__main__":
    main()
