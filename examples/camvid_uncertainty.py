"""Where a segmentation cannot be sure: aleatoric variance of a heteroscedastic head, per pixel.

CamVid if $YTILDE_DATA (or ./data) has it, else drawn shapes whose annotators stray at outlines.
Collier et al. 2020, Fig. 4: maps at tau = 1 and at the tau that has the best likelihood of the
validation labels. In the paper both are high at the boundaries of objects, the latter finer."""

import argparse

import matplotlib.pyplot as plt
import torch

from ytilde import BadInput, create, datasets
from ytilde.engine import default_recipe
from ytilde.fitting import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="camvid_uncertainty.png")
parser.add_argument("--tiny", action="store_true", help="few pictures, one epoch, for tests")
parser.add_argument("--set", default="camvid")
parser.add_argument("--taus", type=float, nargs="+", default=[0.2, 0.5, 2.0], help="beside 1")
parser.add_argument("--epochs", type=int, default=10, help="an hour a tau on one CPU core")
args = parser.parse_args()

try:
    name = "shapes-noisy" if args.tiny else args.set
    datasets.load(name)
except BadInput:
    name = "shapes-noisy"
train, val, test = (datasets.load(name, split=split) for split in ("train", "val", "test"))
if args.tiny:
    train, val = (part.rows(torch.arange(16)) for part in (train, val))
    args.taus, args.epochs = [0.5], 1
shown = test.rows(torch.arange(4) * (len(test) // 4))
recipe = default_recipe(train.shape, len(train), True, epochs=args.epochs, batch_size=8, val=0)


def fit(tau):
    """(noisy validation log-likelihood, variance of the pictures shown [4, H, W])."""
    method = create("het_tau", tau=tau, train_samples=10, eval_samples=100)
    trainer = fit_method(method, train, recipe, backbone="unet:width=16")
    likelihood = -trainer.score(val, noisy=True)["nll"]
    print(f"{name}, tau {tau:g}: noisy validation log-likelihood {likelihood:.4f}", flush=True)
    return likelihood, trainer.map(lambda batch: method.uncertainty(batch.x), shown)


fits = {tau: fit(tau) for tau in (1.0, *args.taus)}
best = max(fits, key=lambda tau: fits[tau][0])
figure, axes = plt.subplots(4, 4, figsize=(11, 9), layout="constrained")
for column, x, y in zip(axes.T, shown.x, shown.y, strict=True):
    column[0].imshow(x.permute(1, 2, 0))
    column[1].imshow(y, vmin=-1, vmax=train.num_classes - 1, cmap="tab20", interpolation="nearest")
for row, tau in zip(axes[2:], (1.0, best), strict=True):
    for ax, variance in zip(row, fits[tau][1], strict=True):
        heat = ax.imshow(variance, vmin=0, vmax=fits[tau][1].quantile(0.995), cmap="inferno")
    figure.colorbar(heat, ax=row, location="bottom", aspect=80)
names = ("picture", "true labels", "tau = 1", f"chosen: tau = {best:g}")
for ax, name in zip(axes[:, 0], names, strict=True):
    ax.set_ylabel(name)
plt.setp(axes, xticks=[], yticks=[])
figure.savefig(args.out, dpi=100)
