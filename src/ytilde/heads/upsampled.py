"""A head on a coarse map for labels of pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .head import Head, _check_positive, _full_precision


class Upsampled(Head):
    """A head on a coarse map [B, H, W, dim] for labels [B, scale H, scale W], or cut to `size`.

    Collier et al. 2020, appendix E.1: log-probabilities are sampled on the coarse map, taken as
    logits, made larger (bilinear) and normalised again. A head with a likelihood of its own, as the
    logistic-normal, gets larger features instead: its layers are linear, so this is its
    likelihood with the larger mean and covariance parameters.

    Args:
        head: of the coarse map.
        scale: how many times larger each side becomes.
        size: height and width of the labels, where they are no multiples of `scale`.

    Example:
        >>> from ytilde.heads import Softmax
        >>> import torch
        >>> head = Upsampled(Softmax(8, 3), scale=4, size=(15, 16))
        >>> head.log_probs(torch.zeros(2, 4, 4, 8)).shape
        torch.Size([2, 15, 16, 3])
    """

    def __init__(self, head: Head, scale: int, size: tuple[int, ...] | None = None) -> None:
        super().__init__(head.dim, head.num_classes)
        _check_positive(scale=scale)
        self.head, self.scale, self.size = head, scale, size

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self._enlarge(self.head(h))

    @_full_precision
    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._enlarge(self.head.log_probs(h, generator)).log_softmax(-1)

    @_full_precision
    def nll(self, h: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.head.categorical:
            return super().nll(h, y, generator)
        return self.head.nll(self._enlarge(h), y, generator)

    @_full_precision
    def variance(self, h: Tensor) -> Tensor | None:
        variance = self.head.variance(h)
        return None if variance is None else self._enlarge(variance)

    def _enlarge(self, x: Tensor) -> Tensor:
        image = x.movedim(-1, 1)
        image = F.interpolate(image, scale_factor=self.scale, mode="bilinear", align_corners=False)
        if self.size is not None:  # networks round sides up that their stride does not divide
            image = image[..., : self.size[0], : self.size[1]]
        return image.movedim(1, -1)
