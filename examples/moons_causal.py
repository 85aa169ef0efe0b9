"""Two moons with 45 % of the labels wrong: co-teaching, mixup and CausalNL (Yao et al., Fig. 2).
CausalNL with one latent dimension can tell the moons apart by their shape, and asks the labels only
which one is which. It has poor optima; its own bound, which needs no labels but the noisy ones,
chooses among a few starts."""

import argparse

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

from ytilde import create, noise
from ytilde.data import Data
from ytilde.engine import Recipe
from ytilde.fitting import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="moons_causal.png")
parser.add_argument("--seed", type=int, default=1, help="of data and noise")
parser.add_argument("--starts", type=int, default=3, help="how often CausalNL is fitted")
parser.add_argument("--tiny", action="store_true", help="a few steps, for tests")
args = parser.parse_args()
EPOCHS, STARTS = (2, 1) if args.tiny else (200, args.starts)

points, clean = make_moons(1000, noise=0.1, random_state=args.seed)
x, clean = torch.tensor(points).float(), torch.tensor(clean)
g = torch.Generator().manual_seed(args.seed)
data = Data(x, noise.instance(x, clean, 2, rate=0.45, generator=g).y, 2)
# An evidence bound: unit weights, and for L1 a Laplace of scale 2 / 13 (two coordinates).
UNIT = {"b0": 13.0, "b1": 1.0, "b2": 1.0, "b3": 1.0, "z_dim": 1, "sampling": "sum"}
METHODS = {
    "co_teaching": ({"rate": 0.45}, 1),
    "mixup": ({}, 1),
    "causal_nl": ({"rate": 0.45, "hold": 0.3, "warm_up": 0.3} | UNIT, STARTS),
}


def fit(name, fields, start):
    """The fitted method, and its training loss in the last epoch."""
    recipe = Recipe(EPOCHS, optimizer="adam", lr=2e-3, weight_decay=0.0, val=0.0, seed=start)
    method = create(name, **fields)
    trainer = fit_method(method, data, recipe, backbone="mlp:width=32,depth=2")
    return method, trainer.history[-1]["loss"]


axis = torch.linspace(-1.5, 2.5, 200)
plane = torch.cartesian_prod(axis, axis)
figure, axes = plt.subplots(1, 4, figsize=(16, 3.2))
axes[0].scatter(*x.T, c=data.y, cmap="RdBu_r", s=4)
axes[0].set_title("the labels, 45 % wrong")
for ax, (name, (fields, starts)) in zip(axes[1:], METHODS.items(), strict=True):
    method, _ = min((fit(name, fields, s) for s in range(starts)), key=lambda fit: fit[1])
    with torch.no_grad():
        right = (method.predict_proba(x).argmax(-1) == clean).float().mean()
        surface = method.predict_proba(plane)[:, 1].view(200, 200).T
    print(f"{name}: {right:.1%} of the points right")
    ax.contourf(axis, axis, surface, levels=20, cmap="RdBu_r", alpha=0.5, vmin=0, vmax=1)
    ax.scatter(*x.T, c=clean, cmap="RdBu_r", s=4)
    ax.set(title=f"{name}: {right:.1%} of the points right", ylim=(-1, 1.5))
figure.savefig(args.out, bbox_inches="tight")
