"""How lambda sets where the logistic-normal loss stops listening (Englesson et al. 2023, Fig. 2).

Binary, with the best variance for each residual r. Left, as in the paper: the label's term of the
loss, r^2 / sigma^2. Up to lambda it is a squared error divided by lambda^2, from there on it is
one. Right: the whole loss, whose log sigma^2 still grows, so that its gradient falls as 1 / r.
Lines: closed form (appendix A.4). Dots: the head itself, its c found by gradient descent."""

import argparse
import math

import matplotlib.pyplot as plt
import torch

from ytilde import heads

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="attenuation.png")
parser.add_argument("--tiny", action="store_true", help="few steps, for tests")
args = parser.parse_args()
residual = torch.linspace(0.02, 3, 9 if args.tiny else 61, dtype=torch.float64)
y = torch.zeros(len(residual), dtype=torch.int64)


def with_best_c(lam):
    """The head's label term and its whole loss, [N] each, with c chosen for each residual."""
    head = heads.LogisticNormal(2, 2, dummy=False, lam=lam).double()
    # h = (mean, c): the layers only hand the two numbers through
    for layer, weight in ((head.mean, (1.0, 0.0)), (head.spread, (0.0, 1.0))):
        layer.weight.data = torch.tensor([weight], dtype=torch.float64)
        torch.nn.init.zeros_(layer.bias)
    c = torch.full_like(residual, 0.7).requires_grad_()
    optimizer = torch.optim.Adam([c], lr=0.02)
    for _ in range(20 if args.tiny else 1500):
        h = torch.stack([head.target - residual, c], -1)
        optimizer.zero_grad()
        head.nll(h, y).sum().backward()
        optimizer.step()
    h = torch.stack([head.target - residual, c.detach()], -1)
    return [term.detach() for term in (head.quadratic(h, y), head.nll(h, y))]


figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
axes[0].plot(residual, residual.square(), "--", color="grey", label="squared, Sigma = I")
axes[1].plot(residual, residual.square() / 2, "--", color="grey")
for lam in (0.25, 0.5, 1.0, 2.0):
    sigma = residual.clamp_min(lam)  # the best that c can do: sigma^2 = max(r^2, lambda^2)
    term = (residual / sigma).square()
    pairs = list(zip((term, term / 2 + sigma.log()), with_best_c(lam), strict=True))
    for ax, (exact, found) in zip(axes, pairs, strict=True):
        line = ax.plot(residual, exact, label=f"lambda = {lam:g}")[0]
        ax.plot(residual[::4], found[::4], "o", color=line.get_color(), markersize=4)
        ax.axvline(lam, color=line.get_color(), linestyle=":", linewidth=1)
    gap = max(float((exact - found).abs().max()) for exact, found in pairs)
    print(f"lambda {lam:g}: head against closed form, largest gap {gap:.1e}")
axes[0].set(ylabel="label's term of the loss", xlabel="residual |r|", ylim=(0, 2))
axes[1].set(ylabel="whole loss", xlabel="residual |r|", ylim=(math.log(0.2), 3))
axes[0].legend()
figure.savefig(args.out, dpi=100)
