"""The causal model: its terms against loops and integrals in float64, its networks by shape."""

import math

import pytest
import torch
from torch import nn

from ytilde import generative as G
from ytilde.data import BadInput


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed), dtype=torch.float64)


def build(shape, k, z_dim=25, **options):
    torch.manual_seed(0)
    return G.CausalModel(shape, k, z_dim, **options)


# --- the terms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["l1", "mse"])
def test_terms_against_loops(distance):
    b, k, j = 4, 3, 2
    x, x_hat = doubles(2, b, 1, 2, 3)
    mu, logvar = doubles(2, b, j, seed=1)
    noisy, logits = doubles(2, b, k, seed=2) * 3
    y = torch.tensor([2, 0, -1, 1])
    out = G.CausalOutput(logits, mu, mu, logvar, x_hat, noisy)
    terms = G.elbo_terms(out, x, y, logits, distance)
    for i in range(b):
        gap = [abs(p - q) for p, q in zip(x[i].flatten(), x_hat[i].flatten(), strict=True)]
        rec = sum(d if distance == "l1" else d**2 for d in gap) / 6
        assert terms.reconstruction[i].item() == pytest.approx(float(rec))
        e = [math.exp(v) for v in noisy[i]]
        nll = 0 if y[i] < 0 else -math.log(e[y[i]] / sum(e))
        assert terms.noisy_nll[i].item() == pytest.approx(nll)
        q = [math.exp(v) for v in logits[i]]
        q = [v / sum(q) for v in q]
        assert terms.negative_entropy[i].item() == pytest.approx(sum(v * math.log(v) for v in q))
        kl = 0.0
        for m, lv in zip(mu[i].tolist(), logvar[i].tolist(), strict=True):
            kl += -0.5 * (1 + lv - m**2 - math.exp(lv))
        assert terms.kl[i].item() == pytest.approx(kl)


def test_kl_is_the_integral_and_per_sample():
    mu, logvar = torch.tensor([[0.7], [-1.2]]).double(), torch.tensor([[-0.5], [0.8]]).double()
    z = torch.linspace(-25, 25, 100_001, dtype=torch.float64)
    q, p = torch.distributions.Normal(mu, (logvar / 2).exp()), torch.distributions.Normal(0.0, 1.0)
    integral = torch.trapezoid(q.log_prob(z).exp() * (q.log_prob(z) - p.log_prob(z)), z)
    torch.testing.assert_close(G.gaussian_kl(mu, logvar), integral)
    assert G.gaussian_kl(torch.zeros(128, 25), torch.zeros(128, 25)).tolist() == [0.0] * 128
    torch.testing.assert_close(G.gaussian_kl(mu[:1], logvar[:1]), integral[:1])


def test_negative_entropy_limits():
    assert G.negative_entropy(torch.zeros(2, 5)).tolist() == pytest.approx([-math.log(5)] * 2)
    sure = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    G.negative_entropy(sure).sum().backward()
    assert G.negative_entropy(sure).item() == 0 and sure.grad.isfinite().all()


# --- draws --------------------------------------------------------------------------------------


def test_gumbel_arg_max_has_the_classifiers_distribution():
    logits = torch.tensor([1.0, 0.0, -1.0]).expand(40_000, 3)
    for sampling in ("gumbel", "st"):
        draw = G.sample_label(logits, gen(), sampling)
        torch.testing.assert_close(draw.sum(-1), torch.ones(len(draw)))
        share = draw.argmax(-1).bincount(minlength=3) / len(draw)
        torch.testing.assert_close(share, logits[0].softmax(-1), atol=0.01, rtol=0)


def test_straight_through_is_one_hot_with_the_soft_gradient():
    logits = doubles(5, 4).requires_grad_()
    weight = doubles(5, 4, seed=1)
    hard, soft = (G.sample_label(logits, gen(), s, tau=0.7) for s in ("st", "gumbel"))
    assert torch.equal(hard.detach().sort(-1).values[:, -1], torch.ones(5).double())
    assert hard.detach().sort(-1).values[:, :-1].abs().max() < 1e-15
    assert torch.equal(hard.argmax(-1), soft.argmax(-1))
    grads = [torch.autograd.grad((v * weight).sum(), logits)[0] for v in (hard, soft)]
    torch.testing.assert_close(grads[0], grads[1])


