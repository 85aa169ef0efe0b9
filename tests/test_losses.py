"""Losses against slow float64 versions written from the equations, their limits and gradients."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import ytilde
from ytilde import losses
from ytilde.data import BadInput
from ytilde.losses.labels import log_softmax
from ytilde.mixing import low_frequency_noise, random_order

K = 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def example(n=7, k=K, scale=3.0, seed=0):
    g = generator(seed)
    logits = scale * torch.randn(n, k, generator=g, dtype=torch.float64)
    return logits, torch.randint(k, (n,), generator=g)


# ------------------------------------------------------------------ slow versions, with loops


def softmax(z):
    powers = [math.exp(v - max(z)) for v in z]
    return [v / sum(powers) for v in powers]


def log_t(u, t):
    return math.log(u) if t == 1 else (u ** (1 - t) - 1) / (1 - t)


def exp_t(x, t):
    return math.exp(x) if t == 1 else max(1 + (1 - t) * x, 0.0) ** (1 / (1 - t))


def slow_tempered(z, t):
    """Bisection on the normaliser; the largest probability lies in [1/K, 1]."""
    top = max(z)
    low, high = 0.0, -log_t(1 / len(z), t)
    for _ in range(200):
        middle = (low + high) / 2
        if sum(exp_t(v - top - middle, t) for v in z) > 1:
            low = middle
        else:
            high = middle
    return [exp_t(v - top - low, t) for v in z]


def slow_bi_tempered(z, y, t1, t2, smoothing=0.0):
    total = 0.0
    for c, p in enumerate(slow_tempered(z, t2)):
        target = (1 - smoothing) * (c == y) + smoothing / len(z)
        if target > 0:
            total += target * (log_t(target, t1) - log_t(p, t1))
        total -= (target ** (2 - t1) - p ** (2 - t1)) / (2 - t1)
    return total


def slow_soft_ce(z, targets):
    return -sum(a * math.log(p) for a, p in zip(targets, softmax(z), strict=True))


def slow_bootstrap(z, y, beta, hard):
    p = softmax(z)
    own = [float(c == p.index(max(p))) for c in range(len(z))] if hard else p
    return slow_soft_ce(z, [beta * (c == y) + (1 - beta) * own[c] for c in range(len(z))])


def slow_symmetric_ce(z, y, alpha, beta):
    p = softmax(z)
    reverse = -sum(p[c] * (0.0 if c == y else math.log(1e-4)) for c in range(len(z)))
    return -alpha * math.log(p[y]) + beta * reverse


def slow_cores(z, y, beta, prior, clip=10.0):
    p = softmax(z)
    expected = sum(w * min(-math.log(v), clip) for w, v in zip(prior, p, strict=True))
    return -math.log(p[y]) - beta * expected


PRIOR = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)

CASES = {
    "ce": (losses.ce, lambda z, y: -math.log(softmax(z)[y])),
    "gce_0.7": (losses.gce, lambda z, y: (1 - softmax(z)[y] ** 0.7) / 0.7),
    "gce_0.1": (lambda a, y: losses.gce(a, y, 0.1), lambda z, y: (1 - softmax(z)[y] ** 0.1) / 0.1),
    "mae": (losses.mae, lambda z, y: sum(abs((c == y) - p) for c, p in enumerate(softmax(z)))),
    "symmetric_ce_0.1": (losses.symmetric_ce, lambda z, y: slow_symmetric_ce(z, y, 0.1, 1.0)),
    "symmetric_ce": (
        lambda a, y: losses.symmetric_ce(a, y, 6.0, 0.1),
        lambda z, y: slow_symmetric_ce(z, y, 6.0, 0.1),
    ),
    "bootstrap_soft": (losses.bootstrap_soft, lambda z, y: slow_bootstrap(z, y, 0.95, False)),
    "bootstrap_hard": (losses.bootstrap_hard, lambda z, y: slow_bootstrap(z, y, 0.8, True)),
    "label_smoothing": (
        losses.label_smoothing,
        lambda z, y: slow_soft_ce(z, [0.9 * (c == y) + 0.1 / len(z) for c in range(len(z))]),
    ),
    "cores": (losses.cores, lambda z, y: slow_cores(z, y, 2.0, [1 / len(z)] * len(z))),
    "cores_prior": (
        lambda a, y: losses.cores(a, y, 1.5, PRIOR),
        lambda z, y: slow_cores(z, y, 1.5, PRIOR.tolist()),
    ),
    "truncated_gce": (
        lambda a, y: losses.truncated_gce(a, y, losses.truncation_weights(a, y, 0.3), 0.7, 0.3),
        lambda z, y: min((1 - softmax(z)[y] ** 0.7) / 0.7 - (1 - 0.3**0.7) / 0.7, 0.0),
    ),
    **{
        f"bi_tempered_{t1}_{t2}_{e}": (
            lambda a, y, t1=t1, t2=t2, e=e: losses.bi_tempered(a, y, t1, t2, e),
            lambda z, y, t1=t1, t2=t2, e=e: slow_bi_tempered(z, y, t1, t2, e),
        )
        for t1, t2, e in [(0.8, 1.2, 0), (0.5, 2, 0), (0.9, 4, 0.1), (1, 1, 0.2), (0.3, 0.6, 0)]
    },
}
SMOOTH = [name for name in CASES if name not in ("bi_tempered_0.3_0.6_0", "cores", "cores_prior")]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_slow_version(name):
    fast, slow = CASES[name]
    logits, y = example(12)
    expected = [slow(z, int(c)) for z, c in zip(logits.tolist(), y, strict=True)]
    np.testing.assert_allclose(fast(logits, y).numpy(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradient(name):
    logits, y = example(4, scale=1.5)
    assert torch.autograd.gradcheck(lambda a: CASES[name][0](a, y), logits.requires_grad_())


@pytest.mark.parametrize("name", CASES)
def test_ignored_labels_and_leading_axes(name):
    fast, _ = CASES[name]
    logits, y = example(12)
    flat = fast(logits, y)
    np.testing.assert_allclose(fast(logits.view(3, 4, K), y.view(3, 4)), flat.view(3, 4))
    hidden = y.clone()
    hidden[::2] = -1
    logits.requires_grad_()
    nll = fast(logits, hidden)
    (grad,) = torch.autograd.grad(nll.sum(), logits)
    assert nll[::2].abs().max() == 0 and grad[::2].abs().max() == 0
    np.testing.assert_allclose(nll[1::2].detach(), flat[1::2])


def stochastic(name):
    """The losses that draw, each with its own seeded generator."""
    function = getattr(losses, name)
    return lambda a, y: function(a, y, generator=generator(3))


ALL = {
    **{name: fast for name, (fast, _) in CASES.items() if name != "cores_prior"},
    "peer_loss": stochastic("peer_loss"),
    "noise_against_noise": stochastic("noise_against_noise"),
    "elr": lambda a, y: losses.elr(a, losses.elr_target(torch.zeros_like(a), a)),
    "sop": lambda a, y: losses.sop(a, y, a.new_full((len(y), 1), 0.1), torch.full_like(a, 0.1))[0],
    **{
        f"tempered_{t}": lambda a, y, t=t: losses.tempered_softmax(a, t)[..., 0]
        for t in (0.5, 1.0, 1.1, 2.0, 4.0)
    },
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ALL)
def test_finite_for_huge_logits(name, dtype):
    g = generator(1)
    signs = torch.randint(2, (64, 10), generator=g) * 2 - 1
    spread = torch.tensor([1e4, 1.0, 0.0, 1e4])[torch.randint(4, (64, 10), generator=g)]
    logits = (signs * spread).to(dtype).requires_grad_()
    nll = ALL[name](logits, torch.randint(10, (64,), generator=g))
    (grad,) = torch.autograd.grad(nll.sum(), logits)
    assert nll.dtype == torch.float32 and grad.dtype == dtype
    assert nll.isfinite().all() and grad.isfinite().all()


def test_power_of_underflowing_probability_is_why_gce_is_in_log_space():
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    naive = (1 - logits.softmax(-1)[:, 1] ** 0.7) / 0.7
    assert torch.autograd.grad(naive.sum(), logits)[0].isnan().any()
    ours = losses.gce(logits, torch.tensor([1]), 0.7)
    assert torch.autograd.grad(ours.sum(), logits)[0].isfinite().all()


# ------------------------------------------------------------------ limits


def test_limits():
    logits, y = example(20)
    cross = losses.ce(logits, y)
    close = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(losses.gce(logits, y, 1e-9), cross, rtol=1e-7)
    np.testing.assert_allclose(losses.gce(logits, y, 1.0), losses.mae(logits, y) / 2, **close)
    np.testing.assert_allclose(losses.bi_tempered(logits, y, 1.0, 1.0), cross, **close)
    np.testing.assert_allclose(losses.bi_tempered(logits, y, 1.0, 1 + 1e-5), cross, atol=1e-3)
    np.testing.assert_allclose(losses.label_smoothing(logits, y, 0.0), cross, **close)
    np.testing.assert_allclose(losses.bootstrap_soft(logits, y, 1.0), cross, **close)
    np.testing.assert_allclose(losses.bootstrap_hard(logits, y, 1.0), cross, **close)
    np.testing.assert_allclose(losses.symmetric_ce(logits, y, 1.0, 0.0), cross, **close)
    np.testing.assert_allclose(losses.cores(logits, y, 0.0), cross, **close)
    g = generator()
    np.testing.assert_allclose(losses.peer_loss(logits, y, 0.0, generator=g), cross, **close)
    quiet = losses.noise_against_noise(logits, y, 0.0, generator=g)
    np.testing.assert_allclose(quiet, cross, **close)
    one_hot = torch.eye(K, dtype=torch.float64)[y]
    np.testing.assert_allclose(losses.soft_ce(logits, one_hot), cross, **close)


def test_truncation_keeps_labels_that_are_likelier_than_not():
    logits = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.5, 0.5], [1.0, 0.0]]).log()
    assert losses.truncation_weights(logits, torch.tensor([0, 0, 1, -1])).tolist() == [1, 0, 1, 0]


def test_bootstrap_detach_stops_the_target_gradient():
    logits, y = example(6)
    logits.requires_grad_()
    p = logits.detach().softmax(-1)
    fixed = 0.95 * torch.eye(K, dtype=torch.float64)[y] + 0.05 * p
    (expected,) = torch.autograd.grad(losses.soft_ce(logits, fixed).sum(), logits)
    (held,) = torch.autograd.grad(losses.bootstrap_soft(logits, y, detach=True).sum(), logits)
    (free,) = torch.autograd.grad(losses.bootstrap_soft(logits, y).sum(), logits)
    np.testing.assert_allclose(held, expected, atol=1e-12)
    assert (free - expected).abs().max() > 1e-4


# ------------------------------------------------------------------ tempered softmax


@pytest.mark.parametrize("t", [0.3, 0.7, 1.0, 1.1, 2.0, 4.0])
@pytest.mark.parametrize("k", [2, 10, 100, 1000])
def test_tempered_softmax_sums_to_one(t, k):
    for scale in (0.0, 0.1, 1.0, 10.0, 1000.0):
        logits = scale * torch.randn(50, k, generator=generator(2))
        tied = torch.cat([logits, logits.amax(-1, keepdim=True).expand(-1, k)], -1)
        for z in (logits, tied):
            assert (losses.tempered_softmax(z, t).sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("t", [0.4, 1.0, 1.3, 2.0, 4.0])
def test_tempered_softmax(t):
    logits, _ = example(8, 6)
    expected = [slow_tempered(z, t) for z in logits.tolist()]
    p = losses.tempered_softmax(logits, t)
    np.testing.assert_allclose(p, expected, atol=1e-10)
    assert (p.argmax(-1) == logits.argmax(-1)).all()
    np.testing.assert_allclose(losses.tempered_softmax(logits + 50, t), p, atol=1e-10)


@pytest.mark.parametrize("t", [1.0, 1.2, 2.0, 4.0])
def test_tempered_softmax_gradient(t):
    logits, _ = example(3, 4)
    assert torch.autograd.gradcheck(
        lambda a: losses.tempered_softmax(a, t), logits.requires_grad_()
    )


def test_bi_tempered_closed_gradient():
    """(p - y) p^(t2-t1) - escort sum(..): the formula the autograd composition must equal."""
    logits, y = example(9)
    t1, t2 = 0.7, 1.4
    logits.requires_grad_()
    (grad,) = torch.autograd.grad(losses.bi_tempered(logits, y, t1, t2).sum(), logits)
    p = losses.tempered_softmax(logits.detach(), t2)
    pull = (p - torch.eye(K, dtype=torch.float64)[y]) * p ** (t2 - t1)
    escort = p**t2 / (p**t2).sum(-1, keepdim=True)
    np.testing.assert_allclose(grad, pull - escort * pull.sum(-1, keepdim=True), atol=1e-12)


# ------------------------------------------------------------------ losses that draw


def test_noise_against_noise_draws_targets_of_the_right_law():
    logits, y = example(1, 4)
    n = 20000
    many = losses.noise_against_noise(
        logits.expand(n, -1), y.expand(n), sigma=0.5, generator=generator()
    )
    log_p = logits.log_softmax(-1)
    z = (many - losses.ce(logits, y)) / (0.5 * log_p.norm())
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3


def test_noise_against_noise_equals_soft_ce_with_the_drawn_targets():
    logits, y = example(6)
    noise = torch.randn(logits.shape, generator=generator(5), dtype=torch.float64)
    targets = torch.eye(K, dtype=torch.float64)[y] + 0.3 * noise
    ours = losses.noise_against_noise(logits, y, 0.3, generator=generator(5))
    np.testing.assert_allclose(ours, losses.soft_ce(logits, targets), atol=1e-12)


def test_peer_loss_expectation_and_bound():
    """The mean of the peer term over draws is the mean over all pairs (j, k) of valid elements."""
    logits, y = example(6)
    y[2] = -1
    kept = [i for i in range(6) if i != 2]
    pairs = [min(-math.log(softmax(logits[j].tolist())[y[k]]), 2.0) for j in kept for k in kept]
    g, n = generator(), 4000
    draws = [losses.peer_loss(logits, y, 1.0, 2.0, generator=g) for _ in range(n)]
    peer = losses.ce(logits, y) - torch.stack(draws).mean(0)
    assert (peer[kept] - np.mean(pairs)).abs().max() < 5 * np.std(pairs) / math.sqrt(n)
    assert peer[2] == 0
    for draw in draws[:50]:
        assert (losses.ce(logits, y) - draw).max() <= 2.0 + 1e-9


def test_all_ignored_gives_zero():
    logits, y = example(4)
    y = torch.full_like(y, -1)
    assert losses.peer_loss(logits, y, generator=generator()).abs().max() == 0
    assert losses.mean(losses.ce(logits, y), y) == 0


@pytest.mark.parametrize("shape", [(7, 5), (2, 128, 10), (6,), (9, 4), (40, 15), (40, 16), (0, 5)])
def test_log_softmax_is_that_of_torch_to_the_bit(shape):
    """Few classes go another way, which is faster: values and gradients are the same."""
    z = (5 * torch.randn(shape, generator=generator())).requires_grad_()
    weight = torch.randn(shape, generator=generator(1))
    ours, theirs = log_softmax(z), z.log_softmax(-1)
    assert torch.equal(ours, theirs)
    grads = [torch.autograd.grad((weight * part).sum(), z)[0] for part in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_random_order_is_any_order_alike():
    orders = torch.stack([random_order(3, g) for g in [generator()] for _ in range(6000)])
    assert orders.sort(1).values.eq(torch.arange(3)).all()
    count = (orders * torch.tensor([9, 3, 1])).sum(1).bincount(minlength=27)
    assert sorted(count[count > 0].tolist())[0] > 850 and (count > 0).sum() == 6


@pytest.mark.parametrize(("alpha", "n"), [(0.2, 4000), (1.0, 200_000), (4.0, 200_000)])
def test_symmetric_beta_law(alpha, n):
    """Of small alpha many draws are 1 but for rounding, which a larger sample would show."""
    draws = losses.symmetric_beta(alpha, generator(), (n,)).numpy()
    assert stats.kstest(draws, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_mixup():
    x = torch.arange(8.0)[:, None].expand(8, 3)
    y = torch.arange(8)
    mixed, first, second, lam = losses.mixup(x, y, 0.5, generator=generator())
    assert first is y and sorted(second.tolist()) == list(range(8)) and lam.shape == ()
    for i in range(8):
        expected = float(lam) * i + (1 - float(lam)) * int(second[i])
        np.testing.assert_allclose(mixed[i], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 16, 12), (1, 9, 9), (24,)])
@pytest.mark.parametrize("each", [False, True])
def test_fmix(shape, each):
    """Each value is the row's own or its partner's; the share of its own is lam."""
    n = 40
    x = torch.arange(1.0, n + 1).view(n, *[1] * len(shape)).expand(n, *shape)
    y = torch.arange(n)
    mixed, first, second, lam = losses.fmix(x, y, each=each, generator=generator(3))
    assert first is y and sorted(second.tolist()) == list(range(n))
    assert lam.shape == ((n,) if each else ())
    masks = []
    for i in range(n):
        if second[i] != i:
            mask = mixed[i] == x[i]
            assert torch.equal(mixed[i][~mask], x[second[i]][~mask])
            assert math.isclose(mask.float().mean(), float(lam[i] if each else lam), abs_tol=1e-6)
            assert len(shape) == 1 or torch.equal(mask, mask[:1].expand_as(mask))
            masks.append(mask)
    alike = all(torch.equal(mask, masks[0]) for mask in masks)
    assert alike != each
    again = losses.fmix(x, y, each=each, generator=generator(3))
    assert torch.equal(again[0], mixed) and torch.equal(again[3], lam)
    assert not torch.equal(losses.fmix(x, y, each=each, generator=generator(4))[0], mixed)
    soft = torch.eye(n)
    assert torch.equal(losses.fmix(x, soft, each=each, generator=generator(3))[2], soft[second])


def test_fmix_has_the_decay_of_the_paper():
    x, y = torch.rand(8, 1, 16, 16, generator=generator()), torch.arange(8)
    mixed = [
        losses.fmix(x, y, each=True, generator=generator(3), **own)[0]
        for own in ({}, {"decay": 3.0}, {"decay": 1.0})
    ]
    assert torch.equal(mixed[0], mixed[1]) and not torch.equal(mixed[0], mixed[2])


@pytest.mark.parametrize(("own", "decay"), [({}, 3.0), ({"decay": 1.5}, 1.5)])
def test_the_noise_of_fmix_falls_with_its_frequency(own, decay):
    """The slope of log amplitude over log frequency, along a row; 3 is the paper's."""
    images = low_frequency_noise(500, 32, 32, **own, generator=generator())
    amplitude = torch.fft.rfft2(images.double()).abs().square().mean(0).sqrt()[0, 1:16]
    frequency = torch.fft.rfftfreq(32)[1:16]
    slope = np.polyfit(np.log(frequency), np.log(amplitude), 1)[0]
    assert slope == pytest.approx(-decay, abs=0.05)


