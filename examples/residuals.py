"""What a learned covariance does to wrong labels: histograms of the logistic-normal residuals.

The label's term of the loss, r' S^-1 r, r = target logits - mean (Englesson et al., TMLR 2023), on
a small part of Fashion-MNIST. Above, their Fig. 6 (theirs: CIFAR-10): 20 % of the labels of six
classes changed to a similar one. Below, their Fig. 7 (MNIST): 40 % redrawn, the logarithm."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.fitting import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="residuals.png")
parser.add_argument("--tiny", action="store_true", help="one epoch, for tests")
args = parser.parse_args()
SIMILAR = {0: 6, 6: 0, 2: 4, 4: 2, 7: 9, 9: 7}  # T-shirt, shirt; pullover, coat; sneaker, boot
clean = datasets.load("fashion-mnist-small")
clean = clean.rows(torch.arange(300 if args.tiny else 2000))
recipe = Recipe(epochs=1 if args.tiny else 50, optimizer="adam", lr=1e-3, val=0)
g = torch.Generator().manual_seed(0)
swapped = noise.asymmetric(clean.y, 10, rate=0.2, mapping=SIMILAR, generator=g)
redrawn = noise.symmetric(clean.y, 10, rate=0.4, generator=g)


def residuals(y, covariance, tau):
    """|r|^2 and r' S^-1 r of every training label, [2, N]."""
    method = create("ln", covariance=covariance, tau=tau, lam=0.5)
    trainer = fit_method(method, replace(clean, y=y), recipe, backbone="lenet5")

    def both(batch):
        h, head = method.net.features(batch.x), method.net.head
        plain = head.residual(h, batch.y).square().sum(-1)
        return torch.stack([plain, head.quadratic(h, batch.y)], -1)

    return trainer.map(both, replace(clean, y=y)).numpy().T


(fixed, _), (plain, learned) = (residuals(swapped.y, S, 0.5) for S in ("identity", "full"))
without, scaled = np.log(residuals(redrawn.y, "full", 1.0))
titles = ("trained with I, seen with I", "trained with S(x), seen with I", "both with S(x)")
panels = [(*both, swapped) for both in zip(titles, (fixed, plain, learned), strict=True)]
panels += [("log, with S(x)", scaled, redrawn), ("log, without S", without, redrawn)]
figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
for ax, (title, r, made) in zip(axes.flat, panels, strict=False):
    wrong, log = (made.y != clean.y).numpy(), made is redrawn
    bins = np.linspace(r.min() if log else 0, np.quantile(r, 0.995), 40)
    for rows, name in ((~wrong, "true label"), (wrong, "wrong label")):
        ax.hist(r[rows], bins, alpha=0.6, label=name)
        print(f"{title:32} {name:12} median {np.median(r[rows]):6.2f}")
    ax.set(title=title, yscale="linear" if log else "log")
axes[1, 2].set_axis_off()
axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
figure.savefig(args.out, dpi=100)