def test_softmax_sampling_and_temperature():
    logits = doubles(3, 4)
    expected = (logits / 2).softmax(-1)
    torch.testing.assert_close(G.sample_label(logits, gen(), "softmax", 2.0), expected)
    torch.testing.assert_close(G.sample_label(logits, gen(), "softmax"), logits.softmax(-1))
    cold = G.sample_label(logits, gen(), "gumbel", 1e-4)
    torch.testing.assert_close(cold, G.sample_label(logits, gen(), "st"))


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_gumbel_noise_is_finite_at_the_ends(monkeypatch, u):
    monkeypatch.setattr(torch, "rand", lambda shape, **kw: torch.full(shape, u))
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    draw = G.sample_label(logits, gen())
    draw.square().sum().backward()
    assert draw.isfinite().all() and logits.grad.isfinite().all()


@pytest.mark.parametrize("side", range(3, 33))
def test_pictures_are_halved_until_two_pixels_are_left(side):
    widths, _ = G._stages(side, max(1, side - 2))
    assert G._coarse(side, len(widths)) == 2


def test_latent_noise():
    mu, logvar = torch.full((50_000, 2), 3.0), torch.full((50_000, 2), 2 * math.log(0.5))
    z = G.sample_latent(mu, logvar, gen())
    assert z.mean().item() == pytest.approx(3, abs=0.01)
    assert z.std().item() == pytest.approx(0.5, abs=0.01)
    z = G.sample_latent(mu, logvar, gen(), "uniform")
    assert z.min() >= 3 and z.max() < 3.5 and z.mean().item() == pytest.approx(3.25, abs=0.01)


# --- a toy with two classes and one dimension, where integrals can be written out ---------------

EPS = torch.linspace(-7, 7, 281, dtype=torch.float64)  # nodes of the noise in z


class Toy:
    """x in R near -2 or 2, labels flipped with probability 0.3; p(x|y,z) Laplace of scale 1."""

    def __init__(self, sampling="gumbel"):
        self.model = build((1,), 2, z_dim=1, sampling=sampling).double()
        net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
        self.classifier = net.double()
        clean = torch.arange(200) % 2
        self.x = (clean * 4.0 - 2)[:, None] + 0.5 * doubles(200, 1)
        self.y = (clean + (torch.rand(200, generator=gen(1)) < 0.3)) % 2
        self.parameters = [*self.model.parameters(), *self.classifier.parameters()]

    def log_joint(self, x, y, i, z):
        """log p(y = i) p(x | i, z) p(y~ | i, x_hat), all but p(z); x [B, 1], z [B, S] -> [B, S]."""
        b, s = z.shape
        label = torch.zeros(b * s, 2, dtype=torch.float64)
        label[:, i] = 1
        x_hat = self.model.decode(label, z.reshape(-1, 1))
        noisy = self.model.noisy(x_hat, label).log_softmax(-1)
        log_x = -(x.expand(b, s).reshape(-1, 1) - x_hat).abs().squeeze(1) - math.log(2)
        log_y = noisy.gather(1, y[:, None].expand(b, s).reshape(-1, 1)).squeeze(1)
        return (math.log(0.5) + log_x + log_y).view(b, s)

    def integral(self, x, y):
        """ELBO(x, y~) of appendix A, eq. 1: the written-out sum over y and integral over z."""
        log_q = self.classifier(x).log_softmax(-1)
        total = torch.zeros(len(x), dtype=torch.float64)
        for i in range(2):
            label = torch.zeros(len(x), 2, dtype=torch.float64)
            label[:, i] = 1
            mu, logvar = self.model.encode(x, label)
            sd = (logvar / 2).exp()
            z = mu + sd * EPS
            log_qz = -0.5 * ((z - mu) / sd) ** 2 - sd.log() - 0.5 * math.log(2 * math.pi)
            log_pz = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
            inner = self.log_joint(x, y, i, z) + log_pz - log_qz - log_q[:, i : i + 1]
            # dz = sd d(eps): trapezoid over the nodes
            expectation = torch.trapezoid(log_qz.exp() * sd * inner, EPS)
            total = total + log_q[:, i].exp() * expectation
        return total

    def importance(self, draws, seed):
        """The importance-sampled estimate of log p(x, y~), mean over the data."""
        with torch.no_grad():
            log_q = self.classifier(self.x).log_softmax(-1)
            u = torch.rand(len(self.x), draws, generator=gen(seed), dtype=torch.float64)
            drawn = (u < log_q[:, 1:].exp()).long()
            weights = []
            for i in range(2):
                label = torch.zeros(len(self.x), 2, dtype=torch.float64)
                label[:, i] = 1
                mu, logvar = self.model.encode(self.x, label)
                q = torch.distributions.Normal(mu, (logvar / 2).exp())
                z = mu + (logvar / 2).exp() * doubles(len(self.x), draws, seed=seed + 1)
                prior = torch.distributions.Normal(0.0, 1.0).log_prob(z)
                log_w = self.log_joint(self.x, self.y, i, z) + prior - q.log_prob(z)
                weights.append(log_w - log_q[:, i : i + 1])
            log_w = torch.where(drawn == 1, weights[1], weights[0])
            return (log_w.logsumexp(1) - math.log(draws)).mean().item()


