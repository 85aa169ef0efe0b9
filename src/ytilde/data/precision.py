"""Features as float32, or as float64 where float32 would lose what tells the rows apart.

1,700,000,000 and 1,700,000,050 are one number in float32. Features are standardised by the first
layer of every network, in the precision that they come in; what follows is float32 either way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROUNDING = 1e-12  # a column that varies by less, relative to its size, is constant


def features(x: Tensor, double: bool | None = None) -> Tensor:
    """Features [N, D] as float32 or float64; double: as the training data was, None: choose."""
    wide = needs_double(x) if double is None else double
    return x.double() if wide else x.float()


def needs_double(x: Tensor) -> bool:
    """Would float32 lose a column [N, D], before it is standardised or by standardising it?

    Where its rounding is above 1e-4 of the standard deviation, and where that is too small or its
    square too large to be told.
    """
    step = max(1, 2**24 // max(1, len(x)))
    return any(_lost(x[:, at : at + step].double()) for at in range(0, x.shape[1], step))


def _lost(x: Tensor) -> bool:
    if not x.numel():
        return False
    largest = x.abs().amax(0)
    spread = (x / largest.clamp_min(1e-300)).std(0, correction=0)  # relative to the size
    coarse = spread < 6e-4  # float32 rounds to 2**-24 of the size
    extreme = (largest > 1e18) | (spread * largest <= 1e-6)
    return bool(((spread > ROUNDING) & (coarse | extreme)).any())


def as_weights(x: Tensor, module: nn.Module) -> Tensor:
    """In the precision of the module's weights, which follow once the features are standardised."""
    first = first_parameter(module)
    return x if first is None else x.to(first.dtype)


def first_parameter(module: nn.Module) -> Tensor | None:
    """The first of `module.parameters()`, in a fraction of the time: small networks notice."""
    for p in module._parameters.values():
        if p is not None:
            return p
    below = (first_parameter(part) for part in module._modules.values() if part is not None)
    return next((p for p in below if p is not None), None)


def narrow(x: Tensor) -> Tensor:
    """Features as float32, standardised before where they would be lost otherwise."""
    if not needs_double(x):
        return x.float()
    x = x.double()
    x = x - x.mean(0)
    return (x / x.std(0, correction=0).clamp_min(1e-300)).float()


def keep_double(x: Tensor) -> Tensor:
    """float64 as it is, anything else as float32."""
    return x if x.dtype == torch.float64 else x.float()
