"""Early-learning regularisation: stay near past predictions. Liu et al., NeurIPS 2020, eq. 6-8.

Fidelity: CE + lam log(1 - <t, p>), t <- beta t + (1 - beta) p, probabilities clamped to
[1e-4, 1 - 1e-4] and t updated before the loss as in the authors' code. The defaults are theirs for
CIFAR-10 with symmetric noise; CIFAR-100 has beta = 0.9, lam = 7. Labels of -1 give no loss.

Memory: t takes N K numbers, 4.8 GB for 1.2 million rows of 1000 classes in float32, 2.4 GB in
float16 or bfloat16. top_k = 10 keeps each row's ten largest with their classes: 96 MB in float32,
72 MB in float16. What top_k drops is taken as 0: the pull towards classes of small t is lost.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import BadInput, Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import ce, elr, elr_target, mean
from ..method import Method, register

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def one_label_a_row(data: Data, name: str) -> None:
    """Refuse pixel labels, for which state a row would be state a pixel."""
    if data.y.dim() > 1:
        raise BadInput(
            f"{name} keeps state for each example, so it needs one label a row, not maps"
        )


class Memory(nn.Module):
    """Running targets t [N, K], of which each row's k largest are held; 0 at first."""

    def __init__(self, rows: int, num_classes: int, top_k: int, dtype: str) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise BadInput(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        self.num_classes, self.top_k = num_classes, min(top_k, num_classes)
        held = self.top_k or num_classes
        self.values: Tensor
        self.classes: Tensor
        self.register_buffer("values", torch.zeros(rows, held, dtype=DTYPES[dtype]))
        if self.top_k:
            first = torch.arange(held, dtype=torch.int32)
            self.register_buffer("classes", first.repeat(rows, 1))

    def read(self, index: Tensor) -> Tensor:
        values = self.values[index].float()
        if not self.top_k:
            return values
        whole = values.new_zeros(len(index), self.num_classes)
        return whole.scatter(1, self.classes[index].long(), values)

    def all(self) -> Tensor:
        """Every row's, [N, K]."""
        return self.read(torch.arange(len(self.values), device=self.values.device))

    def write(self, index: Tensor, targets: Tensor) -> None:
        if self.top_k:
            targets, classes = targets.topk(self.top_k, sorted=False)
            self.classes[index] = classes.int()
        self.values[index] = targets.to(self.values.dtype)

    @torch.no_grad()
    def update(self, index: Tensor, logits: Tensor, beta: float) -> Tensor:
        """Move the targets of these rows towards the predictions; returns them, [B, K]."""
        targets = elr_target(self.read(index), logits, beta)
        self.write(index, targets)
        return targets


@register("elr")
@dataclass(eq=False, repr=False)
class ELR(Method):
    beta: float = 0.7  # memory of past predictions
    lam: float = 3.0  # strength of the regulariser
    dtype: str = "float32"  # of the memory: float32, float16, bfloat16
    top_k: int = 0  # keep only so many classes of each row's memory; 0: all

    ranges = "0 <= beta < 1, lam >= 0, top_k >= 0"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.memory = Memory(spec.num_train, spec.num_classes, self.top_k, self.dtype)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        logits, y = self.net(step.augment(batch.x)), batch.y
        targets = self.memory.update(batch.index, logits, self.beta)
        return mean(ce(logits, y), y) + self.lam * mean(elr(logits, targets), y)

    def fit(self, data: Data, trainer: Trainer) -> None:
        one_label_a_row(data, self.name)
        super().fit(data, trainer)
