"""How much do tau and lambda of the logistic-normal matter? (Englesson et al., TMLR 2023, Fig. 5)

Clean test accuracy on digits with 40 % of the labels redrawn, mean and standard deviation over the
seeds, for a grid of both; the ring is what noisy validation alone would choose from the grid."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.fitting import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="sensitivity.png")
parser.add_argument("--tiny", action="store_true", help="one epoch, for tests")
args = parser.parse_args()
TAUS, LAMS = ((0.5, 1.0), (0.5, 1.0)) if args.tiny else ((0.1, 0.25, 0.5, 1, 2), (0.1, 0.5, 1, 2))
SEEDS, EPOCHS = ((0, 1), 1) if args.tiny else ((0, 1, 2), 60)

clean, test = datasets.load("digits"), datasets.load("digits", split="test")


def noisy(seed):
    made = noise.symmetric(clean.y, 10, rate=0.4, generator=torch.Generator().manual_seed(seed))
    return replace(clean, y=made.y)


def scores(tau, lam):
    """(clean test accuracy, noisy validation accuracy), [seeds, 2]."""
    found = []
    for seed in SEEDS:
        recipe = Recipe(EPOCHS, optimizer="adam", lr=2e-3, schedule="constant", seed=seed)
        method = create("ln", tau=tau, lam=lam)
        trainer = fit_method(method, noisy(seed), recipe, backbone="mlp:width=128,depth=1")
        found.append([trainer.score(part)["accuracy"] for part in (test, trainer.val)])
    return found


grid = np.array([[scores(tau, lam) for lam in LAMS] for tau in TAUS])
accuracy, validation = grid.mean(2).transpose(2, 0, 1)
spread = grid[..., 0].std(2, ddof=1)
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for j, lam in enumerate(LAMS):
    shifted = np.array(TAUS) * (1 + 0.04 * (j - 1.5))  # so that the bars do not cover each other
    ax.errorbar(shifted, accuracy[:, j], spread[:, j], marker="o", capsize=3, label=f"lambda {lam}")
i, j = np.unravel_index(validation.argmax(), validation.shape)
ax.plot(TAUS[i] * (1 + 0.04 * (j - 1.5)), accuracy[i, j], "o", ms=14, mfc="none", mec="black")
ax.set(xlabel="tau", ylabel="clean test accuracy", xscale="log", xticks=TAUS, xticklabels=TAUS)
ax.minorticks_off()
ax.legend()
for tau, row, sd in zip(TAUS, accuracy, spread, strict=True):
    cells = [f"{lam}: {a:.3f} ± {s:.3f}" for lam, a, s in zip(LAMS, row, sd, strict=True)]
    print(f"tau {tau}, lambda {', '.join(cells)}")
print(f"best {accuracy.max():.3f}, worst {accuracy.min():.3f}, chosen {accuracy[i, j]:.3f}")
figure.savefig(args.out, dpi=100)
