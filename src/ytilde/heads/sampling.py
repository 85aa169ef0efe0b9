"""Heads whose probabilities are Monte-Carlo means: noise by counting, streamed in blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .head import Head, _full_precision

EVAL_SEED = 0  # of the noise behind every prediction
CHUNK = 2**20  # elements of one streamed block of samples: bounds memory, whatever S is
ON_CUDA = 16  # times that: there a block is a handful of kernels, and their number is what it costs


def _normal(seed: Tensor | int, rows: int, samples: range, width: int, like: Tensor) -> Tensor:
    """Standard normal noise [rows, len(samples), width], a pure function of seed and position.

    A backward pass can so draw the same noise again, even in a CUDA graph, where a generator cannot
    be wound back, and predictions see the same noise on every device. A 64-bit counter hash
    (SplitMix64: Steele et al., OOPSLA 2014) feeds Box and Muller's transform.
    """
    half = (width + 1) // 2
    integers: dict[str, Any] = {"device": like.device, "dtype": torch.int64}
    row = torch.arange(rows, **integers)[:, None, None]
    sample = torch.arange(samples.start, samples.stop, **integers)[:, None]
    z = (sample * rows + row) * half + torch.arange(half, **integers)
    z = (z + 1) * -0x61C8864680B583EB + seed  # 2^64 / golden ratio, as a signed number
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    z = z ^ _shift(z, 31)
    radius = ((_shift(z, 40) + 1).float() * 2.0**-24).log_().mul_(-2).sqrt_()
    angle = (z & 0xFFFFFF).float() * (2 * math.pi * 2.0**-24)
    noise = torch.cat([radius * angle.cos(), radius * angle.sin()], -1)
    return noise[..., :width].to(like.dtype)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of a signed 64-bit integer."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class _Draws:
    """S noise vectors for each of n rows (or the same for all rows), in blocks.

    Where all of them are no more than a block they are drawn once and kept.
    """

    def __init__(
        self, seed: Tensor | int, samples: int, width: int, rows: Tensor, shared: bool, size: int
    ) -> None:
        self.seed, self.samples, self.width = seed, samples, width
        most, n = CHUNK * (ON_CUDA if rows.is_cuda else 1), max(len(rows), 1)
        self.rows = 1 if shared else n
        self.block = max(1, most // (n * size))
        self.few, self.kept = self.rows * samples * size <= most, torch.empty(0)

    def blocks(self, like: Tensor) -> Iterator[Tensor]:
        """Noise [rows or 1, s, width]; the numbers do not depend on how they are cut."""
        if self.few and not len(self.kept):
            self.kept = self._draw(range(self.samples), like)
        for start in range(0, self.samples, self.block):
            part = range(start, min(start + self.block, self.samples))
            yield self.kept[:, part.start : part.stop] if self.few else self._draw(part, like)

    def _draw(self, samples: range, like: Tensor) -> Tensor:
        return _normal(self.seed, self.rows, samples, self.width, like)


_Latents = Callable[..., Tensor]  # (noise [n or 1, s, width], *moments) -> u [n, s, K]


class _LogMeanSoftmax(torch.autograd.Function):
    """log (1/S) sum_s softmax(u_s) by logsumexp, eq. 7 of Collier et al. 2020 in log space.

    The mean of clipped probabilities, the usual way, has no gradient where every sample misses the
    class. Backward draws the noise again and uses the closed gradient
    d log p_k / d u_s = w_sk (e_k - p_s), w_sk = p_sk / sum_s' p_s'k, so nothing of size S is kept.
    """

    @staticmethod
    def forward(ctx: Any, latents: _Latents, draws: _Draws, *moments: Tensor) -> Tensor:
        parts = (
            latents(noise, *moments).log_softmax(-1).logsumexp(-2)
            for noise in draws.blocks(moments[0])
        )
        total = functools.reduce(torch.logaddexp, parts)  # log sum_s p_sk: [n, K]
        ctx.latents, ctx.draws = latents, draws
        ctx.save_for_backward(total, *moments)
        return total - math.log(draws.samples)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad = outputs[0].unsqueeze(-2)
        total, *moments = ctx.saved_tensors
        leaves = [m.detach().requires_grad_() for m in moments]
        grads = [torch.zeros_like(m) for m in moments]
        for noise in ctx.draws.blocks(total):
            with torch.enable_grad():
                u = ctx.latents(noise, *leaves)
            log_p = u.detach().log_softmax(-1)
            weight = grad * (log_p - total.unsqueeze(-2)).exp()
            du = weight - log_p.exp() * weight.sum(-1, keepdim=True)
            for g, part in zip(grads, torch.autograd.grad(u, leaves, du), strict=True):
                g += part
        return None, None, *grads


class SampledHead(Head):
    """A head whose logits are Gaussian given the features: u = latents(noise, *moments(h)).

    Noise. In training: fresh for each example, from `generator`, or from the device's default
    generator where none is given. In evaluation: the same `eval_samples` fixed vectors for
    every example, so a prediction depends neither on the time nor on the rest of the batch.

    Args:
        dim: of the features.
        num_classes: K, at least 2.

    Example:
        >>> from ytilde.heads import Heteroscedastic
        >>> isinstance(Heteroscedastic(8, 3), SampledHead)
        True
    """

    train_samples: int
    eval_samples: int
    width: int  # of one noise vector

    def moments(self, h: Tensor) -> tuple[Tensor, ...]:
        """What the layers say of u, each [n, ...] for h [n, dim] (or shared: a weight, tau)."""
        raise NotImplementedError

    def latents(self, noise: Tensor, *moments: Tensor) -> Tensor:
        """Logits, divided by the temperature.

        Args:
            noise: [n or 1, s, width].
            moments: what `moments` gave.

        Returns:
            u [n, s, K].
        """
        raise NotImplementedError

    @_full_precision
    def mixture(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """log E[softmax(u)] over the noise.

        Args:
            h: features [..., dim].
            generator: of the noise.

        Returns:
            [..., K].
        """
        rows = h.reshape(-1, self.dim)
        draws = self._draws(rows, generator)
        log_p = _LogMeanSoftmax.apply(self.latents, draws, *self.moments(rows))
        return log_p.reshape(*h.shape[:-1], self.num_classes)

    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.mixture(h, generator)

    @torch.no_grad()
    @_full_precision
    def variance(self, h: Tensor) -> Tensor:
        """Var[softmax(u)_k] over the fixed noise of evaluation, [..., K]. No gradient.

        The second pass goes around the mean of the first, so that nothing cancels near p = 1.
        """
        rows = h.reshape(-1, self.dim)
        draws, moments = self._fixed(rows), self.moments(rows)
        mean = _LogMeanSoftmax.apply(self.latents, draws, *moments).exp().unsqueeze(-2)
        squares = (
            (self.latents(noise, *moments).softmax(-1) - mean).square().sum(-2)
            for noise in draws.blocks(rows)
        )
        variance = functools.reduce(torch.add, squares) / draws.samples
        return variance.reshape(*h.shape[:-1], self.num_classes)

    @_full_precision
    def sampled(self, h: Tensor, generator: torch.Generator, samples: int = 1) -> Tensor:
        """log softmax(u_s) of single draws, all of them in memory.

        Args:
            h: features [..., dim].
            generator: of the noise.
            samples: how many draws.

        Returns:
            [..., samples, K].
        """
        rows = h.reshape(-1, self.dim)
        noise = _normal(_seed(h, generator), len(rows), range(samples), self.width, rows)
        log_p = self.latents(noise, *self.moments(rows)).log_softmax(-1)
        return log_p.reshape(*h.shape[:-1], samples, self.num_classes)

    def _draws(self, rows: Tensor, generator: torch.Generator | None) -> _Draws:
        if not self.training and generator is None:
            return self._fixed(rows)
        samples = self.train_samples if self.training else self.eval_samples
        seed = _seed(rows, generator)
        return _Draws(seed, samples, self.width, rows, False, self._size)

    def _fixed(self, rows: Tensor) -> _Draws:
        return _Draws(EVAL_SEED, self.eval_samples, self.width, rows, True, self._size)

    @property
    def _size(self) -> int:
        return max(self.width, self.num_classes)


def _seed(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A random seed that stays on the device."""
    return torch.randint(2**62, (), device=like.device, generator=generator)
