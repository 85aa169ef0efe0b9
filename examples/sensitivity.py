"""How much do tau and lambda of the logistic-normal matter? (Englesson et al., ICML 2023, Fig. 5)

Clean test accuracy on digits with 40 % of the labels redrawn, mean of the seeds, for a grid of
both; and what noisy validation alone (`tau="auto", lam="auto"`) would choose from the grid."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.method import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="sensitivity.png")
parser.add_argument("--tiny", action="store_true", help="one epoch, for tests")
args = parser.parse_args()
TAUS, LAMS = ((0.5, 1.0), (0.5, 1.0)) if args.tiny else ((0.1, 0.25, 0.5, 1, 2), (0.1, 0.5, 1, 2))
SEEDS, EPOCHS = ((0,), 1) if args.tiny else ((0, 1), 60)

clean, test = datasets.load("digits"), datasets.load("digits", split="test")


def noisy(seed):
    made = noise.symmetric(clean.y, 10, rate=0.4, generator=torch.Generator().manual_seed(seed))
    return replace(clean, y=made.y)


def scores(tau, lam):
    """(clean test accuracy, noisy validation accuracy), mean of the seeds."""
    found = []
    for seed in SEEDS:
        recipe = Recipe(EPOCHS, optimizer="adam", lr=2e-3, schedule="constant", seed=seed)
        method = create("ln", tau=tau, lam=lam)
        trainer = fit_method(method, noisy(seed), recipe, backbone="mlp:width=128,depth=1")
        found.append([trainer.score(part)["accuracy"] for part in (test, trainer.val)])
    return np.mean(found, 0)


grid = np.array([[scores(tau, lam) for lam in LAMS] for tau in TAUS])
accuracy, validation = grid[..., 0], grid[..., 1]
figure, ax = plt.subplots(figsize=(5, 4), layout="constrained")
ax.imshow(accuracy, cmap="viridis", aspect="auto")
for i, j in np.ndindex(accuracy.shape):
    ax.text(j, i, f"{100 * accuracy[i, j]:.1f}", ha="center", va="center", color="white")
chosen = np.unravel_index(validation.argmax(), validation.shape)
ax.add_patch(plt.Rectangle((chosen[1] - 0.48, chosen[0] - 0.48), 0.96, 0.96, fill=False, ec="red"))
ax.set(xlabel="lambda", ylabel="tau", title="clean test accuracy; red: noisy validation's choice")
ax.set_xticks(range(len(LAMS)), LAMS)
ax.set_yticks(range(len(TAUS)), TAUS)
print(f"best {accuracy.max():.3f}, worst {accuracy.min():.3f}, chosen {accuracy[chosen]:.3f}")
figure.savefig(args.out, dpi=120)
