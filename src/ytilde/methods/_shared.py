"""What several methods share: stages, the noise rate, memory a row, guesses, features.

No method: the registry passes over files whose names begin with an underscore.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..data import IGNORE, BadInput, Batch, Data, Spec, StepInfo
from ..data.fingerprint import fingerprint
from ..encoders.features import Features
from ..engine import Loss, Trainer
from ..fitting import BackboneFactory
from ..losses import elr_target, mean
from ..method import Method, Net
from ..selection import estimate_rate, out_of_fold_knn

# ---- stages -------------------------------------------------------------------------------------


def stage_epochs(epochs: int, fraction: float) -> int:
    """The epochs of a stage that takes this fraction of all; at least one."""
    return max(1, round(fraction * epochs))


def ramp_up(step: StepInfo, length: float, start: float = 0.0) -> Tensor:
    """A linear rise from 0 to 1, of which start and length are shares of training."""
    since = step.progress - start
    return (since / length).clamp(0, 1) if length else (since >= 0).to(since.dtype)


def warmed_up(method: Method, data: Data, trainer: Trainer, epochs: int) -> Tensor:
    """Noisy posteriors [N, K] of the un-augmented inputs, after plain training of `method.net`.

    Kept is the epoch with the lowest noisy validation loss: later ones learn labels by heart.
    """
    best = replace(trainer.recipe, keep="best_nll")
    loss, params = partial(Method.loss, method), list(method.net.parameters())
    trainer.train("warm_up", loss, params, data, epochs=epochs, recipe=best)
    return trainer.map(lambda batch: method.net.log_probs(batch.x).float().exp(), data)


def early_labels(
    method: Method, loss: Loss, data: Data, trainer: Trainer, epochs: int, fraction: float = 1.0
) -> Tensor:
    """Labels [N] of `method.net` after it was warmed up with this loss: see `distilled`.

    Of the mean posterior over the epochs up to the one with the lowest noisy validation loss,
    whose network is kept: on digits with 40 % noise that mean is right for 86 % of the rows, the
    kept epoch alone for 81 %. `method.early` [N, K] sums up those before it, and is kept with it.
    """
    best = replace(trainer.recipe, keep="best_nll")
    params, early = list(method.net.parameters()), cast(Tensor, method.early)

    def posterior() -> Tensor:
        return trainer.map(lambda batch: method.net.log_probs(batch.x).float().exp(), data)

    for record in trainer.epochs("warm_up", loss, params, data, epochs=epochs, recipe=best):
        if record["epoch"] < epochs:
            early += posterior()
    return distilled(early + posterior(), fraction)


def distilled(posterior: Tensor, fraction: float) -> Tensor:
    """The Bayes labels [N] of noisy posteriors [N, K]: their argmax.

    -1 outside of the surest `fraction` of every predicted class.
    """
    sure, label = posterior.max(-1)
    found = torch.full_like(label, IGNORE)
    for c in range(posterior.shape[-1]):
        own = (label == c).nonzero().flatten()
        kept = own[sure[own].argsort(descending=True)[: round(fraction * len(own))]]
        found[kept] = c
    return found


def slack_rate(reach: float, data: Data, trainer: Trainer, epochs: int) -> float:
    """Adam's rate with which an entry of a slack moves `reach` at most in these epochs."""
    return reach / (epochs * math.ceil(len(data) / trainer.recipe.batch_size))


# ---- the noise rate "auto" -----------------------------------------------------------------------


def auto_rate(
    rate: float | str, net: Net, data: Data, trainer: Trainer, most: int = 10_000
) -> float:
    """The rate as given, or for "auto" `estimate_rate` of at most `most` rows, noisy labels alone.

    Neighbours are told by the inputs of tables and small grey images. Pixels of other images say
    little about their class: `net` is trained plainly for a tenth of the epochs (stage "rate"),
    which is before it learns labels by heart, its features are used, and it is put back.
    """
    if rate != "auto":
        given = not isinstance(rate, str) and 0 <= rate < 1
        if not given:
            raise BadInput(f'rate must be a share in [0, 1) or "auto", but it is {rate!r}.')
        return float(rate)
    if data.y.dim() > 1:
        raise BadInput('rate="auto" needs one label per row; give the share of wrong pixels.')

    def estimate() -> Tensor:
        generator = trainer.recipe.generator("split", "rate")
        chosen = torch.randperm(len(data), generator=generator)[:most].sort().values
        part = data.rows(chosen) if len(data) > most else data
        features = _features(net, data, part, trainer)
        probs = out_of_fold_knn(
            features, part.y.to(features.device), data.num_classes, generator=generator
        )
        return torch.tensor(estimate_rate(probs, part.y.to(probs.device)))

    return float(trainer.cached("rate", [data.y, trainer.recipe.seed], estimate))


