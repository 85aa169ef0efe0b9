"""Who learns the wrong labels by heart? Accuracy over training, right and wrong labels apart.

Cross-entropy, a heteroscedastic head and the logistic-normal on Fashion-MNIST (a small part) with
40 % of the labels redrawn: clean test accuracy above; below, the share of the training labels
that are reproduced, the right ones and the wrong ones (Englesson et al., ICML 2023, Fig. 4)."""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.method import fit_method

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="memorising.png")
parser.add_argument("--tiny", action="store_true", help="two epochs, for tests")
args = parser.parse_args()

clean, test = (datasets.load("fashion-mnist-small", split=s) for s in ("train", "test"))
clean = clean.rows(torch.arange(300 if args.tiny else 3000))
made = noise.symmetric(clean.y, 10, rate=0.4, generator=torch.Generator().manual_seed(0))
data, wrong = replace(clean, y=made.y), made.y != clean.y
parts = {"right": data.rows((~wrong).nonzero().squeeze(1))}
parts["wrong"] = data.rows(wrong.nonzero().squeeze(1))
recipe = Recipe(2 if args.tiny else 60, optimizer="adam", lr=1e-3, schedule="constant", val=0)
METHODS = {
    "ce": {},
    "het_tau_full": {"tau": 1.0, "train_samples": 20, "eval_samples": 100},
    "ln": {"tau": 1.0, "lam": 0.5},
}


def monitor(trainer):
    """Looked at, never learned from."""
    shares = {name: trainer.score(part)["accuracy"] for name, part in parts.items()}
    return shares | {"test": trainer.score(test)["accuracy"]}


figure, axes = plt.subplots(2, 3, figsize=(11, 5), sharex=True, sharey="row", layout="constrained")
for column, (name, fields) in zip(axes.T, METHODS.items(), strict=True):
    method = create(name, **fields)
    history = fit_method(method, data, recipe, backbone="lenet5", monitor=monitor).history
    epochs = [record["epoch"] for record in history]
    column[0].plot(epochs, [record["test"] for record in history], color="black")
    column[0].set(title=name)
    for part, colour in (("right", "tab:blue"), ("wrong", "tab:red")):
        column[1].plot(epochs, [r[part] for r in history], color=colour, label=f"{part} labels")
    column[1].set(xlabel="epoch")
    last = history[-1]
    figures = (last["test"], last["right"], last["wrong"])
    print(f"{name}: test {figures[0]:.3f}, right labels {figures[1]:.3f}, wrong {figures[2]:.3f}")
axes[0, 0].set_ylabel("clean test accuracy")
axes[1, 0].set_ylabel("training labels learned")
axes[1, 0].legend()
figure.savefig(args.out, dpi=110)
