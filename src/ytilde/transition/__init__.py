"""Transition matrices: parametrise, estimate, apply, measure.

T[i, j] = P(y = j | clean = i, x): rows sum to one; [K, K] for a class-level T, [B, K, K] for one
matrix per instance. The noisy posterior is `p @ T`. Leading axes of T are the first leading axes
of the labels, so a T per image serves all its pixels. Plots are in `plotting.py`.
"""

from .corrections import (
    backward_loss,
    check_invertible,
    forward_nll,
    forward_nll_log,
    noisy_posterior,
    posterior,
    revised,
    reweight,
    volume,
)
from .distances import class_floor, relative_l1, row_error
from .estimators import (
    PERCENTILE,
    ConfidentJoint,
    anchor,
    anchor_rows,
    anchor_sets,
    confident_joint,
    dual,
)
from .exchange import (
    TOLERANCE,
    Cost,
    from_cleanlab,
    given,
    materialise_cost,
    to_cleanlab,
    validate_transition,
)
from .matrices import LOG_ZERO, safe_log
from .parametrisations import (
    LowRankT,
    PosteriorT,
    ResidualT,
    SigmoidT,
    SoftmaxT,
    Transition,
    log_sigmoid_rows,
    manifold_penalty,
    sigmoid_rows,
)
from .parts import nmf_basis, part_matrices, part_T, part_weights

__all__ = [
    "LOG_ZERO",
    "PERCENTILE",
    "TOLERANCE",
    "ConfidentJoint",
    "Cost",
    "LowRankT",
    "PosteriorT",
    "ResidualT",
    "SigmoidT",
    "SoftmaxT",
    "Transition",
    "anchor",
    "anchor_rows",
    "anchor_sets",
    "backward_loss",
    "check_invertible",
    "class_floor",
    "confident_joint",
    "dual",
    "forward_nll",
    "forward_nll_log",
    "from_cleanlab",
    "given",
    "log_sigmoid_rows",
    "manifold_penalty",
    "materialise_cost",
    "nmf_basis",
    "noisy_posterior",
    "part_T",
    "part_matrices",
    "part_weights",
    "posterior",
    "relative_l1",
    "revised",
    "reweight",
    "row_error",
    "safe_log",
    "sigmoid_rows",
    "to_cleanlab",
    "validate_transition",
    "volume",
]