def test_terms_add_up_to_the_written_out_integral_with_its_gradient():
    toy = Toy()
    x, y = toy.x[:3], toy.y[:3]
    expected = toy.integral(x, y)
    # Ours: the terms at every y and every node of the noise, averaged over q.
    density = torch.exp(-0.5 * EPS**2) / math.sqrt(2 * math.pi)
    logits = toy.classifier(x)
    bound = torch.zeros(3, dtype=torch.float64)
    for i in range(2):
        label = torch.zeros(3, 2, dtype=torch.float64)
        label[:, i] = 1
        mu, logvar = toy.model.encode(x, label)
        parts = []
        for e in EPS:
            z = mu + (logvar / 2).exp() * e
            x_hat = toy.model.decode(label, z)
            out = G.CausalOutput(label, z, mu, logvar, x_hat, toy.model.noisy(x_hat, label))
            terms = G.elbo_terms(out, x, y, logits)
            parts.append(terms.reconstruction + terms.noisy_nll)
        over_z = torch.trapezoid(density * torch.stack(parts, -1), EPS)
        bound = bound + logits.softmax(-1)[:, i] * (over_z + terms.kl)
    bound = -(bound + terms.negative_entropy) - math.log(2) - math.log(2)  # Laplace, log K
    torch.testing.assert_close(bound, expected, atol=1e-8, rtol=0)
    ours = torch.autograd.grad(bound.sum(), toy.parameters)
    theirs = torch.autograd.grad(expected.sum(), toy.parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-6)
    assert all(g.abs().max() > 0 for g in ours)


def test_expected_terms_are_the_mean_of_the_terms_over_all_labels():
    model = build((3,), 4, z_dim=2).double()
    x, logits, y = doubles(2, 3), doubles(2, 4, seed=1), torch.tensor([3, -1])
    got = G.expected_terms(model, x, y, logits, gen(4))
    noise = doubles(8, 2, seed=4)  # the same draws: rows are examples, then labels
    for b in range(2):
        odds = logits[b].exp()
        q, sums = (odds / odds.sum()).tolist(), [0.0, 0.0, 0.0]
        for i in range(4):
            e = torch.zeros(1, 4, dtype=torch.float64)
            e[0, i] = 1
            mu, logvar = model.encode(x[b : b + 1], e)
            z = mu + (logvar / 2).exp() * noise[4 * b + i]
            x_hat = model.decode(e, z)
            out = G.CausalOutput(e, z, mu, logvar, x_hat, model.noisy(x_hat, e))
            terms = G.elbo_terms(out, x[b : b + 1], y[b : b + 1], e)
            for t, term in enumerate((terms.reconstruction, terms.noisy_nll, terms.kl)):
                sums[t] += q[i] * term.item()
        assert got.reconstruction[b].item() == pytest.approx(sums[0])
        assert got.noisy_nll[b].item() == pytest.approx(sums[1])
        assert got.kl[b].item() == pytest.approx(sums[2])
        assert got.negative_entropy[b].item() == pytest.approx(sum(v * math.log(v) for v in q))


def test_one_hot_draws_estimate_the_bound_without_bias():
    toy = Toy(sampling="st")
    with torch.no_grad():
        x, y = (v[:1].expand(20_000, *v.shape[1:]) for v in (toy.x, toy.y))
        logits = toy.classifier(x)
        terms = G.elbo_terms(toy.model(x, logits, gen()), x, y, logits)
        estimate = -sum(terms) - 2 * math.log(2)
        error = 4 * estimate.std().item() / math.sqrt(len(x))
        assert estimate.mean().item() == pytest.approx(
            toy.integral(toy.x[:1], toy.y[:1]).item(), abs=error
        )


