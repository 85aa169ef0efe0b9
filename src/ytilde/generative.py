"""The causal variational auto-encoder of CausalNL: networks and the terms of its bound.

Yao et al., "Instance-dependent Label-noise Learning under a Structural Causal Model", NeurIPS 2021.
The model is P(Y) P(Z) P(X|Y,Z) P(Y~|Y,X) (eq. 2). One branch has four networks: the classifier
q(Y|X), which lives outside and hands in its logits (so that it runs once a step, whatever else
uses them), and the three networks of `CausalModel`. How the terms are weighed and what else
teaches the classifier is the method's business.

Nothing here multiplies matrices in the terms, so casting their inputs up is enough to keep them
out of low precision under autocast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .data import IGNORE, BadInput
from .losses import ce

__all__ = [
    "CausalModel",
    "CausalOutput",
    "Posterior",
    "Terms",
    "elbo_terms",
    "exact_posterior",
    "expected_terms",
    "gaussian_kl",
    "negative_entropy",
    "reconstruction_error",
    "sample_label",
    "sample_latent",
]


class CausalOutput(NamedTuple):
    """One pass of a branch: what its loss needs."""

    y_hat: Tensor  # [B, K], the drawn clean label, soft or one-hot
    z: Tensor  # [B, J]
    mu: Tensor  # [B, J]
    logvar: Tensor  # [B, J], in [-10, 10]
    x_hat: Tensor  # like x
    noisy_logits: Tensor  # [B, K], of the observed label


class Terms(NamedTuple):
    """The negative bound of eq. 6 in its four terms, each [B]: with unit weights they add up."""

    reconstruction: Tensor  # -E log p(x|y,z), up to a constant
    noisy_nll: Tensor  # -E log p(y~|y,x)
    negative_entropy: Tensor  # KL(q(Y|x) || uniform) - log K
    kl: Tensor  # KL(q(Z|y,x) || N(0, I))


class CausalModel(nn.Module):
    """q(Z|X,Y), p(X|Y,Z) and p(Y~|X,Y) of one branch. Yao et al. 2021, eq. 3, 5, appendix C.

    shape (C, H, W): images in [0, 1] of any size; (D,): features, which the caller standardises.
    sampling: how y is drawn, see `sample_label`; `tau` is its temperature.
    noise: "normal", or the "uniform" noise in Z that the authors' code draws by mistake.
    detach: keep the gradient of the noisy label's loss from the reconstruction (paper: False).
    """

    row_parallel = ("encoder", "decoder", "noisy")  # many processes share it: engine/parallel.py

    def __init__(
        self,
        shape: tuple[int, ...],
        num_classes: int,
        z_dim: int = 25,
        *,
        sampling: str = "gumbel",
        tau: float = 1.0,
        noise: str = "normal",
        detach: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.num_classes, self.z_dim = tuple(shape), num_classes, z_dim
        self.sampling, self.tau, self.noise, self.detach = sampling, tau, noise, detach
        self.encoder: nn.Module
        self.decoder: nn.Module
        self.noisy: nn.Module
        if len(shape) == 3:
            self.encoder = _ConvEncoder(self.shape, num_classes, 2 * z_dim)
            self.decoder = _ConvDecoder(num_classes + z_dim, self.shape)
            self.noisy = _ConvEncoder(self.shape, num_classes, num_classes)
        elif len(shape) == 1:
            self.encoder = _MLP(shape[0] + num_classes, 2 * z_dim)
            self.decoder = _MLP(num_classes + z_dim, shape[0])
            self.noisy = _MLP(shape[0] + num_classes, num_classes)
        else:
            raise BadInput(
                f"the causal model takes images (C, H, W) or features (D,), not inputs of shape "
                f"{tuple(shape)}: flatten them."
            )

    def forward(self, x: Tensor, logits: Tensor, generator: torch.Generator) -> CausalOutput:
        """x [B, ...] and the classifier's logits [B, K] for the same x; draws y and z."""
        return self.chain(x, sample_label(logits, generator, self.sampling, self.tau), generator)

    def chain(self, x: Tensor, y_hat: Tensor, generator: torch.Generator) -> CausalOutput:
        """Appendix B's chain from a clean label y_hat [B, K], soft or one-hot."""
        mu, logvar = self.encode(x, y_hat)
        z = sample_latent(mu, logvar, generator, self.noise)
        x_hat = self.decode(y_hat, z)
        # The noisy label is read off the reconstruction, not off x (algorithm 1, line 7).
        seen = x_hat.detach() if self.detach else x_hat
        return CausalOutput(y_hat, z, mu, logvar, x_hat, self.noisy(seen, y_hat))

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of q(Z|x,y), both [B, J]; y [B, K] soft or one-hot."""
        mu, logvar = _wide(self.encoder(x, y)).chunk(2, -1)
        return mu, logvar.clamp(-10, 10)

    def decode(self, y: Tensor, z: Tensor) -> Tensor:
        """The mean of p(X|y,z): in (0, 1) for images, any number for features."""
        x_hat = _wide(self.decoder(y, z))
        return x_hat.sigmoid() if len(self.shape) == 3 else x_hat

    def reconstruct(self, x: Tensor, logits: Tensor) -> Tensor:
        """x as the model sees it, without chance: y = q(Y|x), z = its mean. Call in eval mode."""
        y = _wide(logits).softmax(-1)
        return self.decode(y, self.encode(x, y)[0])

    def transition(self, x: Tensor) -> Tensor:
        """T(x) [B, K, K]: row i is p(Y~|x_i, i), x_i = x reconstructed as class i, z its mean.

        The network was trained on reconstructions, so it is asked about them. One class at a
        time, so that memory does not grow with K. Call in eval mode.
        """
        rows = []
        for i in range(self.num_classes):
            y = self._one_hot(i, len(x))
            x_hat = self.decode(y, self.encode(x, y)[0])
            rows.append(_wide(self.noisy(x_hat, y)).softmax(-1))
        return torch.stack(rows, -2)

    def generate(self, y: int, n: int, generator: torch.Generator) -> Tensor:
        """n draws of x from class y, [n, *shape]. Call in eval mode."""
        label = self._one_hot(y, n)
        z = torch.randn(n, self.z_dim, generator=generator, device=label.device, dtype=label.dtype)
        return self.decode(label, z)

    def _one_hot(self, y: int, n: int) -> Tensor:
        like = next(self.parameters())
        label = torch.zeros(n, self.num_classes, device=like.device, dtype=like.dtype)
        label[:, y] = 1
        return label


class Posterior(NamedTuple):
    """What `exact_posterior` says about a batch."""

    log_given: Tensor  # [B, K, K]: log q(Y = k | Y~ = j, x) at [j, k]
    log_clean: Tensor  # [B, K]: log q(Y|x), for prediction and for the classifier's rule

    def given(self, y: Tensor) -> Tensor:
        """log q(Y | Y~ = y, x) [B, K], to be `CausalModel`'s logits; q(Y|x) where y is ignored."""
        row = y.clamp(min=0)[:, None, None].expand(-1, 1, self.log_given.shape[-1])
        known = self.log_given.gather(-2, row).squeeze(-2)
        return torch.where((y == IGNORE)[:, None], self.log_clean, known)


