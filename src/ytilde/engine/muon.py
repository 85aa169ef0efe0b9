"""Muon: SGD's momentum, with each step's matrix made orthogonal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Steps along U V^T, where U S V^T is the momentum of a weight [rows, columns] (Jordan, 2024).

    All directions of a matrix are learnt at one rate, however small their gradients are. A
    convolution is the matrix [channels out, channels in x height x width]. A step's root mean
    square is 0.2 lr, about AdamW's, so that both take like weight decays (Liu et al., 2025).

    groups: of weights with two or more dimensions; each may have its own lr (a number, or a tensor
    that a captured step reads), momentum, nesterov and weight_decay (decoupled, as AdamW's).
    """

    def __init__(self, groups: Iterable[Any], lr: float = 1e-3) -> None:
        defaults = {"lr": lr, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            lr, beta = group["lr"], group["momentum"]
            grads = [p.grad for p in params]
            averages = [self._average(p) for p in params]
            torch._foreach_lerp_(averages, grads, 1 - beta)
            ahead = torch._foreach_lerp(grads, averages, beta) if group["nesterov"] else averages
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            alike = defaultdict(list)  # weights of one shape, whose steps are found together
            for p, step in zip(params, ahead, strict=True):
                alike[p.shape].append((p, step))
            for shape, pairs in alike.items():
                rows, columns = shape[0], math.prod(shape[1:])
                steps = orthogonal(torch.stack([step.reshape(rows, columns) for _, step in pairs]))
                steps = steps * (-0.2 * math.sqrt(max(rows, columns)) * lr)
                torch._foreach_add_([p for p, _ in pairs], list(steps.view(-1, *shape)))

    def _average(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if not state:
            state["average"] = torch.zeros_like(p)
        return state["average"]


def orthogonal(G: Tensor, steps: int = 5) -> Tensor:
    """About U V^T for each G = U S V^T [n, rows, columns]: its singular values become about 1.

    Newton-Schulz iterations of the fifth order with Jordan's coefficients, which let values end
    anywhere in [0.7, 1.2] and so need few steps; in bfloat16 on a GPU. 0 stays 0.
    """
    X = G.bfloat16() if G.is_cuda else G.float()
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):  # X becomes 3.4445 X + (-4.7750 A + 2.0315 A^2) X
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=-4.7750, alpha=2.0315)
        X = torch.baddbmm(X, B, X, beta=3.4445)
    return (X.mT if tall else X).to(G.dtype)