@pytest.mark.parametrize(("own", "alpha"), [({}, 1.0), ({"alpha": 0.5}, 0.5)])
def test_fmix_of_alpha(own, alpha):
    """1 is the paper's."""
    x, y = torch.zeros(4000, 40), torch.zeros(4000, dtype=torch.int64)
    lam = losses.fmix(x, y, each=True, generator=generator(), **own)[3]
    spread = stats.beta(alpha, alpha).var()
    assert abs(lam.mean() - 0.5) < 0.03 and abs(lam.var() - spread) < 0.1 * spread
    with pytest.raises(BadInput, match="alpha must be positive"):
        losses.fmix(x, y, 0.0, generator=generator())
    with pytest.raises(BadInput, match="not labels of pixels"):
        losses.fmix(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4), generator=generator())


@pytest.mark.parametrize("decay", [1.0, 3.0])
def test_fmix_masks_have_low_frequencies(decay):
    """Amplitudes fall as 1 / f^decay, so a mask is a few blobs and not single pixels."""
    noise = low_frequency_noise(400, 32, 32, decay, generator=generator())
    amplitude = torch.fft.fft2(noise.double()).abs().pow(2).mean(0).sqrt()
    f = torch.fft.fftfreq(32).double()
    radius = (f[:, None] ** 2 + f**2).sqrt()
    clear = (radius > 0) & (f != 0) & (f != -0.5)  # half of the plane is there once, not twice
    slope = np.polyfit(radius[clear].log(), amplitude[clear].log(), 1)[0]
    assert abs(slope + decay) < 0.05


