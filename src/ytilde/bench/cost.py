"""How many seconds a run will take: what runs like it took, or else its FLOPs, rows and epochs.

Seconds seen are scaled by the ratio of the two rough estimates, so that a run of 75 epochs tells of
one of 150, and any run at all tells how fast this device is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..backbones import create_backbone, without_weights
from ..data import BadInput
from ..encoders.simclr import Settings
from ..engine import RandomState, Recipe
from ..method import create
from .results import Line
from .stand_ins import SIZES, load_set
from .tables import experiment

ROWS = {  # of the training and the test split, in thousands
    "mnist": (60, 10), "fashion": (60, 10), "cifar10": (50, 10), "cifar10n": (50, 10),
    "cifar100": (50, 10), "cifar100n": (50, 10), "svhn": (73, 26), "clothing1m": (1000, 10),
    "webvision": (66, 2.5), "ilsvrc12": (66, 2.5), "voc2012": (1.5, 1.5), "cityscapes": (3, 0.5),
    "camvid": (0.37, 0.23),
}  # fmt: skip
# FLOPs a second, and seconds of a step that no FLOPs explain; only where no run was seen here
SPEED = {"cpu": (3e10, 1e-3), "cuda": (5e13, 1e-3)}
START = 3.0  # seconds: reading the data, making the networks
BASIS = ("runs of it", "runs like it", "other epochs", "other methods", "other data", "other runs")
GUESS = "FLOPs"  # the basis where nothing was seen
NEWEST = 9  # so many of the runs that are alike count


class Expected(NamedTuple):
    """seconds: of the whole run. basis: what they are known from, of BASIS, or GUESS."""

    seconds: float
    basis: str

    @property
    def at_most(self) -> float:
        """What it may well take: the less is known, the more."""
        return self.seconds * (1.2 if self.basis in BASIS[:2] else 1.5)


class Costs:
    """Expected seconds on this device, from the lines of the results files and of this session.

    Runs at once slow each other down, and old lines do not say how many there were: what this
    session sees comes first, and its pace, seconds taken over those expected, corrects the rest.
    """

    def __init__(self, lines: Iterable[Line], device: str, compile: bool = False) -> None:
        self.device, self.compile = device, compile
        self.kind = "cpu" if device == "cpu" else "cuda"
        self.before = _Seen(self.kind, filter(self._counts, lines))
        self.now = _Seen(self.kind, [])
        self.ratios: list[float] = []

    def add(self, line: Line) -> None:
        """A run that was finished in this session."""
        if self._counts(line):
            expected = self.before.expected(line["inputs"])
            self.ratios.append(line["seconds"] / expected.seconds)
            self.now.add(line)

    def _counts(self, line: Line) -> bool:
        here = line.get("device") == self.device and bool(line.get("compile")) == self.compile
        return here and line["status"] == "done"

    def expected(self, run_inputs: Mapping[str, Any]) -> Expected:
        now = self.now.expected(run_inputs)
        if now.basis in BASIS[:2]:
            return now
        before = self.before.expected(run_inputs)
        if before.basis == GUESS and now.basis != GUESS:
            return now
        pace = median(self.ratios) if self.ratios else 1.0
        return before._replace(seconds=before.seconds * pace)


class _Seen:
    """Lines by what they have in common with others."""

    def __init__(self, kind: str, lines: Iterable[Line]) -> None:
        self.kind = kind
        self.alike: dict[Any, list[Line]] = {}
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        for key in _likeness(line["inputs"]):
            self.alike.setdefault(key, []).append(line)

    def expected(self, run_inputs: Mapping[str, Any]) -> Expected:
        own = rough_seconds(run_inputs, self.kind) or START  # it will fail at once
        for basis, key in zip(BASIS, _likeness(run_inputs), strict=True):
            scale = [
                line["seconds"] / rough
                for line in self.alike.get(key, [])[-NEWEST:]
                if (rough := rough_seconds(line["inputs"], self.kind))
            ]
            if scale:
                return Expected(own * median(scale), basis)
        return Expected(own, GUESS)


def _likeness(run_inputs: Mapping[str, Any]) -> list[Any]:
    """What a run may share with others, the closest first; see BASIS."""
    data = tuple(run_inputs.get(name) for name in ("data", "stand_in", "rows", "backbone"))
    method, recipe = run_inputs.get("method"), run_inputs.get("recipe", {})
    length = (recipe.get("epochs"), recipe.get("batch_size"))
    backbone = ("backbone", run_inputs.get("backbone"))
    return [experiment(run_inputs), (data, method, length), (data, method), data, backbone, ()]


def rough_seconds(run_inputs: Mapping[str, Any], kind: str) -> float | None:
    """From FLOPs, rows and epochs, as if the method had one network and every device one speed.

    None: these inputs make no run, such as those of a line of another version.
    """
    try:
        recipe = Recipe(**run_inputs["recipe"])
        shape, train, test = _sizes(run_inputs["data"], run_inputs["stand_in"])
        flops = forward_flops(run_inputs["backbone"], shape)
        text = _method(run_inputs["method"], _plain(run_inputs["fields"])).pretraining(shape)
    except (BadInput, TypeError, KeyError, ValueError, AttributeError):
        return None
    train = min(train, run_inputs["rows"] or train)
    speed, overhead = SPEED[kind]

    def seconds(rows: float, batch: int, passes: float) -> float:
        return math.ceil(rows / batch) * overhead + rows * passes * flops / speed

    # where training may stop early it is seldom longer than this
    epochs = min(recipe.epochs, 6 * recipe.patience) if recipe.patience else recipe.epochs
    kept = train * (1 - recipe.val % 1)  # so many of each class are few
    epoch = seconds(kept, recipe.batch_size, 3) + seconds(train - kept + test, 512, 1)
    first = Settings.parse(text) if text else None  # two views of every row
    pretraining = first.epochs * seconds(train, first.batch_size, 6) if first else 0.0
    return START + epochs * epoch + pretraining


def _plain(fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Without what only the run itself knows, such as the realised rate."""
    known = {k: v for k, v in fields.items() if v not in ("realised", "true")}
    return tuple(sorted((k, v) for k, v in known.items() if not isinstance(v, list | dict)))


@cache
def _method(name: str, fields: tuple[tuple[str, Any], ...]) -> Any:
    return create(name, **dict(fields))


@cache
def _sizes(name: str, stand_in: bool) -> tuple[tuple[int, ...], float, float]:
    """Shape of an input, rows of the training and the test split."""
    family = name.split("-")[0]
    if family not in SIZES:  # small, and always at hand
        train, test = (load_set(name, split, None, stand_in) for split in ("train", "test"))
        return train.shape, len(train), len(test)
    shape, _, made = SIZES[family]
    rows = made if stand_in else tuple(1000 * n for n in ROWS[family])
    return shape, rows[0], rows[1]


@cache
def forward_flops(backbone: str, shape: tuple[int, ...]) -> float:
    """Of one input on its way through the network, counted as it goes."""
    counter = FlopCounterMode(display=False)
    with RandomState(0, torch.device("cpu"))(), torch.no_grad(), counter:
        network = create_backbone(without_weights(backbone), shape).eval()
        network(torch.zeros(1, *shape))
    return float(counter.get_total_flops())