def exact_posterior(table: Tensor, noisy_logits: Tensor) -> Posterior:
    """The posterior without the approximation Y ⊥ Y~ | X. Yao et al. 2021, eq. 4 and footnote 2.

    table [B, K * K]: logits of q(Y|Y~=j,x), row by row; noisy_logits [B, K]: of q(Y~|x), from a
    network of its own. q(Y|x) = sum_j q(Y|Y~=j,x) q(Y~=j|x).
    """
    log_given = _wide(table).unflatten(-1, (noisy_logits.shape[-1], -1)).log_softmax(-1)
    # q(Y~|x) is a fact about the observed labels: only their own loss may move it.
    log_noisy = _wide(noisy_logits.detach()).log_softmax(-1)
    return Posterior(log_given, (log_given + log_noisy[..., None]).logsumexp(-2))


def elbo_terms(
    out: CausalOutput, x: Tensor, y: Tensor, logits: Tensor, distance: str = "l1"
) -> Terms:
    """The four terms of the negative bound, each [B]; y [B] observed labels, -1 adds no noisy_nll.

    Yao et al. 2021, eq. 6; appendix B prints the KL of Z with the wrong sign and without its 1/2.
    """
    return Terms(
        reconstruction_error(out.x_hat, x, distance),
        ce(out.noisy_logits, y),
        negative_entropy(logits),
        gaussian_kl(out.mu, out.logvar),
    )