def test_no_global_random_state_is_touched():
    logits, y = example()
    before = torch.get_rng_state()
    losses.mixup(logits, y, generator=generator())
    losses.fmix(logits, y, generator=generator())
    losses.fmix(logits[..., None, None], y, generator=generator())
    losses.peer_loss(logits, y, generator=generator())
    losses.noise_against_noise(logits, y, generator=generator())
    assert torch.equal(before, torch.get_rng_state())


# ------------------------------------------------------------------ with memory


def test_elr():
    logits, _ = example(3)
    logits[0, 1] += 30  # surer than is counted
    memory = torch.rand(3, K, generator=generator(), dtype=torch.float64) / K
    targets = losses.elr_target(memory, logits, beta=0.6)
    term = losses.elr(logits, targets)
    for i in range(3):
        p = [min(max(v, 1e-4), 1 - 1e-4) for v in softmax(logits[i].tolist())]
        t = [0.6 * float(memory[i, c]) + 0.4 * p[c] / sum(p) for c in range(K)]
        np.testing.assert_allclose(targets[i], t, atol=1e-12)
        expected = math.log(1 - sum(a * b for a, b in zip(t, p, strict=True)))
        np.testing.assert_allclose(term[i], expected, rtol=1e-10)
    held = logits.clone().requires_grad_()
    assert not losses.elr_target(memory, held).requires_grad


