"""Heteroscedastic softmax: input-dependent Gaussian noise on the logits, with a temperature.

`het`: Kendall & Gal, NeurIPS 2017 (diagonal noise, tau = 1). `het_tau`: Collier et al. 2020, "A
simple probabilistic method for deep classification under input-dependent label noise", eq. 6-7
(diagonal, any tau). `het_tau_full`: Collier et al., CVPR 2021 (low rank + diagonal).

Fidelity: the papers' model and Monte-Carlo likelihood. The public layers average clipped
probabilities, which has no gradient where every sample misses the label; we take logsumexp of the
log-probabilities. tau = 0.5 is the middle of the papers' useful range; "auto" chooses from the
grid of Collier et al. (appendix D) by noisy validation log-likelihood, as they do. `binary` is the
one latent of their appendix A for two classes.
"""

from dataclasses import dataclass

from ..heads import Head, Heteroscedastic
from ..method import Method, register

# fmt: off
TAUS = (.025, .05, .1, .2, .6, 1, 1.4, 1.8, 2.2, 2.6, 3, 5, 10, 15, 20, 35, 50, 100)
# fmt: on


@register("het", tau=1.0)
@register("het_tau", tau=0.5)
@register("het_tau_full", tau=0.5, rank=2)
@dataclass(eq=False, repr=False)
class Het(Method):
    tau: float | str = 1.0  # temperature of the softmax; auto: by noisy validation log-likelihood
    rank: int = 0  # of the off-diagonal covariance; 0: diagonal noise
    parameter_efficient: bool = False  # one shared low-rank factor, scaled per input
    binary: bool = False  # for two classes: one latent and a sigmoid instead of two and a softmax
    train_samples: int = 50  # Monte-Carlo samples of a training step
    eval_samples: int = 1000  # and of a prediction (fixed noise: predictions are deterministic)

    ranges = "tau > 0, rank >= 0, train_samples >= 1, eval_samples >= 1"

    grid = {"tau": TAUS}
    grid_by = "nll"

    def head(self, dim: int, num_classes: int) -> Head:
        return Heteroscedastic(
            dim,
            num_classes,
            rank=self.rank,
            tau=float(self.tau),
            parameter_efficient=self.parameter_efficient,
            binary=self.binary,
            train_samples=self.train_samples,
            eval_samples=self.eval_samples,
        )
