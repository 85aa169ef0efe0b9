"""The softmax temperature of a heteroscedastic head trades bias for variance.

Noisy test log-likelihood against tau, for several numbers of training samples, on digits with the
class-wise noise of Collier et al. 2020, section 5.1 (their Fig. 1). Predictions take 1000 samples.
"""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.method import fit_method

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


def log_likelihood(name, **fields):
    """Of the noisy test labels, mean over the seeds."""
    found = []
    for seed in SEEDS:
        recipe = Recipe(epochs=EPOCHS, optimizer="adam", lr=2e-3, seed=seed, val=0)
        trainer = fit_method(create(name, **fields), train, recipe, backbone="mlp:width=64")
        found.append(-trainer.score(test, noisy=True)["nll"])
    return np.mean(found)


figure, ax = plt.subplots(figsize=(6, 4))
for samples in SAMPLES:
    values = [log_likelihood("het_tau", tau=tau, train_samples=samples) for tau in TAUS]
    ax.plot(TAUS, values, marker="o", label=f"heteroscedastic, S = {samples}")
    print(samples, " ".join(f"{tau:g}: {v:.3f}" for tau, v in zip(TAUS, values, strict=True)))
plain = log_likelihood("ce")
print(f"homoscedastic {plain:.3f}")
ax.axhline(plain, color="grey", linestyle="--", label="homoscedastic")
ax.set(xscale="log", xlabel="temperature tau", ylabel="noisy test log-likelihood")
ax.legend()
figure.savefig(args.out, bbox_inches="tight", dpi=120)