def test_elr_is_finite_after_thousand_confident_updates():
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    memory = torch.zeros(1, 3)
    for _ in range(1000):
        memory = losses.elr_target(memory, logits)
    term = losses.elr(logits, memory)
    (grad,) = torch.autograd.grad(term.sum(), logits)
    assert term.isfinite().all() and grad.isfinite().all()


def test_sop():
    logits, y = example(5)
    g = generator(4)
    u = torch.randn(5, 1, generator=g, dtype=torch.float64)
    v = torch.randn(5, K, generator=g, dtype=torch.float64)
    nll, error = losses.sop(logits, y, u, v)
    for i in range(5):
        p, label = softmax(logits[i].tolist()), int(y[i])
        best = p.index(max(p))
        moved, squares = [], 0.0
        for c in range(K):
            up = min(float(u[i, 0]) ** 2, 1.0) if c == label else 0.0
            down = 0.0 if c == label else min(float(v[i, c]) ** 2, 1.0)
            moved.append(max(p[c] + up - down, 1e-4))
            squares += ((c == best) + up - down - (c == label)) ** 2
        np.testing.assert_allclose(nll[i], -math.log(moved[label] / sum(moved)), rtol=1e-10)
        np.testing.assert_allclose(error[i], squares, rtol=1e-10, atol=1e-14)


