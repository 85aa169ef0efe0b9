"""PTD: T(x) as a mixture of matrices, by the parts of x. Xia et al., NeurIPS 2020, eq. 1-4.

Fidelity: the paper's steps. Features of a briefly trained network are factorised (NMF, eq. 1); the
coefficients of x, summing to one, are its parts. Several sets of anchor points give noisy
posteriors, from which the matrices of the parts are solved with rows on the simplex (eq. 3), by
least squares with a ridge towards the class-level T: of a part that a class's anchors hardly have
they tell nothing (the authors take some hundred small steps of Adam from there); then
T(x) = sum_k w_k(x) P^k serves importance reweighting and a revision by a slack, as in
`t_revision`. The authors' code renormalises T(x) + dT inside the loss; here, as in `t_revision`,
the loss takes the bare sum and `transition` answers rows that sum to one. Negative features count
as zero. NMF knows only its own rows: the parts of a new x are its non-negative least squares on
the same basis, in features of the network that made it (the authors answer no new x). The
percentiles run from `percentile` to 99, evenly, as in their code; with more than 16 classes, of
which they have none, the anchors are the rows of the largest posteriors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Batch, Data, Spec
from ..engine import Trainer
from ..method import register
from ..transition import anchor_sets, nmf_basis, part_matrices, part_T, part_weights
from ._shared import stage_epochs, warmed_up
from .t_revision import TRevision


@register("ptd")
@dataclass(eq=False, repr=False)
class PTD(TRevision):
    """T-Revision with a T for each instance."""

    parts: int = 10  # r, the parts that the features are made of
    anchors: int = 10  # sets of anchor points
    ridge: float = 1.0  # how strongly the matrices of the parts are drawn to the class-level T

    ranges = "parts >= 1, anchors >= 1, ridge > 0"
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.part_net = self.new_net()  # the warmed-up network, for the features of new inputs
        self.basis: Tensor
        self.weights: Tensor
        self.matrices: Tensor
        self.register_buffer("basis", torch.zeros(self.parts, spec.dim))
        self.register_buffer("weights", torch.full((spec.num_train, self.parts), 1 / self.parts))
        self.register_buffer("matrices", self.matrix.repeat(self.parts, 1, 1))

    def estimate(self, data: Data, trainer: Trainer) -> int:
        epochs = stage_epochs(trainer.recipe.epochs, self.warm_up)
        probs = warmed_up(self, data, trainer, epochs)
        self.part_net.load_state_dict(self.net.state_dict())
        h = trainer.map(lambda batch: self.features(batch.x), data)
        generator = trainer.recipe.generator("init", "parts")
        basis = trainer.cached("parts", h, lambda: nmf_basis(h, self.parts, generator))
        self.basis.copy_(basis)
        self.weights.copy_(part_weights(h, basis))
        rows = anchor_sets(probs, self.percentile, self.anchors)
        self.matrices.copy_(part_matrices(self.weights[rows], probs[rows], self.ridge))
        return epochs

    def features(self, x: Tensor) -> Tensor:
        return self.part_net.features(x).float().clamp_min(0)

    def first_T(self, batch: Batch) -> Tensor:
        w = self.weights[batch.index.clamp_min(0)]
        if not self.training:
            new = part_weights(self.features(batch.x), self.basis)
            w = torch.where((batch.index >= 0)[:, None], w, new)
        return part_T(w, self.matrices)