def expected_terms(
    model: CausalModel,
    x: Tensor,
    y: Tensor,
    logits: Tensor,
    generator: torch.Generator,
    distance: str = "l1",
) -> Terms:
    """`elbo_terms` with eq. 6's expectation over the clean label written out, each [B].

    All K labels go through the networks, so it is for few classes. No draw of y, hence gradients
    without the bias of a soft label and no code in its softness.
    """
    k, rows = logits.shape[-1], len(x)
    each = torch.eye(k, device=x.device, dtype=x.dtype).repeat(rows, 1)
    xs, ys = x.repeat_interleave(k, 0), y.repeat_interleave(k)
    terms = elbo_terms(model.chain(xs, each, generator), xs, ys, each, distance)
    q = _wide(logits).softmax(-1)

    def expected(term: Tensor) -> Tensor:
        return (q * term.view(rows, k)).sum(-1)

    return Terms(
        expected(terms.reconstruction),
        expected(terms.noisy_nll),
        negative_entropy(logits),
        expected(terms.kl),
    )


def reconstruction_error(x_hat: Tensor, x: Tensor, distance: str = "l1") -> Tensor:
    """Mean over the entries of x of |x_hat - x| ("l1", the paper) or its square ("mse"): [B]."""
    difference = (_wide(x_hat) - _wide(x)).flatten(1)
    if distance == "l1":
        return difference.abs().mean(1)
    if distance == "mse":
        return difference.square().mean(1)
    raise BadInput(f'the distance {distance!r} is unknown: take "l1" or "mse".')


def negative_entropy(logits: Tensor) -> Tensor:
    """Sum over the classes of q log q: [..., K] -> [...]."""
    log_q = _wide(logits).log_softmax(-1)
    return (log_q.exp() * log_q).sum(-1)


def gaussian_kl(mu: Tensor, logvar: Tensor) -> Tensor:
    """KL(N(mu, exp(logvar)) || N(0, I)) of every sample, [..., J] -> [...]. Section 3.2."""
    mu, logvar = _wide(mu), _wide(logvar)
    return -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(-1)


def sample_label(
    logits: Tensor, generator: torch.Generator, sampling: str = "gumbel", tau: float = 1.0
) -> Tensor:
    """A clean label from q(Y|x) that gradients pass through, [..., K] -> [..., K].

    "gumbel": softmax((logits + Gumbel noise) / tau) (Jang et al. 2017), what the authors' code
    does; "st": its arg max as one-hot, with the soft label's gradient; "softmax": no draw.
    """
    logits = _wide(logits)
    if sampling == "softmax":
        return (logits / tau).softmax(-1)
    if sampling not in ("gumbel", "st"):
        raise BadInput(f'the sampling {sampling!r} is unknown: take "gumbel", "st" or "softmax".')
    u = torch.rand(logits.shape, generator=generator, device=logits.device, dtype=logits.dtype)
    # rand can be 0 and, rounded, 1: both would make the noise infinite.
    u = u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2)
    soft = ((logits - (-u.log()).log()) / tau).softmax(-1)
    if sampling == "gumbel":
        return soft
    hard = torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0)
    return hard + (soft - soft.detach())


