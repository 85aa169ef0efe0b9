"""Anybody's network as a backbone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .registry import Backbone, Shape


def as_backbone(module: nn.Module, shape: Shape) -> nn.Module:
    """Anybody's network as a backbone: itself where it knows its `dim`, else measured.

    The dry run is of a copy, in eval mode, on zeros, with torch's random state put back.
    """
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"a backbone is a name (`ytilde methods backbones` lists them) or a torch module, not "
            f"{module!r}"
        )
    if isinstance(getattr(module, "dim", None), int):
        return module
    trial = copy.deepcopy(module).eval()
    like = next(iter(trial.parameters()), torch.zeros(()))
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            features = trial(torch.zeros(2, *shape, dtype=like.dtype, device=like.device))
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadInput(
                f"the backbone {type(module).__name__} does not take inputs of shape "
                f"{tuple(shape)}: {str(error).splitlines()[0]}"
            ) from error
    if not isinstance(features, Tensor) or features.ndim not in (2, 4) or len(features) != 2:
        raise BadInput(
            f"the backbone {type(module).__name__} must give features [B, D] or, for pixels, "
            f"[B, H, W, D], not {list(getattr(features, 'shape', [])) or type(features).__name__}"
        )
    return _Measured(module, features.shape, shape)


class _Measured(Backbone):
    def __init__(self, module: nn.Module, features: torch.Size, shape: Shape) -> None:
        super().__init__()
        self.module, self.dim = module, features[-1]
        if len(features) == 4:
            self.stride = round(shape[1] / features[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)
