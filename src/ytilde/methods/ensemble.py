"""Ensemble: two pairs of networks, of two sizes, each trained by `second_opinion`, and their mean.

Ours. A small network does best where many labels are wrong, a larger one where classes are patches
or hardly differ, and held-out noisy labels seldom tell which case it is: the mean of both needs no
choice (docs/decisions/0023). Within a pair each network learns from its peer, as in
`second_opinion`; the pairs do not hear each other. All four learn in one step (their parameters
are disjoint, so that updates are those of two trainings), and what is predicted is the geometric
mean of the four weight averages.

Fidelity: no paper. Means of networks that started differently are deep ensembles (Lakshminarayanan
et al., NeurIPS 2017).
"""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ..backbones import create_backbone
from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..method import register
from .second_opinion import SecondOpinion

LARGER = "mlp:width=256,depth=2"  # than what vectors get by default


@register("ensemble")
@dataclass(eq=False, repr=False)
class Ensemble(SecondOpinion):
    network: str = "auto"  # of the second pair; auto: of vectors mlp:width=256,depth=2

    def build(self, spec: Spec) -> None:
        super().build(spec)
        fields = {name: getattr(self, name) for name in SecondOpinion.field_names()}
        self.other = SecondOpinion(**fields)
        self.other.build(self.second(spec))

    def second(self, spec: Spec) -> Spec:
        """The spec of the second pair."""
        auto = self.network == "auto"
        if auto and len(spec.shape) > 1:
            return spec
        make = partial(create_backbone, LARGER if auto else self.network, spec.shape)
        return replace(spec, backbone=make, dim=make().dim)

    def param_groups(self) -> list[Tensor]:
        return [*super().param_groups(), *self.other.param_groups()]

    def prepare(self, data: Data, trainer: Trainer) -> None:
        super().prepare(data, trainer)
        self.other.prepare(data, trainer)

    def look_back(self, data: Data, trainer: Trainer, progress: float) -> None:
        super().look_back(data, trainer, progress)
        self.other.look_back(data, trainer, progress)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        return super().loss(batch, step) + self.other.loss(batch, step)

    def log_mean(self, x: Tensor) -> Tensor:
        return (super().log_mean(x) + self.other.log_mean(x)) / 2

    def transition(self, batch: Batch) -> Tensor | None:
        return (self.T + self.other.T) / 2
