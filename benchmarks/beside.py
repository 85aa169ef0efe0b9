"""Training steps as research scripts write them, beside ours: images per second on one GPU.

    python benchmarks/beside.py [--out results/beside.jsonl] [--only ce,ln]
    python benchmarks/beside.py --check                                        # the losses agree
    python benchmarks/beside.py --device cpu --steps 2 --rows 256 --out /tmp/beside.jsonl

ce: cross-entropy; ln: the logistic-normal likelihood (Englesson et al., TMLR 2023); causal_nl:
CausalNL (Yao et al., NeurIPS 2021). The steps beside ours are written from the papers: eager
float32 with torch's defaults, 4 DataLoader workers with PIL transforms, and the loss read after
every step for the log. Ours is the captured step in bfloat16, with the networks as they are and,
for the methods in --compiled, compiled. Backbone, batch size, optimiser and loss are the same on
both sides.

`dataloader` is the whole script, `eager_step` its step alone on a batch that is on the device
already; `ratio` is ours over `dataloader`. Random images of CIFAR-10's shape; medians of repeats in
one run, without the warm-up. A CPU gets a narrow network and small batches: that only shows that
everything runs.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_throughput import N, images, ours, pil_batches, rate
from ytilde.backbones import create_backbone
from ytilde.generative import CausalModel, CausalOutput, elbo_terms
from ytilde.heads import LogisticNormal
from ytilde.losses import ce, weighted_mean
from ytilde.method import create
from ytilde.selection import co_teaching

SHAPE, K = (3, 32, 32), 10
BACKBONE, BATCH = "resnet18:stem=cifar", 128
CPU_BACKBONE, CPU_BATCH = "resnet18:stem=cifar,width=8", 32
FORGET_RATE = 0.2  # of co-teaching: the share of a batch that is left out
# The optimisers of the papers. Ours starts from gpu_throughput's recipe, which is SGD's.
SGD: dict[str, Any] = {}
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0}

Update = Callable[[Tensor, Tensor], Tensor]  # x, y -> the loss, after the step


# ---- cross-entropy -------------------------------------------------------------------------------


def cross_entropy_step(backbone: str, device: torch.device) -> Update:
    net = create_backbone(backbone, SHAPE)
    model = nn.Sequential(net, nn.Linear(net.dim, K)).to(device)
    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return update


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True)


# ---- logistic-normal -----------------------------------------------------------------------------


def logistic_normal_loss(
    mean: Tensor, c: Tensor, y: Tensor, tau: float = 0.5, lam: float = 0.5, smoothing: float = 0.01
) -> Tensor:
    """Mean negative log-density of the smoothed label without its constants, in closed form.

    The covariance is A A^T, A = c c^T + lam I; mean and c are [B, K], the reference of the logits
    is an extra class.
    """
    k = mean.shape[-1]
    s = (1 - smoothing) * F.one_hot(y, k + 1).float() + smoothing / (k + 1)
    r = tau * (s[:, :-1].log() - s[:, -1:].log()) - mean
    total = lam + (c * c).sum(-1, keepdim=True)
    w = (r - c * (c * r).sum(-1, keepdim=True) / total) / lam
    log_det = 2 * ((k - 1) * math.log(lam) + total.squeeze(-1).log())
    return 0.5 * ((w * w).sum(-1) + log_det).mean()


def logistic_normal_step(backbone: str, device: torch.device) -> Update:
    net = create_backbone(backbone, SHAPE)
    layers = {"net": net, "mean": nn.Linear(net.dim, K), "c": nn.Linear(net.dim, K)}
    model = nn.ModuleDict(layers).to(device)
    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> Tensor:
        h = model["net"](x)
        loss = logistic_normal_loss(model["mean"](h), model["c"](h), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return update


# ---- CausalNL ------------------------------------------------------------------------------------


def normalised(conv: nn.Module, width: int) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(width), nn.LeakyReLU()]


class Encoder(nn.Module):
    """Image and label -> numbers: four strided convolutions, the label as one more channel."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.label = nn.Linear(K, 32 * 32)
        self.image = nn.Conv2d(3, 3, 1)
        layers: list[nn.Module] = []
        for before, after in ((4, 32), (32, 64), (64, 128), (128, 256)):
            layers += normalised(nn.Conv2d(before, after, 3, 2, 1, bias=False), after)
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 2 * 2, outputs))

    def forward(self, x: Tensor, y_hat: Tensor) -> Tensor:
        label = self.label(y_hat).view(-1, 1, 32, 32)
        return self.body(torch.cat([self.image(x), label], 1))