def sample_latent(
    mu: Tensor, logvar: Tensor, generator: torch.Generator, noise: str = "normal"
) -> Tensor:
    """z = mu + sigma * noise (Kingma and Welling 2014), [..., J]."""
    if noise == "normal":
        draw = torch.randn
    elif noise == "uniform":
        draw = torch.rand
    else:
        raise BadInput(f'the noise {noise!r} is unknown: take "normal" or "uniform".')
    e = draw(mu.shape, generator=generator, device=mu.device, dtype=mu.dtype)
    return mu + (logvar / 2).exp() * e


class _MLP(nn.Module):
    """Two hidden layers on two inputs side by side: [B, a], [B, b] -> [B, out]."""

    def __init__(self, inputs: int, out: int, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width),
            nn.LeakyReLU(),
            nn.Linear(width, width),
            nn.LeakyReLU(),
            nn.Linear(width, out),
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.body(torch.cat([first, second], -1))


class _ConvEncoder(nn.Module):
    """Image and label -> [B, out]: the label becomes one more channel, then strided convolutions.

    Appendix C: 4 stages of width 32 to 256, at 224 px 5 stages to 512 with 7x7 kernels.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, out: int) -> None:
        super().__init__()
        channels, height, width = shape
        widths, kernel = _stages(height, width)
        self.size = (1, height, width)
        self.label = nn.Linear(num_classes, height * width)
        self.image = nn.Conv2d(channels, channels, 1)
        layers: list[nn.Module] = []
        before = channels + 1
        for w in widths:
            layers += [nn.Conv2d(before, w, kernel, 2, kernel // 2, bias=False), *_norm(w)]
            before = w
        self.body = nn.Sequential(*layers, nn.Flatten())
        h, w = _coarse(height, len(widths)), _coarse(width, len(widths))
        self.out = nn.Linear(before * h * w, out)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        label = self.label(y).unflatten(-1, self.size)
        return self.out(self.body(torch.cat([self.image(x), label], 1)))


class _ConvDecoder(nn.Module):
    """Label and z -> image logits: the encoder's stages backwards with transposed convolutions.

    Every stage doubles the map, so the last one is a multiple of 2^stages; the middle of it is
    cut out (28 of 32 pixels; the authors shrink 31 to 28 by a 4x4 convolution instead).
    """

    def __init__(self, inputs: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, self.height, self.width = shape
        widths, kernel = _stages(self.height, self.width)
        h, w = _coarse(self.height, len(widths)), _coarse(self.width, len(widths))
        self.size = (widths[-1], h, w)
        self.start = nn.Linear(inputs, widths[-1] * h * w)
        layers: list[nn.Module] = []
        for before, after in zip(widths[::-1], [*widths[-2::-1], widths[0]], strict=True):
            up = nn.ConvTranspose2d(before, after, kernel, 2, kernel // 2, 1, bias=False)
            layers += [up, *_norm(after)]
        self.body = nn.Sequential(*layers, nn.Conv2d(widths[0], channels, 3, padding=1))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        x = self.body(self.start(torch.cat([y, z], -1)).unflatten(-1, self.size))
        top, left = (x.shape[-2] - self.height) // 2, (x.shape[-1] - self.width) // 2
        return x[..., top : top + self.height, left : left + self.width]


def _stages(height: int, width: int) -> tuple[tuple[int, ...], int]:
    """Widths of the stages and their kernel: halve to about 2x2, at most 4 times below 128 px."""
    side = max(height, width)
    if side >= 128:
        return (32, 64, 128, 256, 512), 7
    return (32, 64, 128, 256)[: max(1, (side - 1).bit_length() - 1)], 3


def _coarse(side: int, stages: int) -> int:
    """The side of the map after that many halvings, each rounded up."""
    return -(-side // 2**stages)


def _norm(width: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(width), nn.LeakyReLU()]


def _wide(x: Tensor) -> Tensor:
    """At least float32: low precision ends here, float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
