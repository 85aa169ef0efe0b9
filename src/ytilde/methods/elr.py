"""Early-learning regularisation: stay near past predictions. Liu et al., NeurIPS 2020, eq. 6-8.

Fidelity: CE + lam log(1 - <t, p>), t <- beta t + (1 - beta) p, probabilities clamped to
[1e-4, 1 - 1e-4] and t updated before the loss as in the authors' code. The defaults are theirs for
CIFAR-10 with symmetric noise; CIFAR-100 has beta = 0.9, lam = 7. Labels of -1 give no loss.

Memory: t takes N K numbers, 4.8 GB for 1.2 million rows of 1000 classes in float32, 2.4 GB in
float16 or bfloat16. top_k = 10 keeps each row's ten largest with their classes: 96 MB in float32,
72 MB in float16. What top_k drops is taken as 0: the pull towards classes of small t is lost.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..data import Batch, Spec, StepInfo
from ..losses import ce, elr, mean
from ..method import Method, register
from ._shared import Memory


@register("elr")
@dataclass(eq=False, repr=False)
class ELR(Method):
    beta: float = 0.7  # memory of past predictions
    lam: float = 3.0  # strength of the regulariser
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"  # of the memory
    top_k: int = 0  # keep only this many classes of each row's memory; 0: all

    ranges = "0 <= beta < 1, lam >= 0, top_k >= 0"
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.memory = Memory(spec.num_train, spec.num_classes, self.top_k, self.dtype)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        logits, y = self.net(step.augment(batch.x)), batch.y
        targets = self.memory.update(batch.index, logits, self.beta)
        return mean(ce(logits, y), y) + self.lam * mean(elr(logits, targets), y)
