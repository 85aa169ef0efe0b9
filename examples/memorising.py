"""Who learns the wrong labels by heart? Accuracy over training, right and wrong labels apart.

Cross-entropy, a heteroscedastic head and the logistic-normal on Fashion-MNIST (a small part) with
40 % of the labels redrawn (--rates 0.2 0.4 for more): clean test accuracy above; below, the share
of the training labels that are reproduced, right ones (full) and wrong ones (dashed). Englesson et
al., TMLR 2023, Fig. 4."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.fitting import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="memorising.png")
parser.add_argument("--rates", type=float, nargs="+", default=[0.4], help="of the noise")
parser.add_argument("--tiny", action="store_true", help="two epochs, for tests")
args = parser.parse_args()

clean, test = (datasets.load("fashion-mnist-small", split=s) for s in ("train", "test"))
clean = clean.rows(torch.arange(300 if args.tiny else 3000))
recipe = Recipe(2 if args.tiny else 60, optimizer="adam", lr=1e-3, schedule="constant", val=0)
METHODS = {
    "ce": {},
    "het_tau_full": {"tau": 1.0, "train_samples": 20, "eval_samples": 100},
    "ln": {"tau": 1.0, "lam": 0.5},
}


def history(method, rate):
    """After each epoch: clean test accuracy, and the shares of the labels that are reproduced."""
    made = noise.symmetric(clean.y, 10, rate=rate, generator=torch.Generator().manual_seed(0))
    data, wrong = replace(clean, y=made.y), made.y != clean.y
    parts = {"test": test, "right": data.rows((~wrong).nonzero().squeeze(1))}
    parts["wrong"] = data.rows(wrong.nonzero().squeeze(1))

    def monitor(trainer):  # looked at, never learned from
        return {name: trainer.score(part)["accuracy"] for name, part in parts.items()}

    return fit_method(method, data, recipe, backbone="lenet5", monitor=monitor).history


figure, axes = plt.subplots(2, 3, figsize=(11, 5), sharex=True, sharey="row", layout="constrained")
for column, (name, fields) in zip(axes.T, METHODS.items(), strict=True):
    column[0].set(title=name)
    column[1].set(xlabel="epoch")
    for i, rate in enumerate(args.rates):
        found = history(create(name, **fields), rate)
        for ax, part, style in ((0, "test", "-"), (1, "right", "-"), (1, "wrong", "--")):
            label = f"{part} labels, {rate:.0%} noise"
            column[ax].plot([r[part] for r in found], style, color=f"C{i}", label=label)
        last = ", ".join(f"{part} {found[-1][part]:.3f}" for part in ("test", "right", "wrong"))
        print(f"{name}, {rate:.0%} noise: {last}", flush=True)
axes[0, 0].set_ylabel("clean test accuracy")
axes[1, 0].set_ylabel("training labels learned")
axes[1, 0].legend(fontsize=8)
figure.savefig(args.out, dpi=100)
