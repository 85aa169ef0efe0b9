"""A ytilde head in your own PyTorch loop: swap the last layer, ask it for the loss. Nothing else.

Digits of which 30 % are labelled as the next one; draws the accuracy on true labels by epoch."""

import argparse

import matplotlib.pyplot as plt
import torch
from torch import nn

from ytilde import datasets, heads, noise

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="own_loop.png")
parser.add_argument("--tiny", action="store_true", help="a few epochs, for tests")
args = parser.parse_args()
EPOCHS = 3 if args.tiny else 60

train, test = datasets.load("digits", split="train"), datasets.load("digits", split="test")
y = noise.pair(train.y, 10, rate=0.3, generator=torch.Generator().manual_seed(0)).y


def run(make_head):
    """Your loop: everything but the head and its `nll` is plain PyTorch."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    head = make_head(256, 10)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    curve = []
    for _ in range(EPOCHS):
        head.train()
        for rows in torch.randperm(len(y)).split(128):
            loss = head.nll(body(train.x[rows]), y[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        head.eval()
        with torch.no_grad():
            predicted = head.log_probs(body(test.x)).argmax(-1)
        curve.append((predicted == test.y).double().mean().item())
    return curve


figure, ax = plt.subplots(figsize=(6, 4))
for name, make_head in {
    "softmax": heads.Softmax,
    "heteroscedastic": lambda dim, k: heads.Heteroscedastic(dim, k, tau=0.5, train_samples=10),
    "logistic-normal": lambda dim, k: heads.LogisticNormal(dim, k, tau=0.5, lam=0.5),
}.items():
    curve = run(make_head)
    print(f"{name:16} best {max(curve):.3f}  last {curve[-1]:.3f}")
    ax.plot(range(1, EPOCHS + 1), curve, label=name)
ax.set(xlabel="epoch", ylabel="test accuracy, true labels", title="digits, pair noise 30 %")
ax.legend()
figure.savefig(args.out, bbox_inches="tight", dpi=120)
