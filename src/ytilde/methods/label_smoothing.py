"""Label smoothing: targets (1 - e) onehot + e / K. Szegedy et al., CVPR 2016, section 7.

Fidelity: the paper's targets and its e = 0.1, which sum to one over all K classes (the given one
gets its share of e too). Lukasik et al., ICML 2020, show what it does for noisy labels.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import label_smoothing, mean
from ..method import Method, register, view


@register("label_smoothing")
@dataclass(eq=False, repr=False)
class LabelSmoothing(Method):
    smoothing: float = 0.1  # how much of each target is spread over all classes

    ranges = "0 <= smoothing <= 1"

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(label_smoothing(self.net(x), y, self.smoothing), y)
