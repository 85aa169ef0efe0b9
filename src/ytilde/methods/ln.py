"""Logistic-normal likelihood: a label is a noisy point on the simplex. Englesson et al., TMLR 2023.

Fidelity: the paper's likelihood (eq. 4-5, 9-11), covariance A A', A = c c' + lam I, in closed form,
O(K). The authors' code predicts over the real classes and the dummy one; we predict over the
real classes (renormalised), which changes no argmax among them. Label smoothing 0.01 is the
authors' for MNIST and CIFAR (the paper does not give it); 0.1 is theirs for Clothing1M. "auto"
chooses tau and lam from the paper's grid by noisy validation accuracy, as the paper does.
"""

from dataclasses import dataclass

from ..heads import Covariance, Head, LogisticNormal
from ..method import Method, register


@register("ln")
@dataclass(eq=False, repr=False)
class LN(Method):
    tau: float | str = 0.5  # scale of the target logits
    lam: float | str = 0.5  # smallest standard deviation of the noise
    covariance: Covariance = "full"  # full: rank 1 + identity
    dummy: bool = True  # an extra class as the reference of the logits
    smoothing: float = 0.01  # of the labels, over the classes and the dummy

    ranges = "tau > 0, lam > 0, 0 < smoothing < 1"

    grid = {"tau": (0.1, 0.5, 1), "lam": (0.1, 0.5, 1)}

    def head(self, dim: int, num_classes: int) -> Head:
        return LogisticNormal(
            dim,
            num_classes,
            covariance=self.covariance,
            dummy=self.dummy,
            tau=float(self.tau),
            lam=float(self.lam),
            smoothing=self.smoothing,
        )
