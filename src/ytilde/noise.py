"""Label noise made on purpose, by seeded functions that also tell the truth about themselves.

`symmetric`, `asymmetric`, `pair` and `classwise` depend on the class alone, `instance` on the
input. Each returns a `Noisy`: the labels and the true transition matrix they were drawn from.
Labels of -1 stay -1. All work is done, and all results lie, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ytilde.data import IGNORE, Rows
from ytilde.data.precision import keep_double
from ytilde.datasets.classes import CIFAR100_COARSE
from ytilde.errors import BadInput, unknown_name_message
from ytilde.specs import parse_spec

__all__ = [
    "KINDS",
    "Noisy",
    "asymmetric",
    "classwise",
    "corrupt",
    "instance",
    "pair",
    "parse",
    "symmetric",
]

FEATURES = ("standardized", "raw255")
SPREAD = 0.1  # standard deviation of the flip rates of instance noise (Xia et al. 2020, alg. 2)
CHUNK = 2**25  # input values held as float32 at a time: 128 MB

# Redraw probability of each of ten classes: softmax-temperature paper, 5.1, C.2 and C.3.
SETTINGS = {
    "main": (0, 0, 0, 0, 0, 0.2, 0.3, 0.4, 0.5, 0.6),
    "uniform": (0.2,) * 10,
    "reduced": (0, 0, 0, 0, 0, 0.10, 0.15, 0.20, 0.25, 0.30),
    "increased": (0, 0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75),
}


def _next_within(groups: Sequence[int]) -> dict[int, int]:
    """Each class to the next one of its group, the last to the first."""
    found: dict[int, int] = {}
    for group in set(groups):
        members = [c for c, g in enumerate(groups) if g == group]
        found |= dict(zip(members, members[1:] + members[:1], strict=True))
    return found


# name: (classes, true class -> wrong class)
MAPS: dict[str, tuple[int, dict[int, int]]] = {
    "mnist": (10, {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}),
    # The literature's map (Patrini et al. 2017), which also made the logistic-normal paper's
    # numbers; that paper's text leaves truck -> automobile out.
    "cifar10": (10, {2: 0, 3: 5, 5: 3, 4: 7, 9: 1}),
    "cifar10_text": (10, {2: 0, 3: 5, 5: 3, 4: 7}),
    "cifar100": (100, _next_within([0] * 100)),
    "cifar100_coarse": (100, _next_within(CIFAR100_COARSE)),
}


@dataclass(frozen=True, eq=False, repr=False)
class Noisy:
    """Noisy labels and the truth about them.

    y: the noisy labels, int64, shaped as `clean` [N] or [N, H, W]; -1 where `clean` is -1.
    matrix: T of each class, [K, K].
    """

    y: Tensor
    clean: Tensor
    kind: str
    matrix: Tensor

    @property
    def rows(self) -> Tensor:
        """The row of T that each label was drawn from, [N, K] (pixels [N, H, W, K]); 0 for -1."""
        # Made when asked for: over the pixels of a segmentation set it can exceed the memory.
        return self.matrix[self.clean.clamp(min=0)] * (self.clean != IGNORE).unsqueeze(-1)

    @property
    def rate(self) -> float:
        """The realised flip rate: how many of the labels that are not -1 are wrong."""
        flips = int((self.y != self.clean).sum())
        return flips / max(1, int((self.clean != IGNORE).sum()))

    def transition(self, index: Tensor) -> Tensor:
        """The full true T(x) of these rows of the data set, [n, K, K]."""
        return self.matrix.expand(len(index), -1, -1)

    def summary(self) -> dict[str, Any]:
        """How much the noise depends on the input, for people and JSON.

        mean_max: mean over examples of the largest flip probability, given that there is a flip.
        modal_share, effective_targets: of the expected wrong labels of each class, the share of
        the most likely one and the perplexity; None for a class that is never flipped.
        """
        rows, classes, weight = self._weighted_rows()
        flips = rows.double().scatter(-1, classes.unsqueeze(-1), 0.0)
        rate = flips.sum(-1)
        weight = weight * (rate > 0)
        peak = flips.amax(-1) / rate.where(rate > 0, 1.0)
        per_class = flips.new_zeros(self.matrix.shape).index_add(
            0, classes, flips * weight.unsqueeze(-1)
        )
        total = per_class.sum(-1)
        share = per_class / total.where(total > 0, 1.0).unsqueeze(-1)
        perplexity = torch.special.entr(share).sum(-1).exp()
        return {
            "kind": self.kind,
            "rate": self.rate,
            "mean_max": float((peak * weight).sum() / weight.sum()) if weight.any() else None,
            "modal_share": _or_none(share.amax(-1), total > 0),
            "effective_targets": _or_none(perplexity, total > 0),
        }

    def _weighted_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of T [M, K], their true classes [M] and how many examples each stands for [M]."""
        num_classes = len(self.matrix)
        count = torch.bincount(self.clean[self.clean != IGNORE], minlength=num_classes)
        return self.matrix, torch.arange(num_classes), count.double()


