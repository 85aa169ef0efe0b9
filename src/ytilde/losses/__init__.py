"""Robust losses: pure functions of logits, one value per element, and modules made from them.

Every function takes logits [..., K] and labels y [...], and returns [...] in at least float32.
An element whose label is -1 gives 0. Shapes are static, so a training step can be captured.
"""

from ..mixing import fmix, mixup, symmetric_beta
from .bounded import (
    bootstrap_hard,
    bootstrap_soft,
    gce,
    mae,
    symmetric_ce,
    truncated_gce,
    truncation_weights,
)
from .cross_entropy import ce, label_smoothing, noise_against_noise, soft_ce
from .labels import mean, nll_of_label, of_label, one_hot, weighted_mean
from .memory import elr, elr_target, sop
from .modules import (
    CE,
    GCE,
    MAE,
    BiTempered,
    BootstrapHard,
    BootstrapSoft,
    Cores,
    LabelSmoothing,
    Loss,
    NoiseAgainstNoise,
    PeerLoss,
    SymmetricCE,
)
from .peer import cores, peer_loss
from .tempered import bi_tempered, tempered_log_softmax, tempered_softmax

__all__ = [
    "CE",
    "GCE",
    "MAE",
    "BiTempered",
    "BootstrapHard",
    "BootstrapSoft",
    "Cores",
    "LabelSmoothing",
    "Loss",
    "NoiseAgainstNoise",
    "PeerLoss",
    "SymmetricCE",
    "bi_tempered",
    "bootstrap_hard",
    "bootstrap_soft",
    "ce",
    "cores",
    "elr",
    "elr_target",
    "fmix",
    "gce",
    "label_smoothing",
    "mae",
    "mean",
    "mixup",
    "nll_of_label",
    "noise_against_noise",
    "of_label",
    "one_hot",
    "peer_loss",
    "soft_ce",
    "sop",
    "symmetric_beta",
    "symmetric_ce",
    "tempered_log_softmax",
    "tempered_softmax",
    "truncated_gce",
    "truncation_weights",
    "weighted_mean",
]
