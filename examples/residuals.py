"""What a learned covariance does to wrong labels: histograms of the logistic-normal residuals.

The label's term of the loss, r' S^-1 r with r = target logits - mean: trained and seen with S = I,
trained with S(x) and seen with I, trained and seen with S(x) (Englesson et al., ICML 2023, Fig. 6).
Fashion-MNIST (a small part), 20 % of the labels flipped to a similar class."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.method import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="residuals.png")
parser.add_argument("--tiny", action="store_true", help="one epoch, for tests")
args = parser.parse_args()

clean = datasets.load("fashion-mnist-small")
clean = clean.rows(torch.arange(300 if args.tiny else 2000))
made = noise.pair(clean.y, 10, rate=0.2, generator=torch.Generator().manual_seed(0))
data, wrong = replace(clean, y=made.y), (made.y != clean.y).numpy()
recipe = Recipe(epochs=1 if args.tiny else 50, optimizer="adam", lr=1e-3, val=0)


def residuals(covariance):
    """|r|^2 and r' S^-1 r of every training label, [N, 2]."""
    method = create("ln", covariance=covariance, tau=0.5, lam=0.5)
    trainer = fit_method(method, data, recipe, backbone="lenet5")

    def both(batch):
        h, head = method.net.features(batch.x), method.net.head
        plain = head.residual(h, batch.y).square().sum(-1)
        return torch.stack([plain, head.quadratic(h, batch.y)], -1)

    return trainer.map(both, data).numpy().T


(fixed, _), (plain, learned) = residuals("identity"), residuals("full")
figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
titles = ("trained with I, seen with I", "trained with S(x), seen with I", "both S(x)")
for ax, title, r in zip(axes, titles, (fixed, plain, learned), strict=True):
    bins = np.linspace(0, np.quantile(r, 0.995), 40)
    for rows, label in ((~wrong, "true label"), (wrong, "wrong label")):
        ax.hist(r[rows], bins, alpha=0.6, label=label)
    ax.set(title=title, xlabel="r' S^-1 r", yscale="log")
    middle = f"true {np.median(r[~wrong]):6.2f}  wrong {np.median(r[wrong]):6.2f}"
    print(f"{title:32} median residual of labels: {middle}")
axes[0].legend()
figure.savefig(args.out, dpi=120)