def _or_none(values: Tensor, defined: Tensor) -> list[float | None]:
    return [v if d else None for v, d in zip(values.tolist(), defined.tolist(), strict=True)]


def symmetric(
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    inclusive: bool = True,
    exact: bool = False,
    generator: torch.Generator,
) -> Noisy:
    """With probability `rate`, a label drawn uniformly from all classes.

    inclusive: the own class is among them, T = (1 - r) I + r/K, so r (K-1)/K of the labels are
        wrong (logistic-normal and softmax-temperature papers); else T_ij = r/(K-1) off the
        diagonal (Co-teaching, VolMinNet).
    exact: redraw round(rate N) labels, the first of a permutation, instead of each by chance.
    """
    clean = _labels(y, num_classes)
    redraw = torch.full((num_classes,), _rate(rate), dtype=torch.float64)
    target = torch.ones(num_classes, num_classes, dtype=torch.float64)
    if not inclusive:
        target.fill_diagonal_(0)
    chosen = _exactly(clean != IGNORE, rate, generator) if exact else None
    return _redraw("symmetric", clean, redraw, target, generator, chosen)


def asymmetric(
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    mapping: str | Mapping[int, int],
    exact: bool = False,
    generator: torch.Generator,
) -> Noisy:
    """Each class in `mapping` flips to its wrong class with probability `rate`.

    mapping: {true class: wrong class}, or "mnist", "cifar10", "cifar10_text" (without trucks; both
        logistic-normal paper), "cifar100" (c -> c+1) or "cifar100_coarse" (the next class of the
        same superclass).
    exact: flip round(rate n_c) labels of each mapped class instead of each by chance.
    """
    return _mapped("asymmetric", y, num_classes, rate, mapping, exact, generator)


def pair(
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    exact: bool = False,
    generator: torch.Generator,
) -> Noisy:
    """Pair flip (Co-teaching): c -> c+1 mod K with probability `rate`; `exact` as asymmetric."""
    mapping = _next_within([0] * num_classes)
    return _mapped("pair", y, num_classes, rate, mapping, exact, generator)


def classwise(
    y: Tensor,
    num_classes: int,
    *,
    setting: str | None = None,
    rates: Sequence[float] | None = None,
    generator: torch.Generator,
) -> Noisy:
    """A label of class c is drawn anew from all classes, its own included, with its class's rate.

    Softmax-temperature paper, 5.1. Give K `rates`, or for ten classes a `setting` of that paper:
    "main" (5.1), "uniform" (C.2), "reduced" or "increased" (C.3).
    """
    clean = _labels(y, num_classes)
    if (setting is None) == (rates is None):
        raise BadInput("classwise noise needs either a setting or rates; give one of the two.")
    if setting is not None:
        rates = SETTINGS[_known("setting of classwise noise", setting, SETTINGS)]
    assert rates is not None
    if len(rates) != num_classes:
        raise BadInput(
            f"classwise noise has {len(rates)} rates for {num_classes} classes; give one a class."
        )
    redraw = torch.tensor([_rate(rate) for rate in rates], dtype=torch.float64)
    target = torch.ones(num_classes, num_classes, dtype=torch.float64)
    return _redraw("classwise", clean, redraw, target, generator)


