"""The losses as modules, for anybody's own loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from ..data import check_ranges
from .bounded import bootstrap_hard, bootstrap_soft, gce, mae, symmetric_ce
from .cross_entropy import ce, label_smoothing, noise_against_noise
from .labels import _check, mean
from .peer import cores, peer_loss
from .tempered import bi_tempered


class Loss(nn.Module):
    """A loss function with its settings, for anybody's loop.

    The settings and their defaults are those of the function. The class axis is last
    (`logits.movedim(1, -1)` for images of logits), label -1 is ignored.

    Args:
        args: settings in the function's order.
        reduction: "mean" over the elements not ignored, "sum", or "none".
        settings: settings by name.

    Example:
        >>> from torch import tensor
        >>> GCE(q=0.7)(tensor([[2.0, 0.0], [0.0, 1.0]]), tensor([0, -1]))
        tensor(0.1215)
        >>> GCE(q=0.7, reduction="none")
        GCE(q=0.7, reduction='none')
    """

    function: ClassVar[Callable[..., Tensor]]
    ranges: ClassVar[str] = ""  # what must hold of the settings: "0 < q <= 1, alpha >= 0"

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or cls.function.__doc__

    def __init__(self, *args: Any, reduction: str = "mean", **settings: Any) -> None:
        super().__init__()
        _check(
            reduction in ("mean", "sum", "none"),
            f'reduction must be "mean", "sum" or "none", but it is {reduction!r}.',
        )
        self.reduction = reduction
        # Bound here, so that an unknown or missing setting fails at once and not in the loop.
        bound = inspect.signature(self.function).bind(None, None, *args, **settings)
        bound.apply_defaults()
        self.settings = dict(list(bound.arguments.items())[2:])
        check_ranges(type(self).__name__, self.settings, self.ranges)

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        nll = self.function(logits, y, **self.settings)
        if self.reduction == "none":
            return nll
        return nll.sum() if self.reduction == "sum" else mean(nll, y)

    def extra_repr(self) -> str:
        shown = {**self.settings, "reduction": self.reduction}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


class CE(Loss):
    function = staticmethod(ce)


class LabelSmoothing(Loss):
    function = staticmethod(label_smoothing)
    ranges = "0 <= smoothing <= 1"


class NoiseAgainstNoise(Loss):
    function = staticmethod(noise_against_noise)
    ranges = "sigma >= 0"


class GCE(Loss):
    function = staticmethod(gce)
    ranges = "0 < q <= 1"


class MAE(Loss):
    function = staticmethod(mae)


class SymmetricCE(Loss):
    function = staticmethod(symmetric_ce)
    ranges = "alpha >= 0, beta >= 0"


class BootstrapSoft(Loss):
    function = staticmethod(bootstrap_soft)
    ranges = "0 <= beta <= 1"


class BootstrapHard(Loss):
    function = staticmethod(bootstrap_hard)
    ranges = "0 <= beta <= 1"


class BiTempered(Loss):
    function = staticmethod(bi_tempered)
    ranges = "0 <= t1 <= 1, t2 > 0, 0 <= smoothing < 1"


class PeerLoss(Loss):
    function = staticmethod(peer_loss)
    ranges = "alpha >= 0"


class Cores(Loss):
    function = staticmethod(cores)
    ranges = "beta >= 0"