class Decoder(nn.Module):
    """z and label -> image in (0, 1): four transposed convolutions and a plain one."""

    def __init__(self, z_dim: int) -> None:
        super().__init__()
        self.start = nn.Linear(z_dim + K, 256 * 2 * 2)
        layers: list[nn.Module] = []
        for before, after in ((256, 128), (128, 64), (64, 32), (32, 32)):
            up = nn.ConvTranspose2d(before, after, 3, 2, 1, output_padding=1, bias=False)
            layers += normalised(up, after)
        self.body = nn.Sequential(*layers, nn.Conv2d(32, 3, 3, padding=1), nn.Sigmoid())

    def forward(self, z: Tensor, y_hat: Tensor) -> Tensor:
        return self.body(self.start(torch.cat([z, y_hat], 1)).view(-1, 256, 2, 2))


class Output(NamedTuple):
    """What the loss of a branch needs."""

    logits: Tensor
    mu: Tensor
    logvar: Tensor
    x_hat: Tensor
    noisy_logits: Tensor


class Branch(nn.Module):
    """q(Y|X), q(Z|X,Y), p(X|Y,Z) and p(Y~|X,Y), which reads the reconstruction."""

    def __init__(self, backbone: str, z_dim: int = 25) -> None:
        super().__init__()
        net = create_backbone(backbone, SHAPE)
        self.classifier = nn.Sequential(net, nn.Linear(net.dim, K))
        self.z_encoder, self.x_decoder, self.t_decoder = (
            Encoder(2 * z_dim),
            Decoder(z_dim),
            Encoder(K),
        )

    def forward(self, x: Tensor) -> Output:
        logits = self.classifier(x)
        y_hat = F.gumbel_softmax(logits, tau=1)
        mu, logvar = self.z_encoder(x, y_hat).chunk(2, 1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        x_hat = self.x_decoder(z, y_hat)
        return Output(logits, mu, logvar, x_hat, self.t_decoder(x_hat, y_hat))


def bound_loss(out: Output, x: Tensor, y: Tensor) -> Tensor:
    """The negative bound of a branch with the paper's weights, means over the batch."""
    log_q = F.log_softmax(out.logits, 1)
    kl = -0.5 * (1 + out.logvar - out.mu.pow(2) - out.logvar.exp()).sum(1).mean()
    negative_entropy = (log_q.exp() * log_q).sum(1).mean()
    reconstruction = F.l1_loss(out.x_hat, x)
    noisy = F.cross_entropy(out.noisy_logits, y)
    return 0.1 * reconstruction + 0.1 * noisy + 1e-5 * negative_entropy + 0.01 * kl


def co_teaching_loss(logits1: Tensor, logits2: Tensor, y: Tensor, forget_rate: float) -> Tensor:
    """Each classifier learns from the rows with the other one's smallest losses."""
    kept = int((1 - forget_rate) * len(y))

    def smallest(logits: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, y, reduction="none")
        order = np.argsort(losses.detach().cpu().numpy())
        return torch.from_numpy(order[:kept]).to(y.device)

    rows1, rows2 = smallest(logits2), smallest(logits1)
    return F.cross_entropy(logits1[rows1], y[rows1]) + F.cross_entropy(logits2[rows2], y[rows2])


def causal_nl_step(backbone: str, device: torch.device) -> Update:
    branch1, branch2 = Branch(backbone).to(device), Branch(backbone).to(device)
    optimizers = [torch.optim.Adam(branch.parameters(), 1e-3) for branch in (branch1, branch2)]

    def update(x: Tensor, y: Tensor) -> Tensor:
        out1, out2 = branch1(x), branch2(x)
        loss = co_teaching_loss(out1.logits, out2.logits, y, FORGET_RATE)
        loss = loss + bound_loss(out1, x, y) + bound_loss(out2, x, y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return update


# ---- measuring -----------------------------------------------------------------------------------

# The step, whether the DataLoader normalises (CausalNL's pixels stay in [0, 1]), our optimiser.
METHODS: dict[str, tuple[Callable[[str, torch.device], Update], bool, dict[str, Any]]] = {
    "ce": (cross_entropy_step, True, SGD),
    "ln": (logistic_normal_step, True, SGD),
    "causal_nl": (causal_nl_step, False, ADAM),
}


def compare(
    name: str, options: argparse.Namespace, measure: Callable[..., float]
) -> dict[str, Any]:
    """Images per second of the script, of its step alone and of ours."""
    make_step, normalise, optimiser = METHODS[name]
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    backbone, batch = (BACKBONE, BATCH) if cuda else (CPU_BACKBONE, CPU_BATCH)
    data = images(SHAPE, options.rows)
    source = pil_batches(data, batch, normalise, pin_memory=cuda)
    update = make_step(backbone, device)

    def whole() -> int:
        x, y = next(source)
        update(x.to(device, non_blocking=True), y.to(device, non_blocking=True)).item()
        return batch

    script = measure(whole)
    x, y = (part.to(device) for part in next(source))
    source.close()  # ends the workers

    def step_alone() -> int:
        update(x, y).item()
        return batch

    row = {"dataloader": script, "eager_step": measure(step_alone)}
    how = {"device": options.device, **optimiser}
    row["ytilde"] = ours(create(name), backbone, data, batch, measure, **how)
    if cuda and name in options.compiled.split(","):
        row["ytilde_compiled"] = ours(
            create(name), backbone, data, batch, measure, compile=True, **how
        )
    ratios = {
        key.replace("ytilde", "ratio"): round(value / script, 2)
        for key, value in row.items()
        if key.startswith("ytilde")
    }
    figures = {key: round(value) for key, value in row.items()}
    return {"method": name, "model": backbone, "batch": batch, **figures, **ratios}


# ---- checking ------------------------------------------------------------------------------------


def check() -> None:
    """The losses above equal those of the library, and the networks have as many weights."""
    torch.manual_seed(0)
    y = torch.randint(0, K, (BATCH,))
    h = torch.randn(BATCH, 16)
    method: Any = create("ln")
    head = method.head(16, K)
    assert isinstance(head, LogisticNormal)
    weights = list(head.parameters())
    beside = logistic_normal_loss(head.mean(h), head.spread(h), y)
    library = head.nll(h, y).mean()
    torch.testing.assert_close(beside, library)
    torch.testing.assert_close(
        torch.autograd.grad(beside, weights), torch.autograd.grad(library, weights)
    )

    method = create("causal_nl")
    x = torch.rand(BATCH, *SHAPE)
    branch, peer = Branch(CPU_BACKBONE, method.z_dim), Branch(CPU_BACKBONE, method.z_dim)
    out = branch(x)
    drawn = out.logits.softmax(1)  # elbo_terms does not read what was drawn
    model_output = CausalOutput(drawn, out.mu, out.mu, out.logvar, out.x_hat, out.noisy_logits)
    terms = [term.mean() for term in elbo_terms(model_output, x, y, out.logits)]
    factors = (method.b0, method.b1, method.b2, method.b3)
    bound = sum(factor * term for factor, term in zip(factors, terms, strict=True))
    torch.testing.assert_close(bound_loss(out, x, y), bound)

    logits = out.logits, peer(x).logits
    losses = [ce(each, y) for each in logits]
    chosen = co_teaching(losses[0], losses[1], 1 - FORGET_RATE)
    taught = weighted_mean(losses[0], chosen[0]) + weighted_mean(losses[1], chosen[1])
    torch.testing.assert_close(co_teaching_loss(*logits, y, FORGET_RATE), taught)

    parts = branch.z_encoder, branch.x_decoder, branch.t_decoder
    model = CausalModel(SHAPE, K, method.z_dim)
    assert sum(map(size, parts)) == size(model)
    print("the losses agree")


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/beside.jsonl"))
    parser.add_argument("--only", default=",".join(METHODS), help="methods, with commas")
    parser.add_argument("--compiled", default="ce", help="methods to compile as well (CUDA)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=N)
    parser.add_argument("--steps", type=int, default=20, help="of one repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="compare the losses and stop")
    options = parser.parse_args()
    if options.check:
        check()
        return
    cuda = torch.device(options.device).type == "cuda"
    about = {"device": torch.cuda.get_device_name() if cuda else "cpu"}
    about |= {"torch": torch.__version__, "python": platform.python_version()}
    warm_up = 15 if cuda else 2
    measure = partial(rate, repeats=options.repeats, steps=options.steps, warm_up=warm_up)
    lines: list[str] = []
    for name in options.only.split(","):
        row = {**compare(name, options, measure), "unit": "images/s", **about}
        lines.append(json.dumps(row) + "\n")
        print(lines[-1], end="", flush=True)
        options.out.write_text("".join(lines))


if __name__ == "__main__":
    main()