def instance(
    x: Rows,
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    features: str = "standardized",
    temperature: float = 1.0,
    generator: torch.Generator,
) -> Noisy:
    """Instance-dependent noise: Xia et al., NeurIPS 2020, algorithm 2.

    q ~ TruncNormal(rate, 0.1, [0, 1]); a = x^T W[clean] with W ~ N(0, 1) of shape [K, S, K];
    row = q softmax(a / temperature) over the other classes and 1 - q on the own. E[q] exceeds a
    small rate (0.129 for 0.1, 0.2055 for 0.2); rate 0 alone means no noise at all.
    features: "standardized" (each to mean 0, variance 1; constant ones to 0), or "raw255", the
        pixels as 0..255 that made the published tables (other features as they are). The mean
        image then dominates a, and the class all but decides the wrong label.
    """
    clean = _labels(y, num_classes)
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    _known("features", features, FEATURES)
    if clean.ndim != 1 or len(x) != len(clean):
        raise BadInput(
            f"instance noise needs one label an input, not labels {list(clean.shape)} "
            f"for inputs {list(x.shape)}."
        )
    rate = _rate(rate)
    if not temperature > 0:
        raise BadInput(f"temperature must be above 0, not {temperature}.")
    shift, scale = _moments(x) if features == "standardized" else _raw255(x)
    q = _flip_rates(rate, _uniform(len(clean), generator))
    seeds = (_uniform(num_classes, generator) * 2**53).long().tolist()
    law = _Law(x, shift, scale / temperature, q.float(), seeds)

    u = _uniform(len(clean), generator)
    rows, noisy = torch.zeros(len(clean), num_classes), clean.clone()
    for c in clean[clean != IGNORE].unique().tolist():
        projection = law.projection(c)
        for index in _chunks(x, (clean == c).nonzero().flatten()):
            rows[index] = row = law.row(law.inputs(index), index, c, projection)
            noisy[index] = torch.searchsorted(_cdf(row), u[index, None], right=True).flatten()
    return _InstanceNoisy(noisy, clean, "instance", _class_means(rows, clean), law, rows)


@dataclass(frozen=True, eq=False, repr=False)
class _Law:
    """How instance noise depends on the input; enough to compute any row of T again.

    Neither W [K, S, K] nor T [N, K, K] is ever held: W[c] is drawn from its own seed when needed.
    """

    x: Rows
    shift: Tensor  # input = (x - shift) * scale, [S] or a scalar
    scale: Tensor
    q: Tensor  # flip rates, [N]
    seeds: list[int]  # of W[c]

    def projection(self, c: int) -> Tensor:
        """W[c], [S, K]."""
        generator = torch.Generator().manual_seed(self.seeds[c])
        return torch.randn(_size(self.x), len(self.seeds), generator=generator)

    def inputs(self, index: Tensor) -> Tensor:
        # Not in place on the first step: a reader may hand out what it keeps.
        return (_read(self.x, index) - self.shift).mul_(self.scale).float()

    def row(self, inputs: Tensor, index: Tensor, c: int, projection: Tensor) -> Tensor:
        """Row c of T(x), [n, K]: p(y | true class c, x)."""
        a = inputs @ projection
        if not a.isfinite().all():
            raise BadInput("x holds values that are not finite; replace them first.")
        q = self.q[index]
        a[:, c] = -torch.inf
        row = a.softmax(-1) * q.unsqueeze(-1)
        row[:, c] = 1 - q
        return row


@dataclass(frozen=True, eq=False, repr=False)
class _InstanceNoisy(Noisy):
    """`matrix` is the mean of T(x) over each class's own examples (identity where it has none)."""

    law: _Law
    own_rows: Tensor

    @property
    def rows(self) -> Tensor:
        return self.own_rows

    def transition(self, index: Tensor) -> Tensor:
        index, num_classes = torch.as_tensor(index), len(self.matrix)
        found = torch.empty(len(index), num_classes, num_classes)
        for place in _chunks(self.law.x, torch.arange(len(index))):
            part = index[place]
            inputs = self.law.inputs(part)
            for c in range(num_classes):
                found[place, c] = self.law.row(inputs, part, c, self.law.projection(c))
        # The labels were drawn from the stored rows; a product over another chunk rounds otherwise.
        own = self.clean[index]
        known = (own != IGNORE).nonzero().flatten()
        found[known, own[known]] = self.own_rows[index[known]]
        return found

    def _weighted_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        known = self.clean != IGNORE
        return self.own_rows[known], self.clean[known], known[known].double()