def test_minimising_the_loss_raises_the_likelihood():
    toy = Toy()
    before = toy.importance(100, seed=5)
    optimizer = torch.optim.Adam(toy.parameters, lr=5e-3)
    generator = gen(2)
    for _ in range(80):
        logits = toy.classifier(toy.x)
        out = toy.model(toy.x, logits, generator)
        loss = sum(G.elbo_terms(out, toy.x, toy.y, logits)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = toy.importance(100, seed=5)
    assert after > before + 0.5
    with torch.no_grad():  # and the bound is one
        assert toy.integral(toy.x, toy.y).mean().item() < after


# --- networks -----------------------------------------------------------------------------------


SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 17, 40), (3, 1, 5), (7,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_goes_through(shape):
    k, b = 4, 3
    model = build(shape, k, z_dim=6)
    x = torch.rand(b, *shape, generator=gen())
    logits = torch.randn(b, k, generator=gen(1), requires_grad=True)
    out = model(x, logits, gen(2))
    assert out.x_hat.shape == x.shape and out.mu.shape == out.z.shape == (b, 6)
    assert out.noisy_logits.shape == out.y_hat.shape == (b, k)
    terms = G.elbo_terms(out, x, torch.tensor([0, 3, -1]), logits)
    assert all(t.shape == (b,) for t in terms) and terms.noisy_nll[2] == 0
    sum(t.mean() for t in terms).backward()
    assert logits.grad.abs().sum() > 0  # q(Y|X)
    for net in (model.encoder, model.decoder, model.noisy):
        assert all(p.grad is not None for p in net.parameters())
        assert sum(p.grad.abs().sum() for p in net.parameters()) > 0
    model.eval()
    T = model.transition(x)
    assert T.shape == (b, k, k)
    torch.testing.assert_close(T.sum(-1), torch.ones(b, k))
    torch.testing.assert_close(model.transition(x[1:2]), T[1:2], atol=1e-5, rtol=1e-4)
    assert model.generate(2, 5, gen()).shape == (5, *shape)
    assert torch.equal(model.reconstruct(x, logits), model.reconstruct(x, logits))
    if len(shape) == 3:
        assert out.x_hat.min() > 0 and out.x_hat.max() < 1


def test_large_images_get_five_wide_stages():
    def convolutions(net):
        return [m for m in net.body if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]

    for shape, widths, kernel in [
        ((1, 28, 28), [32, 64, 128, 256], (3, 3)),
        ((3, 32, 32), [32, 64, 128, 256], (3, 3)),
        ((3, 224, 224), [32, 64, 128, 256, 512], (7, 7)),
    ]:
        model = build(shape, 2, z_dim=3)
        for net in (model.encoder, model.noisy):
            assert [c.out_channels for c in convolutions(net)] == widths
            assert {c.kernel_size for c in convolutions(net)} == {kernel}
        *up, last = convolutions(model.decoder)
        assert [c.in_channels for c in up] == widths[::-1] and last.out_channels == shape[0]
    with torch.no_grad():
        out = model.eval()(torch.rand(1, 3, 224, 224), torch.zeros(1, 2), gen())
    assert out.x_hat.shape == (1, 3, 224, 224)


def test_transition_against_one_example_at_a_time():
    model = build((3,), 4, z_dim=2).double()
    x = doubles(2, 3)
    T = model.transition(x)
    for b in range(2):
        for i in range(4):
            e = torch.zeros(1, 4, dtype=torch.float64)
            e[0, i] = 1
            hidden = model.encoder(x[b : b + 1], e)
            x_hat = model.decoder(e, hidden[:, :2])
            odds = model.noisy(x_hat, e)[0].exp()
            torch.testing.assert_close(T[b, i], odds / odds.sum())


def test_the_label_and_the_latent_reach_every_network():
    model = build((1, 12, 12), 3, z_dim=4).eval()
    x, z = torch.rand(1, 1, 12, 12, generator=gen()), torch.randn(1, 4, generator=gen())
    one, two = torch.eye(3)[:1], torch.eye(3)[1:2]
    assert not torch.allclose(model.encode(x, one)[0], model.encode(x, two)[0], atol=1e-4)
    assert not torch.allclose(model.decode(one, z), model.decode(two, z), atol=1e-4)
    assert not torch.allclose(model.decode(one, z), model.decode(one, z + 1), atol=1e-4)
    assert not torch.allclose(model.noisy(x, one), model.noisy(x, two), atol=1e-4)
    assert not torch.allclose(model.noisy(x, one), model.noisy(1 - x, one), atol=1e-4)


@pytest.mark.parametrize("detach", [False, True])
def test_detach_cuts_the_noisy_loss_from_the_reconstruction(detach):
    model = build((5,), 3, detach=detach)
    x, logits = torch.randn(4, 5, generator=gen()), torch.zeros(4, 3, requires_grad=True)
    out = model(x, logits, gen())
    G.elbo_terms(out, x, torch.tensor([0, 1, 2, 0]), logits).noisy_nll.sum().backward()
    reached = any(p.grad is not None for p in model.decoder.parameters())
    assert reached is not detach
    assert logits.grad.abs().sum() > 0


def test_the_log_variance_is_bounded():
    model = build((2,), 2, z_dim=1)
    logvar = model.encode(torch.full((1, 2), 1e6), torch.eye(2)[:1])[1]
    assert logvar.abs().item() <= 10
    assert G.gaussian_kl(torch.zeros(1, 1), logvar).isfinite().all()


def test_chance_comes_from_the_generator_alone():
    model = build((3,), 2)
    x, logits = torch.randn(4, 3, generator=gen()), torch.zeros(4, 2)
    before = torch.get_rng_state()
    one, same, other = (model(x, logits, gen(s)) for s in (1, 1, 2))
    drawn = model.generate(0, 3, gen(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.x_hat, same.x_hat) and not torch.equal(one.z, other.z)
    assert torch.equal(drawn, model.generate(0, 3, gen(1)))


def test_low_precision_ends_at_the_terms():
    model = build((1, 28, 28), 3)
    x = torch.rand(4, 1, 28, 28, generator=gen())
    with torch.autocast("cpu", torch.bfloat16):
        logits = torch.full((4, 3), 200.0, dtype=torch.bfloat16)
        out = model(x, logits, gen())
        terms = G.elbo_terms(out, x, torch.tensor([0, 1, 2, 0]), logits)
    assert all(t.dtype == torch.float32 and t.isfinite().all() for t in terms)
    assert out.x_hat.dtype == torch.float32


# --- the posterior that sees the observed label -------------------------------------------------


def test_the_clean_posterior_is_the_marginal():
    table, noisy = doubles(2, 9), doubles(2, 3, seed=1)
    got = G.exact_posterior(table, noisy)
    table, noisy = table.view(2, 3, 3).exp(), noisy.exp()
    for b in range(2):
        for k in range(3):
            total = 0.0
            for j in range(3):  # footnote 2: sum_j q(Y=k | Y~=j, x) q(Y~=j | x)
                given_j = table[b, j, k] / table[b, j].sum()
                assert got.log_given[b, j, k].exp().item() == pytest.approx(given_j.item())
                total += (given_j * noisy[b, j] / noisy[b].sum()).item()
            assert got.log_clean[b, k].exp().item() == pytest.approx(total)


def test_given_picks_the_observed_row_or_the_marginal():
    got = G.exact_posterior(doubles(3, 9), doubles(3, 3, seed=1))
    given = got.given(torch.tensor([2, 0, -1]))
    torch.testing.assert_close(given[0], got.log_given[0, 2])
    torch.testing.assert_close(given[1], got.log_given[1, 0])
    torch.testing.assert_close(given[2], got.log_clean[2])


def test_only_its_own_loss_moves_the_noisy_posterior():
    table, noisy = doubles(3, 9).requires_grad_(), doubles(3, 3, seed=1).requires_grad_()
    G.exact_posterior(table, noisy).log_clean[:, 0].sum().backward()
    assert noisy.grad is None and table.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: G.CausalModel((2, 2), 3), "flatten"),
        (lambda: G.sample_label(torch.zeros(1, 2), gen(), "hard"), "gumbel"),
        (lambda: G.sample_latent(torch.zeros(1), torch.zeros(1), gen(), "cauchy"), "uniform"),
        (lambda: G.reconstruction_error(torch.zeros(1, 1), torch.zeros(1, 1), "l2"), "mse"),
    ],
)
def test_unknown_names_are_refused(call, message):
    with pytest.raises(BadInput, match=message):
        call()