def _features(net: Net, data: Data, part: Data, trainer: Trainer) -> Tensor:
    """What tells neighbours among the rows of `part` [n, D]; see `auto_rate`."""
    shape = data.shape
    if len(shape) == 1 or (shape[0] == 1 and max(shape) <= 32):
        return trainer.map(lambda batch: ((batch.x - net.mean) / net.std).flatten(1), part)

    def plain(batch: Batch, step: StepInfo) -> Tensor:
        return mean(net.nll(step.augment(batch.x), batch.y), batch.y)

    start = {name: value.clone() for name, value in net.state_dict().items()}
    recipe = replace(trainer.recipe, keep="last", ema=0.0, patience=0)
    epochs = max(1, round(0.1 * recipe.epochs))
    trainer.train(
        "rate", plain, net.parameters(), data, epochs=epochs, validate=False, recipe=recipe
    )
    features = trainer.map(lambda batch: net.features(batch.x).float(), part)
    net.load_state_dict(start)
    return features


# ---- memory a row -------------------------------------------------------------------------------

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Memory(nn.Module):
    """Running targets t [N, K], of which each row's k largest are held; 0 at first."""

    def __init__(self, rows: int, num_classes: int, top_k: int = 0, dtype: str = "float32") -> None:
        super().__init__()
        self.num_classes, self.top_k = num_classes, min(top_k, num_classes)
        held = self.top_k or num_classes
        self.values: Tensor
        self.classes: Tensor
        self.register_buffer("values", torch.zeros(rows, held, dtype=DTYPES[dtype]))
        if self.top_k:
            first = torch.arange(held, dtype=torch.int32)
            self.register_buffer("classes", first.repeat(rows, 1))

    def read(self, index: Tensor) -> Tensor:
        values = self.values.index_select(0, index).float()
        if not self.top_k:
            return values
        whole = values.new_zeros(len(index), self.num_classes)
        return whole.scatter(1, self.classes[index].long(), values)

    def all(self) -> Tensor:
        """Every row's, [N, K]."""
        return self.read(torch.arange(len(self.values), device=self.values.device))

    def write(self, index: Tensor, targets: Tensor) -> None:
        if self.top_k:
            targets, classes = targets.topk(self.top_k, sorted=False)
            self.classes[index] = classes.int()
        self.values[index] = targets.to(self.values.dtype)

    @torch.no_grad()
    def update(self, index: Tensor, logits: Tensor, beta: float) -> Tensor:
        """Move the targets of these rows towards the predictions; returns them, [B, K]."""
        targets = elr_target(self.read(index), logits, beta)
        self.write(index, targets)
        return targets


# ---- guesses ------------------------------------------------------------------------------------


def probs(logits: Tensor) -> Tensor:
    return logits.float().softmax(-1)


def guesses(net: Net, x: Tensor) -> Tensor:
    """Probabilities in eval mode; the network is left in training mode."""
    net.eval()
    p = probs(net(x))
    net.train()
    return p


# ---- features learnt without labels -------------------------------------------------------------

FeatureKind = Literal["auto", "encoder", "raw"]


def takes_raw(method: Any, shape: tuple[int, ...]) -> bool:
    """Are the features the inputs themselves? As "auto", vectors are."""
    return method.features == "raw" or (method.features == "auto" and len(shape) == 1)


def simclr_of(method: Any) -> str:
    """The pre-training of a method with these fields, as `fit_method` takes it."""
    return f"simclr:epochs={method.pretrain_epochs},seed={method.encoder_seed}"


def encoder_features(encoder: Features, data: Data, trainer: Trainer) -> Tensor:
    """[N, D] of the training rows; those of length one are kept in half precision."""
    inputs = [fingerprint(data), encoder.state_dict()]

    def compute() -> Tensor:
        h = trainer.map(lambda batch: encoder(batch.x), data)
        return h if encoder.raw else h.half()

    return trainer.cached("features", inputs, compute).float()


def from_scratch(spec: Spec) -> Spec:
    """The spec with backbones that start from no encoder."""
    factory = spec.backbone
    plain = replace(factory, encoder=None) if isinstance(factory, BackboneFactory) else factory
    return replace(spec, backbone=plain)
