"""Diffusion over vectors and matrices, conditioned on features: schedule, denoisers, sampler.

Ho et al. 2020 (DDPM), Song et al. 2021 (DDIM), Nichol and Dhariwal 2021 (cosine); used for
transition matrices as in "DTM" (algorithms 1 and 2) and for label vectors. Steps count m = 1..M
and m = 0 is the data, so `alpha_bar[0] = 1`. The schedule knows no network.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import BadInput

__all__ = [
    "DENOISERS",
    "PCA",
    "Denoiser",
    "Diffusion",
    "Prediction",
    "Rows",
    "Schedule",
    "ScheduleKind",
    "Start",
    "UNet",
]

ScheduleKind = Literal["paper", "cosine", "respaced"]
Prediction = Literal["x0", "eps", "v"]  # what a denoiser gives
Start = Literal["normal", "matched", "zero"]  # what sampling begins with


class Schedule(nn.Module):
    """How much of the data is left after m steps: w_m = sqrt(ab_m) w_0 + sqrt(1 - ab_m) eps.

    kind "paper": beta linear from 1e-4 to 0.02 over M steps (section 4.2). At the paper's M = 10
    alpha_bar_M is 0.90, so w_M is still the data and starting at N(0, I) is wrong.
    "cosine": Nichol and Dhariwal, eq. 17. "respaced": the linear 1000-step schedule, M of it.
    """

    alpha_bar: Tensor

    def __init__(self, kind: str = "cosine", steps: int = 10) -> None:
        super().__init__()
        self.kind, self.steps = kind, steps
        # float64 and never saved: it follows from the two fields; what is used is cast to w.
        self.register_buffer("alpha_bar", _alpha_bar(kind, steps), persistent=False)

    def levels(self, m: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(ab_m) and sqrt(1 - ab_m) for m [B], shaped to multiply w [B, ...]."""
        ab = self.alpha_bar[m].view(-1, *[1] * (w.ndim - 1))
        return ab.sqrt().to(w.dtype), (1 - ab).sqrt().to(w.dtype)

    def q_sample(self, w0: Tensor, m: Tensor, eps: Tensor) -> Tensor:
        """w_m given the data and the noise: DDPM eq. 4."""
        signal, noise = self.levels(m, w0)
        return signal * w0 + noise * eps

    def from_x0(self, w0: Tensor, w: Tensor, m: Tensor, kind: str) -> Tensor:
        """The `kind` ("x0", "eps" or "v") that says the same as w0 about w = w_m, m >= 1.

        v = sqrt(ab) eps - sqrt(1 - ab) x0 (Salimans and Ho 2022).
        """
        signal, noise = self.levels(m, w)
        if _known(kind) == "x0":
            return w0
        eps = (w - signal * w0) / noise
        return eps if kind == "eps" else signal * eps - noise * w0

    def to_x0(self, value: Tensor, w: Tensor, m: Tensor, kind: str) -> Tensor:
        """The inverse of `from_x0`."""
        signal, noise = self.levels(m, w)
        if _known(kind) == "x0":
            return value
        return (w - noise * value) / signal if kind == "eps" else signal * w - noise * value

    def posterior(self, w0: Tensor, w: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(w_s | w_m, w_0) for s < m: DDPM eq. 6-7, steps may be skipped."""
        now, then = (self.alpha_bar[i].view(-1, *[1] * (w.ndim - 1)) for i in (m, s))
        alpha = now / then
        of_data = then.sqrt() * (1 - alpha) / (1 - now)
        of_w = alpha.sqrt() * (1 - then) / (1 - now)
        variance = (1 - then) / (1 - now) * (1 - alpha)
        return of_data.to(w.dtype) * w0 + of_w.to(w.dtype) * w, variance.to(w.dtype)

    def step(
        self, w0: Tensor, w: Tensor, m: Tensor, s: Tensor, eta: float, noise: Tensor
    ) -> Tensor:
        """From w_m to w_s with the predicted data w0. DDIM eq. 12 and 16.

        eta = 0 is DDIM; eta = 1 is a draw from `posterior`, that is DTM's algorithm 2 with
        sigma^2 = beta_tilde.
        """
        sigma2 = eta**2 * self.posterior(w0, w, m, s)[1]
        signal, rest = self.levels(s, w)
        eps = self.from_x0(w0, w, m, "eps")
        left = (rest.square() - sigma2).clamp(min=0).sqrt()
        return signal * w0 + left * eps + sigma2.sqrt() * noise

    def path(self, steps: int | None = None) -> list[int]:
        """The steps that a sampler visits, M first, 0 last; all of them by default."""
        n = self.steps if steps is None else steps
        if not 1 <= n <= self.steps:
            raise BadInput(f"a schedule of {self.steps} steps cannot be walked in {n}: take fewer.")
        return [round(self.steps * i / n) for i in range(n, -1, -1)]


class Diffusion(nn.Module):
    """A conditional diffusion model of w [B, ...] given features [B, F].

    predict: what the denoiser's output means. "x0" is the default: at a terminal step with next
    to no signal, eps is divided by sqrt(alpha_bar) and its error blown up.
    standardise: work on w with mean 0 and sd 1 per entry (`measure` finds them).
    start: w_M is drawn from N(0, I) ("normal", algorithm 2), from the data's true distribution
    after M steps ("matched"; the same where w is standardised), or is "zero" (as LRA does).
    clip: cut the predicted data at this many sd from the mean; inf = never.
    """

    shift: Tensor
    scale: Tensor
    mean: Tensor
    std: Tensor
    feature_mean: Tensor
    feature_std: Tensor

    def __init__(
        self,
        denoiser: nn.Module,
        schedule: Schedule,
        shape: tuple[int, ...],
        features: int,
        *,
        predict: str = "x0",
        standardise: bool = True,
        start: str = "normal",
        clip: float = math.inf,
    ) -> None:
        super().__init__()
        if start not in get_args(Start):
            raise BadInput(f'the start {start!r} is unknown: take "normal", "matched" or "zero".')
        self.denoiser, self.schedule, self.shape = denoiser, schedule, tuple(shape)
        self.predict, self.start, self.clip = _known(predict), start, clip
        self.standardise = standardise
        # w -> (w - shift) / scale is what is diffused, and (mean, std) are the moments of that.
        for name, size in {"shift": shape, "mean": shape, "feature_mean": (features,)}.items():
            self.register_buffer(name, torch.zeros(size))
        for name, size in {"scale": shape, "std": shape, "feature_std": (features,)}.items():
            self.register_buffer(name, torch.ones(size))

    @torch.no_grad()
    def measure(self, w0: Tensor, features: Tensor) -> None:
        """Take means and sds over all training rows, before training; sd at least 1e-3.

        Features are standardised too: an entry of a unit vector in 512-d is too small to learn.
        """
        mean, std = _moments(w0)
        into = (self.shift, self.scale) if self.standardise else (self.mean, self.std)
        into[0].copy_(mean)
        into[1].copy_(std)
        for buffer, value in zip(
            (self.feature_mean, self.feature_std), _moments(features), strict=True
        ):
            buffer.copy_(value)

    def loss(self, w0: Tensor, features: Tensor, generator: torch.Generator) -> Tensor:
        """Squared error of the prediction at a random step, mean over w's entries: [B].

        DTM, algorithm 1 (with predict="eps").
        """
        w0 = (w0.to(self.shift.dtype) - self.shift) / self.scale
        m = torch.randint(
            1, self.schedule.steps + 1, (len(w0),), generator=generator, device=w0.device
        )
        eps = _randn(w0, generator)
        w = self.schedule.q_sample(w0, m, eps)
        wanted = self.schedule.from_x0(w0, w, m, self.predict)
        output = self._denoise(w, features, m)
        return (output - wanted).square().flatten(1).mean(1)

    @torch.no_grad()
    def sample(
        self,
        features: Tensor,
        n: int = 1,
        *,
        steps: int | None = None,
        eta: float = 0.0,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """n draws of w for every row of features, [B, n, ...]; DTM, algorithm 2.

        eta = 0: DDIM, deterministic after the start; 1: ancestral. steps: fewer than M.
        noise: `draws(n)`, the same for every row, in place of the generator's; a row's result then
        depends on no other row, and a step that samples can be captured.
        """
        rows = features.shape[0]  # len() would fix their number in an exported network
        features = features.repeat_interleave(n, 0)
        shape = (rows * n, *self.shape)

        def draw(k: int) -> Tensor:
            if noise is not None:
                return noise[k].repeat(rows, *[1] * len(self.shape))
            if generator is None:
                raise ValueError("sampling draws: give it a generator or the draws themselves")
            return _randn(self.shift.new_empty(shape), generator)

        w = self._start(draw(0)) if self.start != "zero" else self.shift.new_zeros(shape)
        for k, (now, then) in enumerate(itertools.pairwise(self.schedule.path(steps)), 1):
            m, s = (torch.full((w.shape[0],), i, device=w.device) for i in (now, then))
            w0 = self.schedule.to_x0(self._denoise(w, features, m), w, m, self.predict)
            w0 = w0.clamp(self.mean - self.clip * self.std, self.mean + self.clip * self.std)
            w = self.schedule.step(w0, w, m, s, eta, draw(k) if eta else torch.zeros_like(w))
        return (w * self.scale + self.shift).unflatten(0, (-1, n))

    def draws(self, n: int, generator: torch.Generator, *, steps: int | None = None) -> Tensor:
        """The noise of n samples for `sample`: the start's and each step's, [1 + steps, n, ...]."""
        return torch.randn(len(self.schedule.path(steps)), n, *self.shape, generator=generator)

    def regression(self, w0: Tensor, features: Tensor) -> Tensor:
        """Squared error of w0 predicted without any w_m, mean over w's entries: [B].

        The plain regression that a diffusion has to beat: same network, same targets.
        """
        wanted = (w0.to(self.shift.dtype) - self.shift) / self.scale
        return (self._regress(features) - wanted).square().flatten(1).mean(1)

    def regress(self, features: Tensor) -> Tensor:
        """w of features by the network that `regression` trained, [B, ...]."""
        return self._regress(features) * self.scale + self.shift

    def _regress(self, features: Tensor) -> Tensor:
        nothing = self.shift.new_zeros(len(features), *self.shape)
        return self._denoise(nothing, features, torch.zeros_like(nothing.flatten(1)[:, 0]))

    def _denoise(self, w: Tensor, features: Tensor, m: Tensor) -> Tensor:
        with torch.autocast(w.device.type, enabled=False):
            features = (features.to(w.dtype) - self.feature_mean) / self.feature_std
            return self.denoiser(w, features, m).to(w.dtype)

    def _start(self, noise: Tensor) -> Tensor:
        if self.start == "normal":
            return noise
        ab = self.schedule.alpha_bar[-1].to(noise.dtype)
        return ab.sqrt() * self.mean + (ab * self.std.square() + 1 - ab).sqrt() * noise


class Denoiser(nn.Module):
    """Residual MLP with FiLM (Perez et al. 2018) from features and step; w of any shape.

    (w_m [B, ...], features [B, F], m [B]) -> like w_m, as all denoisers here.
    """

    def __init__(
        self, shape: tuple[int, ...], features: int, *, width: int = 512, blocks: int = 3
    ) -> None:
        super().__init__()
        entries = math.prod(shape)
        self.condition = _Condition(features, width)
        self.into = nn.Linear(entries, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.out = _zero(nn.Linear(width, entries))

    def forward(self, w: Tensor, features: Tensor, m: Tensor) -> Tensor:
        c = self.condition(features, m)
        h = self.into(w.flatten(1))
        for block in self.blocks:
            h = block(h, c)
        return self.out(F.silu(h)).view_as(w)


class Rows(nn.Module):
    """Transformer over the K rows of a matrix as tokens; w [B, K, K']."""

    def __init__(
        self, shape: tuple[int, ...], features: int, *, width: int = 128, blocks: int = 3
    ) -> None:
        super().__init__()
        rows, entries = _matrix(shape)
        self.condition = _Condition(features, width)
        self.into = nn.Linear(entries, width)
        self.position = nn.Parameter(torch.randn(rows, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.out = _zero(nn.Linear(width, entries))

    def forward(self, w: Tensor, features: Tensor, m: Tensor) -> Tensor:
        c = self.condition(features, m)[:, None]
        return self.out(self.body(self.into(w) + self.position + c))


class UNet(nn.Module):
    """Small convolutional U-Net with FiLM, the paper's choice; w [B, K, K'].

    Two halvings need sides that 4 divides: w is padded with zeros and cut out again.
    """

    def __init__(self, shape: tuple[int, ...], features: int, *, width: int = 32) -> None:
        super().__init__()
        rows, columns = _matrix(shape)
        self.pad = (0, -columns % 4, 0, -rows % 4)
        self.condition = _Condition(features, 4 * width)
        self.into = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = _ConvBlock(width, width, 4 * width)
        self.down2 = _ConvBlock(width, 2 * width, 4 * width)
        self.middle = _ConvBlock(2 * width, 4 * width, 4 * width)
        self.up2 = _ConvBlock(6 * width, 2 * width, 4 * width)
        self.up1 = _ConvBlock(3 * width, width, 4 * width)
        self.out = _zero(nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, w: Tensor, features: Tensor, m: Tensor) -> Tensor:
        c = self.condition(features, m)
        fine = self.down1(self.into(F.pad(w, self.pad)[:, None]), c)
        half = self.down2(F.avg_pool2d(fine, 2), c)
        h = self.middle(F.avg_pool2d(half, 2), c)
        h = self.up2(torch.cat([F.interpolate(h, scale_factor=2.0), half], 1), c)
        h = self.up1(torch.cat([F.interpolate(h, scale_factor=2.0), fine], 1), c)
        return self.out(F.silu(h))[:, 0, : w.shape[1], : w.shape[2]]


DENOISERS: dict[str, type[nn.Module]] = {"mlp": Denoiser, "rows": Rows, "unet": UNet}


class PCA(nn.Module):
    """Coefficients of a table of targets, for matrices too large to diffuse entry by entry.

    G targets span at most G - 1 directions, so with that rank nothing is lost for any of them.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, shape: tuple[int, ...], rank: int) -> None:
        super().__init__()
        self.rank = min(rank, math.prod(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("components", torch.zeros(self.rank, *shape))

    @torch.no_grad()
    def fit(self, table: Tensor) -> None:
        """table [G, ...]; directions beyond what G targets span stay zero."""
        self.mean.copy_(table.mean(0))
        directions = torch.linalg.svd((table - table.mean(0)).flatten(1), full_matrices=False)[2]
        found = directions[: self.rank].view(-1, *self.mean.shape)
        self.components.zero_()[: len(found)].copy_(found)

    def encode(self, w: Tensor) -> Tensor:
        """[B, ...] -> coefficients [B, rank]."""
        with torch.autocast(w.device.type, enabled=False):
            return (w - self.mean).flatten(1) @ self.components.flatten(1).T

    def decode(self, coefficients: Tensor) -> Tensor:
        """[..., rank] -> [..., *shape]."""
        with torch.autocast(coefficients.device.type, enabled=False):
            flat = coefficients @ self.components.flatten(1)
            return self.mean + flat.unflatten(-1, self.mean.shape)


class _Condition(nn.Module):
    """Features and step -> one vector [B, width]; the step as sines, as in DDPM."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.pairs = width // 2
        self.features = nn.Linear(features, width)
        self.step = nn.Linear(2 * self.pairs, width)
        self.out = nn.Linear(width, width)

    def forward(self, features: Tensor, m: Tensor) -> Tensor:
        k = torch.arange(self.pairs, device=m.device, dtype=torch.float32)
        angle = m[:, None] * torch.exp(-math.log(10_000) * k / self.pairs)
        sines = torch.cat([angle.sin(), angle.cos()], 1).to(features.dtype)
        return F.silu(self.out(F.silu(self.features(features) + self.step(sines))))


class _Block(nn.Module):
    """h + MLP(FiLM(norm(h)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.film = nn.Linear(width, 2 * width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        scale, shift = self.film(c).chunk(2, 1)
        return h + self.second(F.silu(self.first(self.norm(h) * (1 + scale) + shift)))


class _ConvBlock(nn.Module):
    """The same for maps, with a change of width."""

    def __init__(self, before: int, after: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.norm = nn.GroupNorm(8, after, affine=False)
        self.film = nn.Linear(condition, 2 * after)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        scale, shift = self.film(c)[..., None, None].chunk(2, 1)
        inner = self.norm(self.first(F.silu(h))) * (1 + scale) + shift
        return self.skip(h) + self.second(F.silu(inner))


def _alpha_bar(kind: str, steps: int) -> Tensor:
    """[M + 1] in float64, from 1 downwards."""
    if steps < 1:
        raise BadInput(f"a diffusion needs at least one step, not {steps}.")
    m = torch.arange(steps + 1, dtype=torch.float64)
    if kind == "paper":
        return _product(torch.linspace(1e-4, 0.02, steps, dtype=torch.float64))
    if kind == "cosine":
        f = torch.cos((m / steps + 0.008) / 1.008 * math.pi / 2).square()
        return _product((1 - f[1:] / f[:-1]).clamp(max=0.999))
    if kind == "respaced":
        if steps > 1000:
            raise BadInput(f"1000 steps cannot be respaced to {steps}: take 1000 or fewer.")
        full = _product(torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64))
        return full[(m * 1000 / steps).round().long()]
    raise BadInput(f'the schedule {kind!r} is unknown: take "paper", "cosine" or "respaced".')


def _product(beta: Tensor) -> Tensor:
    return torch.cat([beta.new_ones(1), (1 - beta).cumprod(0)])


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.std(0, correction=0).clamp(min=1e-3)


def _randn(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def _known(kind: str) -> str:
    if kind not in get_args(Prediction):
        raise BadInput(f'the prediction {kind!r} is unknown: take "x0", "eps" or "v".')
    return kind


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise BadInput(f'this denoiser takes matrices, not shape {tuple(shape)}: take "mlp".')
    return shape[0], shape[1]


def _zero(layer: nn.Module) -> nn.Module:
    """The prediction starts at zero: the mean of standardised data."""
    for p in layer.parameters():
        nn.init.zeros_(p)
    return layer
