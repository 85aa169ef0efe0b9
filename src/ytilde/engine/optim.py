"""Optimisers: parameter groups, their rates over time, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones.weights import is_pretrained
from .muon import Muon
from .recipe import Recipe, learning_rate

Group = dict[str, Any]


def make_groups(params: Iterable[Any], recipe: Recipe) -> list[Group]:
    """What a method gives as its parameters, as groups: bare ones become one group.

    Pre-trained weights are in groups of their own, with their share of the group's rate.
    """
    given = [group if isinstance(group, dict) else {"params": [group]} for group in params]
    bare = [p for group in given if group.keys() == {"params"} for p in group["params"]]
    own = [group for group in given if group.keys() != {"params"}]
    groups = ([{"params": bare}] if bare else []) + own
    groups = [group | {"params": list(group["params"])} for group in groups]
    return groups if recipe.pretrained_lr == 1 else _split_pretrained(groups, recipe)


def _split_pretrained(groups: list[Group], recipe: Recipe) -> list[Group]:
    made = []
    for group in groups:
        rate = group.get("lr", recipe.lr)
        for old, share in ((False, 1.0), (True, recipe.pretrained_lr)):
            params = [p for p in group["params"] if is_pretrained(p) == old]
            made += [group | {"params": params, "lr": share * rate}] if params else []
    return made


def freeze_statistics(module: nn.Module) -> None:
    """Layers with pre-trained weights in eval mode: what they normalise by stays as it is."""
    for part in module.modules():
        if any(map(is_pretrained, part.parameters(recurse=False))):
            part.eval()


def make_optimizers(
    groups: list[Group], recipe: Recipe, device: torch.device
) -> list[torch.optim.Optimizer]:
    """One optimiser for each kind that the groups name; the recipe's where a group names none.

    Muon is for convolutions: AdamW trains what else such a group has, with the same settings.
    """
    kinds: dict[str, list[Group]] = {}
    for group in [part for whole in groups for part in _split_for_muon(whole, recipe)]:
        rate = float(group.get("lr", recipe.lr))
        on_cuda = device.type == "cuda"
        own = {
            "params": group["params"],
            "base_lr": rate,
            # a tensor, so that a captured step follows the schedule
            "lr": torch.tensor(rate, device=device) if on_cuda else rate,
            "weight_decay": group.get("weight_decay", recipe.weight_decay),
        }
        kind = group.get("optimizer", recipe.optimizer)
        momentum = group.get("momentum", recipe.momentum)
        if kind in ("sgd", "muon"):
            own |= {"momentum": momentum, "nesterov": recipe.nesterov and momentum > 0}
        else:
            own |= {"betas": (momentum, 0.999), "eps": recipe.eps, "capturable": on_cuda}
        kinds.setdefault(kind, []).append(own)
    make: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    return [
        Muon(own, recipe.lr) if kind == "muon" else make[kind](own, lr=recipe.lr, fused=True)
        for kind, own in kinds.items()
    ]


def _split_for_muon(group: Group, recipe: Recipe) -> list[Group]:
    if group.get("optimizer", recipe.optimizer) != "muon":
        return [group]
    convs = [p for p in group["params"] if p.dim() > 2]
    rest = [p for p in group["params"] if p.dim() <= 2]
    parts = [group | {"params": convs}, group | {"params": rest, "optimizer": "adamw"}]
    return [part for part in parts if part["params"]]


def set_rates(
    optimizers: list[torch.optim.Optimizer], recipe: Recipe, epoch: int
) -> tuple[float, float | None]:
    """Put the optimisers where the schedule is in this epoch; returns `learning_rate`'s answer."""
    factor, beta1 = learning_rate(recipe.schedule, epoch, recipe.epochs)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group["base_lr"] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
            if beta1 is not None and "betas" in group:
                group["betas"] = (beta1, group["betas"][1])
    return factor, beta1


class Average:
    """The running average of the weights; decay 0: there is none."""

    def __init__(self, params: list[Tensor], decay: float) -> None:
        self.params, self.decay = params, decay
        self.values = [p.detach().clone() for p in params] if decay else []

    def update(self) -> None:
        if self.values:
            torch._foreach_lerp_(self.values, self.params, 1 - self.decay)

    def adopt(self) -> None:
        """The weights become their average."""
        if self.values:
            torch._foreach_copy_([p.data for p in self.params], self.values)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Evaluate with the averaged weights; without an average with the weights as they are."""
        if not self.values:
            yield
            return
        current = [p.detach().clone() for p in self.params]
        self.adopt()
        yield
        torch._foreach_copy_([p.data for p in self.params], current)
