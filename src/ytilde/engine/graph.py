"""Faster steps: the whole step captured as one CUDA graph, the networks fused by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Batch


class CapturedStep:
    """The whole step as one CUDA graph: the first steps run eagerly, the rest are replays.

    The warm-up steps are real steps of training, so nothing has to be undone, and capturing
    executes nothing: eager and captured training walk through the same states.

    update: the step; it draws from `generator` and clears the gradients of `optimizers`.
    notes: hears why a step cannot be captured; `stage` is what the step is called there.
    """

    WARM_UP = 3

    def __init__(
        self,
        update: Callable[[Any], None],
        optimizers: list[torch.optim.Optimizer],
        generator: torch.Generator,
        stage: str,
        notes: list[str],
    ) -> None:
        self.update, self.optimizers, self.generator = update, optimizers, generator
        self.stage, self.notes, self.count = stage, notes, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self.static: Any = None

    def __call__(self, inputs: Any) -> None:
        if self.failed:
            self.update(inputs)
        elif self.graph is not None:
            _copy(inputs, self.static)
            self.graph.replay()
        elif self.count < self.WARM_UP:
            self.count += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.update(inputs)
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            self._capture(inputs)
            self(inputs)

    def _capture(self, inputs: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        self.static = _clone(inputs)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.update(self.static)
        except RuntimeError as error:
            self.failed = True
            self._release_generators()
            reason = str(error).strip().splitlines()[0]
            self.notes.append(
                f"stage {self.stage!r} runs step by step: its step cannot be captured as a "
                f"CUDA graph ({reason})"
            )
            return
        self.graph = graph

    def _release_generators(self) -> None:
        """After a capture that failed, torch still believes its generators to be captured.

        A capture that succeeds ends that; one of nothing but a number will do.
        """
        number = torch.zeros((), device=self.generator.device)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            number + 0


def _clone(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.clone()
    if isinstance(inputs, Batch):
        votes = None if inputs.votes is None else inputs.votes.clone()
        return Batch(inputs.x.clone(), inputs.y.clone(), inputs.index.clone(), votes)
    return {name: index.clone() for name, index in inputs.items()}


def _copy(inputs: Any, static: Any) -> None:
    if isinstance(inputs, Tensor):
        static.copy_(inputs)
    elif isinstance(inputs, Batch):
        for own, value in zip(static, inputs, strict=True):
            if own is not None:
                own.copy_(value, non_blocking=True)
    else:
        for name, index in inputs.items():
            static[name].copy_(index)


class Compiled:
    """Networks as torch.compile makes them; as they are, with a note, where it does not work."""

    def __init__(
        self, networks: Iterable[nn.Module], device: torch.device, notes: list[str]
    ) -> None:
        self.forwards: dict[nn.Module, Callable[..., Any]] = {}
        if reason := why_not_compile(device):
            note = f"the networks run as they are: torch.compile does not work here ({reason})"
            notes += [] if note in notes else [note]
            return
        self.forwards = {net: torch.compile(net.forward, dynamic=False) for net in networks}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the networks run as compiled; outside they are as they were."""
        for net, forward in self.forwards.items():
            net.forward = forward
        try:
            yield
        finally:
            for net in self.forwards:
                delattr(net, "forward")


@cache
def why_not_compile(device: torch.device) -> str:
    """Tried on one number: a compiler may be missing, or torch may not support the machine."""
    try:
        torch.compile(lambda x: x + 1)(torch.zeros((), device=device))
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return ""
