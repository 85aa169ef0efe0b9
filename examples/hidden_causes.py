"""When does a heteroscedastic head help? (Collier et al. 2020, appendix B, in numbers)

Labels depend on what is seen, x, and on something hidden. Where that does not depend on x (noise of
one size), a heteroscedastic head has nothing to learn; where it does (its size grows with a
feature; a feature is missing because of its own value), it has. Both heads are linear."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

from ytilde import Recipe, create
from ytilde.data import Data
from ytilde.fitting import fit_method
from ytilde.stats import mean_sd, paired_t

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="hidden_causes.png")
parser.add_argument("--tiny", action="store_true", help="one epoch, for tests")
args = parser.parse_args()
K, D, SEEDS, n = (3, 6, 2, 200) if args.tiny else (3, 6, 5, 2000)
adam = Recipe(epochs=1 if args.tiny else 25, optimizer="adam", lr=0.01, weight_decay=0.0, val=0)
W = 2 * torch.randn(D, K, generator=torch.Generator().manual_seed(1))


def independent(x, noise, power=0.0):
    return x, x @ W + 2 * (power * x[:, :1]).exp() * noise


def size(x, noise):
    return independent(x, noise, 1.5)


def missing(x, noise):
    gone = (x[:, :2] > 0) & (noise[:, :2] < 0.8)  # large values are seldom given
    return torch.cat([x[:, :2].masked_fill(gone, 0.0), x[:, 2:], gone.to(x)], 1), x @ W


def drawn(case, rows, seed):
    g = torch.Generator().manual_seed(seed)
    seen, logits = case(torch.randn(rows, D, generator=g), torch.randn(rows, K, generator=g))
    return Data(seen, logits.argmax(-1), K)


figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for place, case in enumerate((independent, size, missing)):
    scores = {"ce": [], "het": []}
    for name, found in scores.items():
        for seed in range(SEEDS):
            own, data = replace(adam, seed=seed), drawn(case, n, seed)
            trainer = fit_method(create(name), data, own, backbone="identity")
            found.append(-trainer.score(drawn(case, 4 * n, 1000 + seed))["nll"])
    gains = [b - a for a, b in zip(scores["ce"], scores["het"], strict=True)]
    p = paired_t(scores["het"], scores["ce"]).p
    print(f"{case.__name__:12} gain {mean_sd(gains)[0]:.4f} (p {p:.1g})")
    ax.plot(gains, [place] * SEEDS, "o", alpha=0.6)
ax.set(yticks=range(3), yticklabels=["independent", "size", "missing"], ylabel="what is hidden")
ax.set(xlabel="gain in log-likelihood by a heteroscedastic head", ylim=(2.5, -0.5))
figure.savefig(args.out, dpi=100)