def _mapped(
    kind: str,
    y: Tensor,
    num_classes: int,
    rate: float,
    mapping: str | Mapping[int, int],
    exact: bool,
    generator: torch.Generator,
) -> Noisy:
    clean = _labels(y, num_classes)
    if isinstance(mapping, str):
        size, mapping = MAPS[_known("mapping", mapping, MAPS)]
        if size != num_classes:
            raise BadInput(f"this mapping is of {size} classes, not {num_classes}; give a dict.")
    redraw = torch.zeros(num_classes, dtype=torch.float64)
    target = torch.eye(num_classes, dtype=torch.float64)
    chosen = torch.zeros_like(clean, dtype=torch.bool) if exact else None
    for c, wrong in mapping.items():
        if not (0 <= c < num_classes and 0 <= wrong < num_classes):
            raise BadInput(f"the mapping {c} -> {wrong} leaves the {num_classes} classes.")
        redraw[c] = _rate(rate)
        target[c] = torch.eye(num_classes)[wrong]
        if chosen is not None:
            chosen |= _exactly(clean == c, rate, generator)
    return _redraw(kind, clean, redraw, target, generator, chosen)


def _redraw(
    kind: str,
    clean: Tensor,
    redraw: Tensor,
    target: Tensor,
    generator: torch.Generator,
    chosen: Tensor | None = None,
) -> Noisy:
    """Noise of the class alone: T = diag(1 - redraw) + redraw target.

    redraw [K]: how likely a label of the class is drawn anew. target [K, K]: with which weights.
    chosen: a mask of the labels to draw anew, where chance shall not decide.
    """
    target = target / target.sum(-1, keepdim=True)
    noisy = clean.clone()
    for c, row in enumerate(target):
        members = clean == c
        count = int(members.sum())
        again = _uniform(count, generator) < redraw[c] if chosen is None else chosen[members]
        drawn = torch.searchsorted(_cdf(row), _uniform(count, generator), right=True)
        noisy[members] = torch.where(again, drawn, c)
    matrix = torch.diag(1 - redraw) + redraw.unsqueeze(-1) * target
    return Noisy(noisy, clean, kind, matrix.float())


