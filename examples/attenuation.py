"""How lambda sets where the logistic-normal loss stops listening (Englesson et al. 2023, Fig. 2).

Binary: the loss with the best variance for each residual. Up to lambda it is a squared error, from
there on the variance takes the residual up and its gradient falls as 1 / r. The curves come from
the head itself: its `spread` is optimised for each residual, and compared with the closed form."""

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


def best_loss(lam):
    """The head's loss [N] at each residual, with its c chosen by gradient descent."""
    head = heads.LogisticNormal(2, 2, dummy=False, lam=lam).double()
    # h = (mean, c): the layers only hand the two numbers through
    for layer, weight in ((head.mean, (1.0, 0.0)), (head.spread, (0.0, 1.0))):
        layer.weight.data, layer.bias.data = (
            torch.tensor([weight]).double(),
            torch.zeros(1).double(),
        )
    c = torch.full_like(residual, 0.7).requires_grad_()
    y = torch.zeros(len(residual), dtype=torch.int64)
    optimizer = torch.optim.Adam([c], lr=0.02)
    for _ in range(20 if args.tiny else 1500):
        loss = head.nll(torch.stack([head.target - residual, c], -1), y)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    return loss.detach()


def closed_form(lam):
    """r^2 / (2 lam^2) + log lam where r < lam, else 1/2 + log r: sigma^2 = max(r^2, lam^2)."""
    inside = residual.square() / (2 * lam**2) + math.log(lam)
    return torch.where(residual < lam, inside, 0.5 + residual.log())


figure, ax = plt.subplots(figsize=(6, 4))
for lam in (0.25, 0.5, 1.0, 2.0):
    loss, exact = best_loss(lam), closed_form(lam)
    line = ax.plot(residual, exact, label=f"lambda = {lam:g}")[0]
    ax.plot(residual[::4], loss[::4], "o", color=line.get_color(), markersize=4)
    print(f"lambda {lam:g}: head against closed form, largest gap {(loss - exact).abs().max():.4f}")
    ax.axvline(lam, color=line.get_color(), linestyle=":", linewidth=1)
ax.set(xlabel="residual |r|", ylabel="loss with the best variance", ylim=(-2, 3))
ax.legend(title="lines: closed form, dots: the head")
figure.savefig(args.out, bbox_inches="tight", dpi=120)
