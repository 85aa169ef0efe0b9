"""HET-XL: heteroscedastic noise in feature space with a learned temperature. Collier et al. 2023.

Fidelity: the paper's model; the temperature is learned jointly between the bounds of the public
layer (0.3 to 3) and gets no weight decay. Parameters do not grow with the number of classes.
"""

from dataclasses import dataclass
from typing import Any

from ..heads import Head, HetXL
from ..method import Method, register


@register("het_xl")
@dataclass(eq=False, repr=False)
class HetXLMethod(Method):
    rank: int = 4  # of the feature noise
    train_samples: int = 50  # Monte-Carlo samples of a training step
    eval_samples: int = 1000  # and of a prediction

    ranges = "rank >= 1, train_samples >= 1, eval_samples >= 1"

    def head(self, dim: int, num_classes: int) -> Head:
        return HetXL(
            dim,
            num_classes,
            rank=self.rank,
            train_samples=self.train_samples,
            eval_samples=self.eval_samples,
        )

    def param_groups(self) -> list[Any]:
        named = dict(self.named_parameters())
        free = [p for name, p in named.items() if name.endswith("rho")]
        rest = [p for name, p in named.items() if not name.endswith("rho")]
        return [{"params": rest}, {"params": free, "weight_decay": 0.0}]
