"""Every method on the GPU against the CPU: the same steps from the same start, in float32.

    python benchmarks/gpu_equals_cpu.py [--device cuda] [--only ce,ln] [--out results/FILE.jsonl]

Each method is fitted with one epoch of three steps a stage (a pipeline has several), with its
estimates in between. Initialisation and order are drawn on the CPU anyway; what a step draws is
made on the CPU here too, by a twin of the device's generator, and moved over. So the two runs
differ by rounding alone. Prints and writes the largest difference of any number of the final state
(networks, per-example state, estimates), relative to the largest number of its tensor, or to 0.1
where that is smaller: a mean of standardised features, or what Adam makes of a gradient that is
zero, is rounding alone, on one device too. Exit code 1 if one is above --tolerance. With
--device cpu the twins are tried against the plain draws: any difference would be a draw that the
twins missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ytilde.data import Data
from ytilde.engine import Recipe
from ytilde.fitting import fit_method
from ytilde.method import create, list_methods
from ytilde.testing import blobs

STEPS = 3
RECIPE = Recipe(
    epochs=1, batch_size=32, lr=0.02, val=0.0, augment="jitter0.1", precision="float32", graph=False
)
DRAWS = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.multinomial}


class Twins(TorchFunctionMode):
    """Draws are made on the CPU and moved to where they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.twins: dict[int, tuple[Any, torch.Generator]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in DRAWS:
            return func(*args, **kwargs)
        device = kwargs.pop("device", None)
        generator = kwargs.pop("generator", None)
        twin = None if generator is None else self.twin(generator)
        args = tuple(a.cpu() if isinstance(a, torch.Tensor) else a for a in args)
        drawn = func(*args, generator=twin, **kwargs)
        return drawn if device is None else drawn.to(device)

    def twin(self, generator: torch.Generator) -> torch.Generator:
        """A generator on the CPU with the same seed; the pair is held, so that ids stay its own."""
        if id(generator) not in self.twins:
            made = torch.Generator().manual_seed(generator.initial_seed())
            self.twins[id(generator)] = (generator, made)
        return self.twins[id(generator)][1]


def state(name: str, data: Data, device: str, twins: bool) -> dict[str, torch.Tensor]:
    method = create(name)
    recipe = replace(RECIPE, device=device)
    backbone = "mlp:width=32,depth=1"
    if twins:
        with Twins():
            fit_method(method, data, recipe, backbone=backbone)
    else:
        fit_method(method, data, recipe, backbone=backbone)
    return {key: value.detach().double().cpu() for key, value in method.state_dict().items()}


def difference(name: str, data: Data, device: str) -> tuple[float, str]:
    """The largest relative difference, and of which tensor."""
    one, two = state(name, data, "cpu", twins=False), state(name, data, device, twins=True)
    worst = (0.0, "")
    for key, value in one.items():
        if not value.numel() or torch.equal(value, two[key]):
            continue
        if not torch.equal(value.isnan(), two[key].isnan()):
            return float("inf"), key
        apart = (value - two[key]).nan_to_num().abs().max()
        size = value.nan_to_num().abs().max().clamp_min(0.1)
        worst = max(worst, (float(apart / size), key))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    data = blobs(STEPS * RECIPE.batch_size, rate=0.2)
    about: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    about["device"] = options.device
    if options.device.startswith("cuda"):
        about["device"] = torch.cuda.get_device_name()
    line: dict[str, Any] = {"benchmark": "gpu_equals_cpu", "steps": STEPS, **about}
    found: dict[str, float] = {}
    for name in options.only.split(",") if options.only else list_methods():
        found[name], where = difference(name, data, options.device)
        print(f"{name:22} {found[name]:.2e}  {where}", flush=True)
    line |= {"largest": max(found.values()), "relative_difference": found}
    print(json.dumps(line))
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    sys.exit(max(found.values()) > options.tolerance)


if __name__ == "__main__":
    main()
