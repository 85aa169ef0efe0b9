"""Features that what uses them never trains."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.precision import as_weights
from ..data.types import Spec


class Features(nn.Module):
    """x -> features [B, dim], never trained by what uses them.

    An encoder's, of length one; or, raw, the standardised inputs.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, raw: bool) -> None:
        super().__init__()
        self.register_buffer("mean", spec.mean.clone())
        self.register_buffer("std", spec.std.clone())
        self.backbone = nn.Flatten() if raw else spec.backbone()
        self.raw, self.dim = raw, spec.mean.new_empty(spec.shape).numel() if raw else spec.dim
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Features:
        return super().train(False)  # its batch statistics stay as they are

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(as_weights((x - self.mean) / self.std, self)).float()
        return h if self.raw else F.normalize(h, dim=-1)
