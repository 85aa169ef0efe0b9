"""What CausalNL's causal model has learned of images and of their labels' noise.

Fashion-MNIST (a small part), 45 % instance-dependent noise (Yao et al., NeurIPS 2021). Images with
their reconstruction p(X | Y, Z); the true T(x) of the noise beside p(Y~ | X, Y), white = 1, true
class down, given label across; then samples of every class, Z drawn from its prior. The weight of
the KL of Z is lower than the paper's, or Z says nothing and all samples of a class are the same."""

import argparse
from dataclasses import replace

import torch

from ytilde import Recipe, create, datasets, noise
from ytilde.data import Batch
from ytilde.method import fit_method
from ytilde.pictures import plot_images

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="causal_images.png")
parser.add_argument("--rate", type=float, default=0.45)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--tiny", action="store_true", help="one epoch on few images, for tests")
args = parser.parse_args()
clean, test = (datasets.load("fashion-mnist-small", split=s) for s in ("train", "test"))
clean = clean.rows(torch.arange(300 if args.tiny else 4000))
K, g = clean.num_classes, torch.Generator().manual_seed(0)
law = {"rate": args.rate, "features": "raw255"}
made = noise.instance(clean.x, clean.y, K, **law, generator=g)
data = replace(clean, y=made.y)  # no clean labels: nothing below can learn from them
epochs = 1 if args.tiny else args.epochs
recipe = Recipe(epochs, optimizer="adam", lr=1e-3, schedule="constant", val=0)
method = create("causal_nl", rate=args.rate, b3=1e-4)
trainer = fit_method(method, data, recipe, backbone="lenet5")
print(f"clean test accuracy {trainer.score(test)['accuracy']:.3f}")

first = torch.stack([(clean.y == c).nonzero()[0, 0] for c in range(K)])  # an image of each class
x = clean.x[first].float() / 255
with torch.no_grad():
    T = method.transition(Batch(x, data.y[first], first))
x_hat, T_true = method.reconstruct(x), made.transition(first)
print(f"L1 error of a reconstructed pixel {(x_hat - x).abs().mean():.3f}")
print(f"mean error of an entry of T(x) {(T - T_true).abs().mean():.3f}")
same = (T - T.mean(1, keepdim=True)).abs().mean()
print(f"mean distance of a row of T(x) to the mean of its rows, an entry: {same:.3f}")
rows = {"x": x, "reconstruction": x_hat, "true T(x)": T_true[:, None], "found T(x)": T[:, None]}
drawn = torch.stack([method.generate(c, 4) for c in range(K)], 1)  # [4, K, 1, H, W]
rows |= {f"sample {i + 1}": images for i, images in enumerate(drawn)}
plot_images(rows, [clean.class_name(c) for c in range(K)]).savefig(args.out, dpi=80)
