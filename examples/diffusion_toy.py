"""Which diffusion finds a group's transition matrix from features? All have the same network.
100 groups, each with its own 10x10 weights W and a centre in 32-d: a model sees a noisy feature and
must give the group's W. Predicting the mean scores a W RMSE of 1."""

import argparse

import matplotlib.pyplot as plt
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ytilde.diffusion import Denoiser, Diffusion, Schedule
from ytilde.transition import sigmoid_rows

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="diffusion_toy.png")
parser.add_argument("--tiny", action="store_true", help="a few steps, for tests")
args = parser.parse_args()
g, K, STEPS = torch.Generator().manual_seed(0), 10, 20 if args.tiny else 1500
table, centre = torch.randn(100, K, K, generator=g) - 2, torch.randn(100, 32, generator=g)


def draw(n):
    group = torch.randint(100, (n,), generator=g)
    return table[group], centre[group] + 0.3 * torch.randn(n, 32, generator=g)


def regress(net, f):
    return net(f.new_zeros(len(f), K, K), f, f.new_zeros(len(f))) + table.mean(0)


def fit(schedule="cosine", eta=0.0, plain=False, **options):
    """W for the test features, from a diffusion or, plain, from regression with its network."""
    torch.manual_seed(0)
    net = Denoiser((K, K), 32, width=128, blocks=2)
    model = Diffusion(net, Schedule(schedule, steps=10), (K, K), 32, **options)
    model.measure(table, centre)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        w, f = draw(128)
        optimizer.zero_grad()
        ((regress(net, f) - w).square() if plain else model.loss(w, f, g)).mean().backward()
        optimizer.step()
        average.update_parameters(model)
    if plain:
        return regress(average.module.denoiser, x).detach()
    return average.module.sample(x, eta=eta, generator=g)[:, 0]


truth, x = draw(1000)
found = {"truth": truth, "the mean": table.mean(0).expand_as(truth)}
found["paper, raw, eps"] = fit("paper", eta=1.0, predict="eps", standardise=False)
found |= {"cosine, v": fit(predict="v"), "regression": fit(plain=True), "cosine, x0": fit()}
figure, axes = plt.subplots(1, len(found), figsize=(2 * len(found), 2.3))
for ax, (name, w) in zip(axes, found.items(), strict=True):
    error = (sigmoid_rows(w, "dtm") - sigmoid_rows(truth, "dtm")).abs().sum(-1).mean()
    print(f"{name:16} W RMSE {(w - truth).square().mean().sqrt():.3f}  T row L1 {error:.3f}")
    ax.set(title=name, xticks=[], yticks=[])
    ax.imshow(sigmoid_rows(w[0], "dtm"), vmin=0, vmax=1)
figure.savefig(args.out, bbox_inches="tight")