def _exactly(members: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """A mask of round(rate n) of the n members, at random."""
    count = int(members.sum())
    rank = _uniform(count, generator).argsort()
    return members.masked_scatter(members, rank < round(rate * count))


def _cdf(row: Tensor) -> Tensor:
    """Cumulative probabilities that end in exactly 1, so that no draw falls outside."""
    cdf = row.double().cumsum(-1)
    return cdf / cdf[..., -1:]


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    return torch.rand(count, generator=generator, dtype=torch.float64, device=device).cpu()


def _flip_rates(rate: float, u: Tensor) -> Tensor:
    """TruncNormal(rate, SPREAD, [0, 1]) of uniform u, by the inverse of its distribution."""
    if rate == 0:  # a study's column "no noise" means none, not the half normal's 8%
        return torch.zeros_like(u)
    low, high = torch.special.ndtr((torch.tensor([0.0, 1.0]).double() - rate) / SPREAD)
    return (rate + SPREAD * torch.special.ndtri(low + u * (high - low))).clamp(0, 1)


def _moments(x: Rows) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of each feature over the data set (0 if constant), [S]."""
    # Sums are taken of differences from a rough mean: exact for constants, and nothing cancels.
    some = _read(x, torch.arange(min(64, len(x))))
    rough = some.double().mean(0).to(some.dtype)
    first = second = torch.zeros(len(rough), dtype=torch.float64)
    for index in _chunks(x, torch.arange(len(x))):
        offset = _read(x, index) - rough
        first = first + offset.sum(0)
        second = second + offset.square_().sum(0)
    mean = first / len(x)
    variance = second / len(x) - mean.square()
    scale = torch.where(variance > 0, variance.clamp(min=1e-300).rsqrt(), 0.0)
    scale = torch.where(variance.isnan(), torch.nan, scale)
    return (rough + mean).to(rough.dtype), scale.to(rough.dtype)


def _raw255(x: Rows) -> tuple[Tensor, Tensor]:
    is_unit = len(x.shape) > 2 and x[torch.arange(1)].is_floating_point()  # an image in [0, 1]
    return torch.tensor(0.0), torch.tensor(255.0 if is_unit else 1.0)


def _size(x: Rows) -> int:
    return int(torch.Size(x.shape[1:]).numel())


def _read(x: Rows, index: Tensor) -> Tensor:
    return keep_double(x[index].cpu().flatten(1))


def _chunks(x: Rows, index: Tensor) -> Iterator[Tensor]:
    """The index in parts whose inputs fit in CHUNK values; none if it is empty."""
    return (part for part in index.split(max(1, CHUNK // _size(x))) if len(part))


def _class_means(rows: Tensor, clean: Tensor) -> Tensor:
    means = torch.eye(rows.shape[-1])
    for c in clean.unique().tolist():
        if c != IGNORE:
            means[c] = rows[clean == c].mean(0)
    return means


def _labels(y: Tensor, num_classes: int) -> Tensor:
    if num_classes < 2:
        raise BadInput(f"label noise needs at least 2 classes, not {num_classes}.")
    y = torch.as_tensor(y)
    if y.is_floating_point() or y.dtype == torch.bool or not y.numel():
        raise BadInput(f"labels must be whole numbers, at least one, not {y.numel()} of {y.dtype}.")
    low, high = int(y.min()), int(y.max())
    if low < IGNORE or high >= num_classes:
        raise BadInput(
            f"labels must lie in 0..{num_classes - 1} (or be -1 = ignore), not in {low}..{high}."
        )
    return y.cpu().long()


def _rate(rate: float) -> float:
    if not isinstance(rate, Real) or not 0 <= rate <= 1:
        raise BadInput(f"a noise rate must lie in [0, 1], not {rate}.")
    return float(rate)


def _known(what: str, name: str, names: Iterable[str]) -> str:
    names = list(names)
    if name not in names:
        raise BadInput(unknown_name_message(what, name, names))
    return name


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{text!r} in the noise is not a number; write e.g. instance:0.4.") from None


def _share(text: str) -> float:
    return _rate(_number(text))


def _truth(text: str) -> bool:
    return _known("yes or no", text.lower(), ("true", "false")) == "true"


# kind: what may stand in its text, with the reader of each value; the first needs no name.
_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "symmetric": {"rate": _share, "inclusive": _truth, "exact": _truth},
    "asymmetric": {"rate": _share, "mapping": str, "exact": _truth},
    "pair": {"rate": _share, "exact": _truth},
    "instance": {"rate": _share, "features": str, "temperature": _number},
    "classwise": {"setting": str},
}
KINDS = tuple(_OPTIONS)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Read a noise as the command line writes it: "instance:0.4,features=raw255".

    Returns the kind and the keyword arguments of its function: ("instance", {"rate": 0.4, ...}).
    """
    kind, values, options = parse_spec(text, "the noise", values=1)
    readers = _OPTIONS[_known("kind of noise", kind, KINDS)]
    if values:
        first = next(iter(readers))
        if first in options:
            raise BadInput(f"the noise {text!r} gives {first} twice; give it once.")
        options = {first: values[0]} | options
    for name in options:
        _known(f"option of {kind} noise", name, readers)
    return kind, {name: readers[name](value) for name, value in options.items()}


def corrupt(
    text: str, x: Rows, y: Tensor, num_classes: int, *, generator: torch.Generator, **options: Any
) -> Noisy:
    """The noise of this kind or text (see `parse`), with further options as keywords."""
    kind, read = parse(text)
    known = [*_OPTIONS[kind], *(["rates"] if kind == "classwise" else [])]
    for name in options:
        _known(f"option of {kind} noise", name, known)
    options = read | options
    needed = {"asymmetric": ("rate", "mapping"), "classwise": ()}.get(kind, ("rate",))
    for name in needed:
        if name not in options:
            example = ",mapping=cifar10" if kind == "asymmetric" else ""
            raise BadInput(f"{kind} noise needs a {name}; write e.g. {kind}:0.4{example}.")
    if kind == "instance":
        return instance(x, y, num_classes, generator=generator, **options)
    of_class: dict[str, Callable[..., Noisy]] = {
        "symmetric": symmetric,
        "asymmetric": asymmetric,
        "pair": pair,
        "classwise": classwise,
    }
    return of_class[kind](y, num_classes, generator=generator, **options)