def test_sop_trains_each_part_through_its_own_term():
    logits, y = example(5)
    logits.requires_grad_()
    u = torch.full((5, 1), 0.3, dtype=torch.float64, requires_grad=True)
    v = torch.full((5, K), 0.3, dtype=torch.float64, requires_grad=True)
    nll, error = losses.sop(logits, y, u, v)
    of_nll = torch.autograd.grad(nll.sum(), (logits, u, v), retain_graph=True, allow_unused=True)
    of_error = torch.autograd.grad(error.sum(), (logits, u, v), allow_unused=True)
    assert [g is not None for g in of_nll] == [True, True, False]
    assert [g is not None for g in of_error] == [False, True, True]
    assert of_error[2].abs().sum() > 0


# ------------------------------------------------------------------ properties

relabelled = ["ce", "gce_0.7", "mae", "symmetric_ce", "bootstrap_soft", "bootstrap_hard", "cores"]
relabelled += ["label_smoothing", "truncated_gce", "bi_tempered_0.5_2_0", "bi_tempered_0.3_0.6_0"]
non_negative = [n for n in CASES if not n.startswith(("cores", "truncated"))]
rows = st.lists(st.floats(-30, 30), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None)
@given(rows, st.data())
def test_relabelling_classes_commutes(row, data):
    order = data.draw(st.permutations(range(len(row))))
    y = data.draw(st.integers(0, len(row) - 1))
    logits = torch.tensor([row], dtype=torch.float64)
    for name in relabelled:
        fast, _ = CASES[name]
        before = fast(logits, torch.tensor([y]))
        after = fast(logits[:, order], torch.tensor([order.index(y)]))
        np.testing.assert_allclose(before, after, rtol=1e-7, atol=1e-9, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(rows, st.data())
def test_non_negative_and_bounded(row, data):
    y = torch.tensor([data.draw(st.integers(0, len(row) - 1))])
    logits = torch.tensor([row], dtype=torch.float64)
    for name in non_negative:
        assert CASES[name][0](logits, y).item() >= -1e-12, name
    assert losses.gce(logits, y, 0.5).item() <= 2 + 1e-12
    assert losses.mae(logits, y).item() <= 2 + 1e-12
    # -log_t1(p) <= 1 / (1 - t1), and the sum of p^(2-t1) is at most 1
    assert losses.bi_tempered(logits, y, 0.5, 2.0).item() <= 2 + 1e-9


@settings(max_examples=30, deadline=None)
@given(rows, st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_gce_falls_with_q(row, a, b):
    logits, y = torch.tensor([row], dtype=torch.float64), torch.tensor([0])
    low, high = losses.gce(logits, y, min(a, b)), losses.gce(logits, y, max(a, b))
    assert low.item() >= high.item() - 1e-12


# ------------------------------------------------------------------ modules and reductions

MODULES = {
    losses.CE: (losses.ce, {}),
    losses.GCE: (losses.gce, {"q": 0.4}),
    losses.MAE: (losses.mae, {}),
    losses.BiTempered: (losses.bi_tempered, {"t1": 0.6, "t2": 1.5}),
    losses.SymmetricCE: (losses.symmetric_ce, {"alpha": 2.0}),
    losses.BootstrapSoft: (losses.bootstrap_soft, {"beta": 0.7}),
    losses.BootstrapHard: (losses.bootstrap_hard, {"beta": 0.7}),
    losses.LabelSmoothing: (losses.label_smoothing, {"smoothing": 0.3}),
    losses.Cores: (losses.cores, {"beta": 1.0}),
}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_module_is_its_function_reduced(module):
    function, fields = MODULES[module]
    logits, y = example(6)
    y[0] = -1
    expected = function(logits, y, **fields)
    np.testing.assert_allclose(module(**fields, reduction="none")(logits, y), expected)
    np.testing.assert_allclose(module(**fields, reduction="sum")(logits, y), expected.sum())
    np.testing.assert_allclose(module(**fields)(logits, y), expected.sum() / 5)
    for name, value in fields.items():
        assert f"{name}={value}" in repr(module(**fields))


def test_modules_that_draw():
    logits, y = example(6)
    loss = losses.NoiseAgainstNoise(0.5, generator=generator(1))
    expected = losses.noise_against_noise(logits, y, 0.5, generator=generator(1)).mean()
    np.testing.assert_allclose(loss(logits, y), expected)
    loss = losses.PeerLoss(generator=generator(1))
    expected = losses.peer_loss(logits, y, generator=generator(1)).mean()
    np.testing.assert_allclose(loss(logits, y), expected)


def test_bad_settings():
    logits, y = example()
    with pytest.raises(TypeError, match="power"):
        losses.GCE(power=0.7)
    with pytest.raises(BadInput, match="reduction"):
        losses.GCE(reduction="median")
    for strange in (-1, 0, 1.5, math.nan):
        with pytest.raises(BadInput, match=rf"^q of GCE is {strange}, .* 0 < q <= 1.$"):
            losses.GCE(q=strange)
    with pytest.raises(BadInput, match="beta of SymmetricCE is -1"):
        losses.SymmetricCE(0.5, -1)
    with pytest.raises(BadInput, match="q must be"):
        losses.gce(logits, y, 0.0)
    with pytest.raises(BadInput, match="t1 must be"):
        losses.bi_tempered(logits, y, 1.5, 2.0)
    with pytest.raises(BadInput, match="positive"):
        losses.tempered_softmax(logits, 0.0)
    with pytest.raises(BadInput, match="alpha"):
        losses.symmetric_beta(0.0, generator())


def test_weighted_mean():
    nll = torch.tensor([1.0, math.inf, 3.0])
    assert losses.weighted_mean(nll, torch.tensor([1.0, 0.0, 3.0])) == 2.5
    assert losses.weighted_mean(nll, torch.zeros(3)) == 0


def test_mean_leaves_out_what_is_ignored_whatever_its_loss_is():
    nll, y = torch.tensor([1.0, math.inf, 3.0], requires_grad=True), torch.tensor([0, -1, 2])
    value = losses.mean(nll, y)
    value.backward()
    assert value == 2 and nll.grad.tolist() == [0.5, 0, 0.5]
    assert losses.mean(nll, torch.full((3,), -1)) == 0


@pytest.mark.parametrize("axes", [(), (7,), (3, 4, 5)])
def test_nll_of_label_is_minus_the_value_at_the_label(axes):
    values = torch.randn(*axes, 6, generator=generator()).log_softmax(-1).requires_grad_()
    y = torch.randint(-1, 6, axes, generator=generator())
    slow = losses.of_label(values, y).neg().masked_fill(y == -1, 0.0)
    fast = losses.nll_of_label(values, y)
    assert torch.equal(fast, slow)
    share = torch.rand(axes, generator=generator())
    grads = [torch.autograd.grad(each, values, share)[0] for each in (fast, slow)]
    assert torch.equal(*grads)


PER_LABEL = [losses.ce, losses.gce, losses.mae, losses.label_smoothing, losses.bootstrap_soft,
             losses.bootstrap_hard, losses.symmetric_ce, losses.bi_tempered]  # fmt: skip


@pytest.mark.parametrize("loss", PER_LABEL)
def test_labels_that_do_not_fit_are_refused(loss):
    """Fewer labels than rows left rows out; -100, torch's own way to ignore, counted as class 0."""
    logits = torch.randn(4, 3)
    with pytest.raises(BadInput, match=r"\[3\] do not fit values of shape \[4, 3\]"):
        loss(logits, torch.zeros(3, dtype=torch.long))
    for strange in (3, -2, -100):
        with pytest.raises(BadInput, match=f"label {strange} is none of the 3 classes 0 to 2"):
            loss(logits, torch.tensor([0, -1, 2, strange]))


def test_losses_and_heads_need_torch_alone():
    """Public names are imported when they are used: sklearn and pandas take seconds."""
    code = (
        "import sys\nfrom ytilde import heads, losses\n"
        "print([m for m in ('pandas', 'scipy', 'sklearn', 'PIL', 'rich') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_public_name_is_there():
    for name in ytilde.__all__:
        assert getattr(ytilde, name) is not None
    assert dir(ytilde) == sorted(ytilde.__all__)
    for name in ("loses", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(ytilde, name)


def test_modules_are_there_without_being_imported():
    """As they were when `import ytilde` imported them all."""
    code = "import ytilde; print(ytilde.data.IGNORE, ytilde.readers.read, ytilde.export.to_onnx)"
    subprocess.run([sys.executable, "-c", code], check=True)
