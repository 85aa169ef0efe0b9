"""The softmax temperature of a heteroscedastic head trades bias for variance.

Noisy test log-likelihood and accuracy against tau, a line for each number of training samples S,
on digits with the class-wise noise of Collier et al. 2020, section 5.1 (their Figs. 1 and 6).
Predictions take 1000 samples. The mean of the seeds, with their range as a band."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.fitting import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="temperature.png")
parser.add_argument("--tiny", action="store_true", help="a few epochs, for tests")
args = parser.parse_args()
TAUS = (0.2, 1) if args.tiny else (0.05, 0.1, 0.2, 0.6, 1, 2.2, 5, 20)
SAMPLES, SEEDS, EPOCHS = ((1, 5), (0,), 1) if args.tiny else ((1, 10, 100), (0, 1), 15)
NOISE = torch.Generator().manual_seed(0)


def noisy(split):
    data = datasets.load("digits", split=split)
    return replace(data, y=noise.classwise(data.y, 10, setting="main", generator=NOISE).y)


train, test = noisy("train"), noisy("test")


def scores(name, **fields):
    """(log-likelihood, accuracy) of the noisy test labels, [seeds, 2]."""
    found = []
    for seed in SEEDS:
        recipe = Recipe(epochs=EPOCHS, optimizer="adam", lr=2e-3, seed=seed, val=0)
        trainer = fit_method(create(name, **fields), train, recipe, backbone="mlp:width=64")
        score = trainer.score(test, noisy=True)
        found.append((-score["nll"], score["accuracy"]))
    return np.array(found)


figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for samples in SAMPLES:
    found = np.stack([scores("het_tau", tau=tau, train_samples=samples) for tau in TAUS])
    for ax, value in zip(axes, found.transpose(2, 1, 0), strict=True):
        line = ax.plot(TAUS, value.mean(0), marker="o", label=f"heteroscedastic, S = {samples}")[0]
        ax.fill_between(TAUS, value.min(0), value.max(0), color=line.get_color(), alpha=0.15)
    for tau, (likelihood, accuracy) in zip(TAUS, found.mean(1), strict=True):
        print(f"S {samples}, tau {tau:g}: {likelihood:.3f}, accuracy {accuracy:.3f}")
plain = scores("ce").mean(0)
print(f"homoscedastic: {plain[0]:.3f}, accuracy {plain[1]:.3f}")
for ax, value, name in zip(axes, plain, ("log-likelihood", "accuracy"), strict=True):
    ax.axhline(value, color="grey", linestyle="--", label="homoscedastic")
    ax.set(xscale="log", xlabel="temperature tau", ylabel=f"noisy test {name}")
axes[0].legend()
figure.savefig(args.out, dpi=100)
