"""What several methods share and no block can hold, because it trains: the noise rate "auto"."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..data import BadInput, Batch, Data, StepInfo
from ..engine import Trainer
from ..losses import mean
from ..method import Net
from ..selection import estimate_rate, out_of_fold_knn


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
        raise BadInput('rate="auto" needs one label a row; give the share of wrong pixels.')

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
