"""Where training runs: the device, the memory layout and the precision that are fastest there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..data import BadInput


def choose_device(name: str) -> torch.device:
    """The device that a recipe names; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device {name!r}; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("no CUDA device is available here; use --device cpu")
    if name == "cuda" and torch.cuda.current_device():
        return torch.device("cuda", torch.cuda.current_device())  # one of many: this process's
    return device


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type that networks compute in."""
    low = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
    return torch.bfloat16 if low else torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> Any:
    """A context in which networks compute in this type."""
    if dtype == torch.float32:
        return nullcontext()
    # no cache of casted weights: a captured step must cast them anew at every replay
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


@contextmanager
def one_thread_if_small(module: nn.Module, device: torch.device) -> Iterator[None]:
    """On a CPU, small networks without convolutions compute in one thread.

    Their operations take microseconds. More threads mostly wait for each other, and on a busy
    machine they wait for the scheduler: 20 epochs on 1,500 rows took 2 s with one thread and 83 s
    with two.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    params = list(module.parameters())
    if sum(p.numel() for p in params) >= 2_000_000 or any(p.dim() >= 3 for p in params):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def layout(module: nn.Module, device: torch.device) -> torch.memory_format:
    """How maps lie in memory: on CUDA channels last, where convolutions are fastest.

    Not beside GroupNorm, whose kernel takes the plain layout alone: two transposes each. On CPUs
    channels last would be faster too, but backward convolutions of torch 2.13 crash in it.
    """
    grouped = any(isinstance(part, nn.GroupNorm) for part in module.modules())
    plain = device.type != "cuda" or grouped
    return torch.contiguous_format if plain else torch.channels_last


def to_device(module: nn.Module, device: torch.device) -> None:
    """Move a module to the device, its kernels in the memory layout that is fastest there."""
    module.to(device)
    fastest = layout(module, device)
    for p in module.parameters():
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=fastest)
