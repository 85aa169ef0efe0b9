"""Random streams: a seed for each by its name, and torch's global state apart from the caller's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def stream_seed(seed: int, stream: str, stage: str = "") -> int:
    """The seed of one stream (noise, split, init, order) in one stage; no two share theirs."""
    text = f"{seed}/{stream}/{stage}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


class RandomState:
    """torch's global random state, ours apart from the caller's.

    Dropout and layer initialisation cannot take a generator: they run inside `with state():`, and
    the caller's state is put back afterwards.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.sources = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            self.sources.append(torch.cuda.default_generators[device.index or 0])
        self.seed = seed
        self.states: list[Tensor] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        caller = [source.get_state() for source in self.sources]
        for k, source in enumerate(self.sources):
            if self.states is None:
                source.manual_seed(self.seed)
            else:
                source.set_state(self.states[k])
        try:
            yield
        finally:
            self.states = [source.get_state() for source in self.sources]
            for source, state in zip(self.sources, caller, strict=True):
                source.set_state(state)
