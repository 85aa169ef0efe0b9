"""Which diffusion finds a group's transition matrix from features?

100 groups, each with its own 10x10 weights W and a centre in 32-d. A model sees a noisy feature and
must give the group's W: predicting the mean scores a W RMSE of 1. All have the same network.
"""

import argparse

import matplotlib.pyplot as plt
import torch

from ytilde.diffusion import Denoiser, Diffusion, Schedule
from ytilde.transition import sigmoid_rows

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="diffusion_toy.png")
parser.add_argument("--tiny", action="store_true", help="a few steps, for tests")
args = parser.parse_args()
K, DIM, GROUPS, M, STEPS = 10, 32, 100, 10, 20 if args.tiny else 1500
g = torch.Generator().manual_seed(0)
table, centre = torch.randn(GROUPS, K, K, generator=g) - 2, torch.randn(GROUPS, DIM, generator=g)


def draw(n):
    group = torch.randint(GROUPS, (n,), generator=g)
    return table[group], centre[group] + 0.3 * torch.randn(n, DIM, generator=g)


def fit(schedule="cosine", eta=0.0, regression=False, **options):
    """W for the test features, from a diffusion or from plain regression with its network."""
    torch.manual_seed(0)
    net = Denoiser((K, K), DIM, width=128, blocks=2)
    model = Diffusion(net, Schedule(schedule, M), (K, K), DIM, **options)
    model.measure(table, centre)
    plain = lambda f: net(f.new_zeros(len(f), K, K), f, f.new_zeros(len(f))) + table.mean(0)  # noqa: E731
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        w, f = draw(128)
        loss = (plain(f) - w).square() if regression else model.loss(w, f, g)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    return plain(seen).detach() if regression else model.sample(seen, eta=eta, generator=g)[:, 0]


truth, seen = draw(1000)
found = {"truth": truth, "the mean": table.mean(0).expand_as(truth)}
found["paper, raw W, eps"] = fit("paper", eta=1.0, predict="eps", standardise=False)
found["paper, x0"] = fit("paper", eta=1.0)
found["cosine, eps, clip 3"] = fit(predict="eps", clip=3.0)
found["cosine, v"] = fit(predict="v")
found["regression"] = fit(regression=True)
found["cosine, x0"] = fit()
figure, axes = plt.subplots(1, len(found), figsize=(2 * len(found), 2.3))
for ax, (name, w) in zip(axes, found.items(), strict=True):
    error = (sigmoid_rows(w, "dtm") - sigmoid_rows(truth, "dtm")).abs().sum(-1).mean()
    print(f"{name:20} W RMSE {(w - truth).square().mean().sqrt():.3f}  T row L1 {error:.3f}")
    ax.imshow(sigmoid_rows(w[0], "dtm"), vmin=0, vmax=1)
    ax.set(title=name, xticks=[], yticks=[])
figure.savefig(args.out, bbox_inches="tight")
