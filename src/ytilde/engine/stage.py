"""One stage of training: its optimisers, its random streams and its step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..augment import make_augment
from ..data import Data, StepInfo
from ..errors import Diverged
from .feed import Index, Sampler
from .graph import CapturedStep, Compiled
from .optim import Average, freeze_statistics, make_groups, make_optimizers, set_rates
from .parallel import heavy_modules
from .recipe import Recipe
from .rng import RandomState

if TYPE_CHECKING:
    from .loop import Trainer

Loss = Callable[[Any, StepInfo], Tensor]


class Stage:
    """What `Trainer.epochs` trains with; the arguments are its own."""

    def __init__(
        self,
        trainer: Trainer,
        name: str,
        loss: Loss,
        params: Any,
        data: Data,
        recipe: Recipe,
        rows: Index | None = None,
    ) -> None:
        self.trainer, self.name, self.loss = trainer, name, loss
        self.data, self.recipe = data, recipe
        device = trainer.device
        self.groups = make_groups(params, recipe)
        self.params = [p for group in self.groups for p in group["params"]]
        self.optimizers = make_optimizers(self.groups, recipe, device)
        self.average = Average(self.params, recipe.ema)
        self.sampler = Sampler(name, data, rows, recipe, trainer.weights, trainer.team)
        self.random = RandomState(recipe.seed_of("order", name + "/global"), device)
        generator = recipe.generator("order", name + "/step", device)
        augment = make_augment(recipe.augment, data.shape)
        self.step_info = StepInfo(
            epoch=torch.zeros((), device=device),
            epochs=recipe.epochs,
            generator=generator,
            augment=lambda *xy: augment(*xy, generator=generator),
        )
        self.total = torch.zeros((), device=device)  # of the losses of an epoch
        self.good = torch.zeros((), device=device)  # steps before the first loss that is no number
        self.epoch, self.factor = 0, 1.0
        self.beta1: float | None = None
        self.captured: CapturedStep | None = None
        self.compiled: Compiled | None = None
        if recipe.compile:
            self.compiled = Compiled(heavy_modules(trainer.method), device, trainer.notes)

    # ---- an epoch -------------------------------------------------------------------------------

    def begin(self, epoch: int) -> Callable[[Any], None]:
        """Get ready for an epoch; returns its step."""
        self.epoch = epoch
        self.trainer.method.train()
        if self.recipe.pretrained_lr == 0:
            freeze_statistics(self.trainer.method)
        self.factor, beta1 = set_rates(self.optimizers, self.recipe, epoch)
        if beta1 != self.beta1:
            self.captured = None  # a captured step holds its betas as constants
        self.beta1 = beta1
        self.step_info.epoch.fill_(epoch)
        for counter in (self.total, self.good):
            counter.zero_()
        return self._fastest_step()

    def inputs(self) -> Iterator[Any]:
        """What the step is given, batch by batch, in one epoch."""
        batches = self.sampler.epoch()
        first = next(iter(batches.values())) if isinstance(batches, dict) else batches
        self.steps, self.taken, self.shown = len(first), 0, time.monotonic()
        return self.trainer.feed.inputs(self.data, batches)

    def show_share(self) -> None:
        """After a step: tell who listens, twice a second, how much of the epoch is done."""
        self.taken += 1
        if self.trainer.on_step and time.monotonic() - self.shown > 0.5:
            self.shown = time.monotonic()
            share = {"epochs": self.recipe.epochs, "share": self.taken / self.steps}
            self.trainer.on_step({"stage": self.name, "epoch": self.epoch + 1, **share})

    def update(self, inputs: Any) -> None:
        """One step of training: batch, loss, gradient, update."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with self.trainer.autocast():
            value = self.loss(self.trainer.feed.gather(self.data, inputs), self.step_info)
        value.backward()
        self.trainer.team.average(self.params)
        if self.recipe.clip:
            for group in self.groups:
                nn.utils.clip_grad_norm_(group["params"], self.recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.average.update()
        self.total += value.detach()
        self.good += (self.total - self.total) == 0  # false from the first infinity or NaN on

    def mean_loss(self) -> float:
        """Of the epoch; Diverged where it is no number. The host waits for the device here only."""
        mean, good = (self.total / self.total.new_tensor(self.steps)).item(), int(self.good)
        size = torch.stack(torch._foreach_norm([p.detach() for p in self.params])).sum()
        if good == self.steps and size.isfinite():
            return mean
        if good == self.steps:  # a gradient was not finite, and no later loss has shown it
            what, where = "the weights were not finite numbers", "after the last batch"
        else:
            what, where = "the loss was not a finite number", f"batch {good + 1}"
        raise Diverged(
            f"{what} in epoch {self.epoch + 1}, {where} of stage {self.name!r}; try a lower "
            f"learning rate (now {self.recipe.lr:g}) or gradient clipping (--clip 1)"
        )

    def fused(self) -> Any:
        """While an epoch trains, the networks run as compiled; elsewhere they are as they were."""
        return self.compiled.in_use() if self.compiled else nullcontext()

    def _fastest_step(self) -> Callable[[Any], None]:
        """The step, captured as a CUDA graph where that can be."""
        trainer = self.trainer
        if trainer.device.type != "cuda" or not self.recipe.graph or trainer.team.size > 1:
            return self.update
        if not getattr(trainer.method, "graphable", True):
            return self.update
        if self.captured is None:
            self.captured = CapturedStep(
                self.update, self.optimizers, self.step_info.generator, self.name, trainer.notes
            )
        return self.captured

    # ---- what a checkpoint holds of it ----------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        tensors = {"order": self.sampler.order.get_state()}
        tensors["step"] = self.step_info.generator.get_state()
        for k, state in enumerate(self.random.states or []):
            tensors[f"random.{k}"] = state
        for k, value in enumerate(self.average.values):
            tensors[f"average.{k}"] = value
        for k, p in enumerate(self.params):
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer.{k}.{key}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.sampler.order.set_state(tensors["order"])
        self.step_info.generator.set_state(tensors["step"])
        self.random.states = list(under("random.", tensors).values())
        averages = under("average.", tensors).values()
        for own, value in zip(self.average.values, averages, strict=True):
            own.copy_(value)
        owner = {p: o for o in self.optimizers for g in o.param_groups for p in g["params"]}
        for name, value in under("optimizer.", tensors).items():
            k, key = name.split(".", 1)
            p = self.params[int(k)]
            owner[p].state[p][key] = value.to(p.device)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries below a prefix, in order; numbered ones by number."""
    found = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    number = all(k.isdigit() for k in found)
    return dict(sorted(found.items(), key=lambda item: int(item[0]))) if number else found
