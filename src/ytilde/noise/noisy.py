"""Noisy: labels that were made wrong, and the truth about them; what every kind of noise checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..data import IGNORE
from ..errors import BadInput, unknown_name_message


@dataclass(frozen=True, eq=False, repr=False)
class Noisy:
    """Noisy labels and the truth about them.

    Attributes:
        y: the noisy labels, int64, shaped as `clean` [N] or [N, H, W]; -1 where `clean` is -1.
        clean: the true labels.
        kind: of the noise.
        matrix: T of each class, [K, K].

    Example:
        >>> from ytilde import noise
        >>> y = torch.arange(1000) % 10
        >>> made = noise.pair(y, 10, rate=0.4, generator=torch.Generator().manual_seed(0))
        >>> made.transition(torch.tensor([0]))[0, 0, :2]
        tensor([0.6000, 0.4000])
        >>> made.summary()["modal_share"][0]
        1.0
    """

    y: Tensor
    clean: Tensor
    kind: str
    matrix: Tensor

    @property
    def rows(self) -> Tensor:
        """The row of T that each label was drawn from, [N, K] (pixels [N, H, W, K]); 0 for -1."""
        # Made when asked for: over the pixels of a segmentation set it can exceed the memory.
        return self.matrix[self.clean.clamp(min=0)] * (self.clean != IGNORE).unsqueeze(-1)

    @property
    def rate(self) -> float:
        """The realised flip rate: how many of the labels that are not -1 are wrong."""
        flips = int((self.y != self.clean).sum())
        return flips / max(1, int((self.clean != IGNORE).sum()))

    def transition(self, index: Tensor) -> Tensor:
        """The full true T(x) of these rows of the data set.

        Args:
            index: rows [n].

        Returns:
            [n, K, K].
        """
        return self.matrix.expand(len(index), -1, -1)

    def summary(self) -> dict[str, Any]:
        """How much the noise depends on the input, for people and JSON.

        mean_max: mean over examples of the largest flip probability, given that there is a flip.
        modal_share, effective_targets: of the expected wrong labels of each class, the share of
        the most likely one and the perplexity; None for a class that is never flipped.
        """
        rows, classes, weight = self._weighted_rows()
        flips = rows.double().scatter(-1, classes.unsqueeze(-1), 0.0)
        rate = flips.sum(-1)
        weight = weight * (rate > 0)
        peak = (flips.amax(-1) / rate).nan_to_num()  # 0 / 0 where nothing is flipped
        per_class = flips.new_zeros(self.matrix.shape).index_add(
            0, classes, flips * weight.unsqueeze(-1)
        )
        total = per_class.sum(-1)
        share = (per_class / total.unsqueeze(-1)).nan_to_num()
        perplexity = torch.special.entr(share).sum(-1).exp()
        return {
            "kind": self.kind,
            "rate": self.rate,
            "mean_max": float((peak * weight).sum() / weight.sum()) if weight.any() else None,
            "modal_share": _or_none(share.amax(-1), total > 0),
            "effective_targets": _or_none(perplexity, total > 0),
        }

    def _weighted_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of T [M, K], their true classes [M] and how many examples each stands for [M]."""
        num_classes = len(self.matrix)
        count = torch.bincount(self.clean[self.clean != IGNORE], minlength=num_classes)
        return self.matrix, torch.arange(num_classes), count.double()


def _or_none(values: Tensor, defined: Tensor) -> list[float | None]:
    return [v if d else None for v, d in zip(values.tolist(), defined.tolist(), strict=True)]


def _cdf(row: Tensor) -> Tensor:
    """Cumulative probabilities that end in exactly 1, so that no draw falls outside."""
    cdf = row.double().cumsum(-1)
    return cdf / cdf[..., -1:]


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    return torch.rand(count, generator=generator, dtype=torch.float64, device=device).cpu()


def _labels(y: Tensor, num_classes: int) -> Tensor:
    if num_classes < 2:
        raise BadInput(f"label noise needs at least 2 classes, not {num_classes}.")
    y = torch.as_tensor(y)
    if y.is_floating_point() or y.dtype == torch.bool or not y.numel():
        raise BadInput(f"labels must be whole numbers, at least one, not {y.numel()} of {y.dtype}.")
    low, high = int(y.min()), int(y.max())
    if low < IGNORE or high >= num_classes:
        raise BadInput(
            f"labels must lie in 0..{num_classes - 1} (or be -1 = ignore), not in {low}..{high}."
        )
    return y.cpu().long()


def _rate(rate: float) -> float:
    if not isinstance(rate, Real) or not 0 <= rate <= 1:
        raise BadInput(f"a noise rate must lie in [0, 1], not {rate}.")
    return float(rate)


def _known(what: str, name: str, names: Iterable[str]) -> str:
    names = list(names)
    if name not in names:
        raise BadInput(unknown_name_message(what, name, names))
    return name
