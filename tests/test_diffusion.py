"""The diffusion against closed forms for Gaussian data, in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ytilde.data import BadInput
from ytilde.diffusion import DENOISERS, PCA, Denoiser, Diffusion, Schedule


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def ints(*values):
    return torch.tensor(values)


class Exact(nn.Module):
    """E[w_0 | w_m] for w_0 ~ N(mu, sd^2): the best denoiser there is."""

    def __init__(self, schedule, mu, sd):
        super().__init__()
        self.alpha_bar, self.mu, self.sd = schedule.alpha_bar, mu, sd

    def forward(self, w, features, m):
        ab = self.alpha_bar[m].view(-1, 1)
        gain = ab.sqrt() * self.sd**2 / (ab * self.sd**2 + 1 - ab)
        return self.mu + gain * (w - ab.sqrt() * self.mu)


def exact_model(kind, steps, mu, sd, **options):
    """The exact denoiser's diffusion for the target N(mu, sd^2)."""
    schedule = Schedule(kind, steps)
    standardised = options.get("standardise", True)
    denoiser = Exact(schedule, 0.0, 1.0) if standardised else Exact(schedule, mu, sd)
    model = Diffusion(denoiser, schedule, (1,), 1, **options).double()
    data = torch.tensor([[mu - sd], [mu + sd]], dtype=torch.float64)
    model.measure(data, torch.zeros(2, 1))
    return model


def ddim(*args, **options):
    """Mean and sd of DDIM's result: it is affine in the start, so two draws tell them exactly."""
    w = exact_model(*args, **options).sample(torch.zeros(2, 1), generator=gen()).flatten()
    start = torch.randn(2, 1, generator=gen(), dtype=torch.float64).flatten()
    sd = (w[1] - w[0]) / (start[1] - start[0])
    return (w[0] - sd * start[0]).item(), sd.item()


def ancestral(*args, n=30_000, **options):
    """The same for ancestral sampling, from n draws."""
    w = exact_model(*args, **options).sample(torch.zeros(1, 1), n, eta=1.0, generator=gen())
    assert w.shape == (1, n, 1) and w.dtype == torch.float64
    return w.mean().item(), w.std().item()


# --- schedule -----------------------------------------------------------------------------------


def test_the_papers_schedule_keeps_the_data():
    alpha_bar = 1.0
    for i in range(10):
        alpha_bar *= 1 - (1e-4 + i * (0.02 - 1e-4) / 9)
    assert Schedule("paper", 10).alpha_bar[-1].item() == pytest.approx(alpha_bar, abs=1e-12)
    assert alpha_bar == pytest.approx(0.9037, abs=5e-5)
    assert Schedule("paper", 1000).alpha_bar[-1].item() == pytest.approx(4e-5, rel=0.02)


def test_cosine_and_respaced_follow_their_definitions():
    cosine = Schedule("cosine", 10).alpha_bar
    for m in range(10):
        f = math.cos((m / 10 + 0.008) / 1.008 * math.pi / 2) ** 2
        assert cosine[m].item() == pytest.approx(f / math.cos(0.008 / 1.008 * math.pi / 2) ** 2)
    assert cosine[10].item() == pytest.approx(0.001 * cosine[9].item())  # beta cut at 0.999
    respaced, full = Schedule("respaced", 10), Schedule("paper", 1000)
    torch.testing.assert_close(respaced.alpha_bar, full.alpha_bar[::100])
    beta = 1 - respaced.alpha_bar[1:] / respaced.alpha_bar[:-1]
    assert beta[0].item() == pytest.approx(0.10, abs=0.005)
    assert beta[-1].item() == pytest.approx(0.85, abs=0.005)


@given(st.sampled_from(["paper", "cosine", "respaced"]), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_alpha_bar_falls_from_one_and_stays_positive(kind, steps):
    ab = Schedule(kind, steps).alpha_bar
    assert len(ab) == steps + 1 and ab[0] == 1 and ab[-1] > 0 and (ab.diff() < 0).all()


def test_q_sample_is_the_chain_of_single_steps():
    # Eq. 3 applied m times to a known w_0: mean and variance of the Gaussian chain.
    schedule = Schedule("cosine", 7)
    ab = schedule.alpha_bar
    mean, variance = 1.5, 0.0
    for m in range(1, 8):
        beta = 1 - (ab[m] / ab[m - 1]).item()
        mean, variance = math.sqrt(1 - beta) * mean, (1 - beta) * variance + beta
        w0 = torch.full((2, 1), 1.5, dtype=torch.float64)
        w = schedule.q_sample(w0, ints(m, m), torch.tensor([[0.0], [1.0]]).double())
        assert w[0].item() == pytest.approx(mean)
        assert (w[1] - w[0]).item() ** 2 == pytest.approx(variance)


@pytest.mark.parametrize(("m", "s"), [(1, 0), (5, 4), (10, 9), (8, 3)])
def test_posterior_against_bayes_on_a_grid(m, s):
    schedule = Schedule("respaced", 10)
    w0, w = 0.7, -0.4
    ab_m, ab_s = schedule.alpha_bar[m].item(), schedule.alpha_bar[s].item()
    mean, variance = schedule.posterior(
        *torch.tensor([[[w0]], [[w]]], dtype=torch.float64), ints(m), ints(s)
    )
    if s == 0:
        assert (mean.item(), variance.item()) == (pytest.approx(w0), 0)
        return
    # p(w_s | w_m, w_0) is proportional to N(w_s; sqrt(ab_s) w_0, 1 - ab_s) N(w_m; sqrt(a) w_s, 1-a)
    grid = torch.linspace(-8, 8, 40_001, dtype=torch.float64)
    a = ab_m / ab_s
    log_p = -((grid - math.sqrt(ab_s) * w0) ** 2) / (2 * (1 - ab_s))
    log_p -= (w - math.sqrt(a) * grid) ** 2 / (2 * (1 - a))
    p = log_p.softmax(0)
    assert mean.item() == pytest.approx((p * grid).sum().item(), abs=1e-9)
    spread = (p * (grid - (p * grid).sum()) ** 2).sum().item()
    assert variance.item() == pytest.approx(spread, abs=1e-9)


@given(st.floats(-4, 4), st.floats(-4, 4), st.integers(1, 10), st.sampled_from(["eps", "v", "x0"]))
@settings(max_examples=60, deadline=None)
def test_predictions_say_the_same(w0, eps, m, kind):
    schedule = Schedule("cosine", 10)
    w0, eps = (torch.tensor([[v]], dtype=torch.float64) for v in (w0, eps))
    w = schedule.q_sample(w0, ints(m), eps)
    value = schedule.from_x0(w0, w, ints(m), kind)
    ab = schedule.alpha_bar[m]
    expected = {"eps": eps, "v": ab.sqrt() * eps - (1 - ab).sqrt() * w0, "x0": w0}[kind]
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(schedule.to_x0(value, w, ints(m), kind), w0, atol=1e-9, rtol=0)


def test_step_is_ddim_at_eta_0_and_the_posterior_at_eta_1():
    schedule = Schedule("cosine", 10)
    w0, w, noise = torch.randn(3, 4, 2, 2, generator=gen(), dtype=torch.float64)
    m, s = ints(10, 7, 4, 1), ints(6, 6, 3, 0)
    mean, variance = schedule.posterior(w0, w, m, s)
    ancestral = schedule.step(w0, w, m, s, 1.0, noise)
    torch.testing.assert_close(ancestral, mean + variance.sqrt() * noise)
    for i in range(4):
        ab_m, ab_s = schedule.alpha_bar[m[i]], schedule.alpha_bar[s[i]]
        eps = (w[i] - ab_m.sqrt() * w0[i]) / (1 - ab_m).sqrt()
        expected = ab_s.sqrt() * w0[i] + (1 - ab_s).sqrt() * eps
        torch.testing.assert_close(schedule.step(w0, w, m, s, 0.0, noise)[i], expected)


def test_path():
    assert Schedule("cosine", 4).path() == [4, 3, 2, 1, 0]
    assert Schedule("cosine", 1000).path(4) == [1000, 750, 500, 250, 0]
    with pytest.raises(BadInput, match="take fewer"):
        Schedule("cosine", 4).path(5)


# --- the sampler with an exact denoiser ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["cosine", "respaced"])
def test_ddim_returns_the_target_at_100_steps(kind):
    assert ddim(kind, 100, -2.0, 0.3) == pytest.approx((-2.0, 0.3), rel=0.02)


@pytest.mark.parametrize(
    ("sampler", "kind", "sd"),
    [
        (ddim, "cosine", 0.2652),
        (ddim, "respaced", 0.2488),
        (ancestral, "cosine", 0.247),
        (ancestral, "respaced", 0.222),
    ],
)
def test_what_ten_steps_give(sampler, kind, sd):
    # The mean is right; 10 steps under-disperse, which averaging T over draws does not mind.
    tolerance = 1e-4 if sampler is ddim else 0.004
    assert sampler(kind, 10, -2.0, 0.3) == pytest.approx((-2.0, sd), abs=tolerance)


def test_ten_ddim_steps_lose_the_product_of_cosines():
    # For standardised Gaussian data every w_m is N(0, 1) and a step multiplies by cos of an angle.
    ab = Schedule("cosine", 10).alpha_bar.tolist()
    factor = 1.0
    for m in range(10, 0, -1):
        factor *= math.sqrt(ab[m] * ab[m - 1]) + math.sqrt((1 - ab[m]) * (1 - ab[m - 1]))
    assert ddim("cosine", 10, -2.0, 0.3)[1] == pytest.approx(0.3 * factor, rel=1e-9)


@pytest.mark.parametrize(
    ("target", "wrong"), [((-2.0, 0.3), (-1.08, 0.52)), ((-4.5, 0.5), (-1.34, 0.77))]
)
def test_the_papers_schedule_is_biased_and_a_matched_start_repairs_it(target, wrong):
    raw = {"standardise": False}
    assert ancestral("paper", 10, *target, **raw) == pytest.approx(wrong, abs=0.015)
    mean, sd = ancestral("paper", 10, *target, **raw, start="matched")
    assert mean == pytest.approx(target[0], abs=0.01)
    assert sd == pytest.approx(target[1], rel=0.1)  # ten ancestral steps under-disperse


def test_fewer_steps_than_the_schedule_and_start_at_zero():
    schedule = Schedule("cosine", 1000)
    model = Diffusion(Exact(schedule, 0.0, 1.0), schedule, (1,), 1, start="zero").double()
    model.measure(torch.tensor([[1.0], [3.0]]).double(), torch.zeros(2, 1))
    w = model.sample(torch.zeros(3, 1), 2, steps=10, generator=gen())
    torch.testing.assert_close(w, torch.full((3, 2, 1), 2.0).double())


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_clip_bounds_the_predicted_data_in_sd(standardise, sign):
    class Wild(nn.Module):
        def forward(self, w, features, m):
            return torch.full_like(w, 100.0 * sign)

    model = Diffusion(Wild(), Schedule("cosine", 5), (1,), 1, standardise=standardise, clip=3.0)
    model.measure(torch.tensor([[-4.0], [0.0]]), torch.zeros(2, 1))  # mean -2, sd 2
    w = model.sample(torch.zeros(4, 1), generator=gen())
    torch.testing.assert_close(w, torch.full((4, 1, 1), -2.0 + sign * 6.0))


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("predict", ["x0", "eps", "v"])
def test_loss_against_a_loop(predict):
    class Half(nn.Module):
        def forward(self, w, features, m):
            return 0.5 * w + features[:, :1, None] + 0.1 * m[:, None, None]

    model = Diffusion(Half(), Schedule("cosine", 10), (2, 3), 1, predict=predict).double()
    w0 = torch.randn(20, 2, 3, generator=gen(1), dtype=torch.float64) * 3 + 1
    features = torch.randn(20, 1, generator=gen(2), dtype=torch.float64)
    model.measure(w0, features)
    loss = model.loss(w0, features, gen(3))
    g = gen(3)
    m = torch.randint(1, 11, (20,), generator=g)
    eps = torch.randn(20, 2, 3, generator=g, dtype=torch.float64)
    data = (w0 - w0.mean(0)) / w0.std(0, correction=0)
    c = (features - features.mean()) / features.std(correction=0)
    for b in range(20):
        ab = model.schedule.alpha_bar[m[b]].item()
        total = 0.0
        for i in range(2):
            for j in range(3):
                x, e = data[b, i, j].item(), eps[b, i, j].item()
                w = math.sqrt(ab) * x + math.sqrt(1 - ab) * e
                wanted = {"x0": x, "eps": e, "v": math.sqrt(ab) * e - math.sqrt(1 - ab) * x}
                total += (0.5 * w + c[b].item() + 0.1 * m[b].item() - wanted[predict]) ** 2
        assert loss[b].item() == pytest.approx(total / 6)


def test_regression_against_a_loop():
    """The same network without any w_m: at step 0, of zeros."""

    class Line(nn.Module):
        def forward(self, w, features, m):
            return w + m.view(-1, 1, 1) + features[:, :1, None] * torch.arange(1.0, 4)

    model = Diffusion(Line(), Schedule("cosine", 10), (2, 3), 1).double()
    w0 = torch.randn(20, 2, 3, generator=gen(1), dtype=torch.float64) * 3 + 1
    features = torch.randn(20, 1, generator=gen(2), dtype=torch.float64) * 2 - 5
    model.measure(w0, features)
    mean, sd = w0.mean(0), w0.std(0, correction=0)
    c = (features - features.mean()) / features.std(correction=0)
    loss, found = model.regression(w0, features), model.regress(features)
    assert found.shape == w0.shape
    for b in range(20):
        total = 0.0
        for i in range(2):
            for j in range(3):
                said = (j + 1) * c[b].item()
                total += (said - ((w0[b, i, j] - mean[i, j]) / sd[i, j]).item()) ** 2
                at = said * sd[i, j].item() + mean[i, j].item()
                assert found[b, i, j].item() == pytest.approx(at)
        assert loss[b].item() == pytest.approx(total / 6)


def test_the_exact_denoiser_has_the_smallest_loss():
    # For N(0, 1) data the error left at step m is the conditional variance, 1 - alpha_bar_m.
    schedule = Schedule("cosine", 10)
    w0 = torch.randn(100_000, 1, generator=gen(), dtype=torch.float64)
    model = Diffusion(Exact(schedule, 0.0, 1.0), schedule, (1,), 1).double()
    least = (1 - schedule.alpha_bar[1:]).mean().item()
    assert model.loss(w0, torch.zeros(len(w0), 1), gen(1)).mean().item() == pytest.approx(
        least, rel=0.02
    )
    model.denoiser.sd = 0.7
    assert model.loss(w0, torch.zeros(len(w0), 1), gen(1)).mean().item() > 1.02 * least


def test_measure_has_a_floor_and_raw_data_is_not_scaled():
    table = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    model = Diffusion(nn.Identity(), Schedule(), (2,), 1)
    model.measure(table, torch.zeros(2, 1))
    assert model.shift.tolist() == [2, 5] and model.scale.tolist() == [1, pytest.approx(1e-3)]
    raw = Diffusion(nn.Identity(), Schedule(), (2,), 1, standardise=False)
    raw.measure(table, torch.zeros(2, 1))
    assert raw.shift.tolist() == [0, 0] and raw.scale.tolist() == [1, 1]
    assert raw.mean.tolist() == [2, 5] and raw.std.tolist() == [1, pytest.approx(1e-3)]


def test_one_global_target_comes_back():
    target = torch.randn(4, 4, generator=gen()) - 2
    torch.manual_seed(0)
    model = Diffusion(Denoiser((4, 4), 3, width=32), Schedule(), (4, 4), 3)
    features = torch.randn(50, 3, generator=gen(1))
    model.measure(target.expand(50, 4, 4), features)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(30):
        optimizer.zero_grad()
        model.loss(target.expand(50, 4, 4), features, gen(i)).mean().backward()
        optimizer.step()
    w = model.sample(features, 2, generator=gen(2))
    assert (w - target).abs().max() < 0.01


def test_it_learns_two_groups_from_features():
    table = torch.tensor([[[-3.0, 1.0], [0.0, 2.0]], [[1.0, -1.0], [2.0, -2.0]]])
    torch.manual_seed(0)
    model = Diffusion(Denoiser((2, 2), 1, width=32), Schedule(), (2, 2), 1)
    group = torch.arange(64) % 2
    features = group[:, None].float() * 2 - 1
    model.measure(table[group], features)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for i in range(150):
        optimizer.zero_grad()
        model.loss(table[group], features, gen(i)).mean().backward()
        optimizer.step()
    w = model.sample(features[:2], 8, generator=gen())
    assert (w - table[:, None]).square().mean().sqrt() < 0.15


def test_chance_comes_from_the_generator_alone():
    torch.manual_seed(0)
    model = Diffusion(Denoiser((2, 2), 3, width=16), Schedule("cosine", 4), (2, 2), 3)
    nn.init.normal_(model.denoiser.out.weight)
    before = torch.get_rng_state()
    f = torch.ones(5, 3)
    one, same, other = (model.sample(f, 2, eta=1.0, generator=gen(s)) for s in (1, 1, 2))
    losses = [model.loss(torch.ones(5, 2, 2), f, gen(s)) for s in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])


# --- denoisers and PCA --------------------------------------------------------------------------


@pytest.mark.parametrize("name", DENOISERS)
@pytest.mark.parametrize("shape", [(10, 10), (3, 3), (4, 6)])
def test_denoisers_use_all_that_they_are_given(name, shape):
    torch.manual_seed(0)
    net = DENOISERS[name](shape, 7)
    w, features, m = torch.randn(2, *shape), torch.randn(2, 7), ints(3, 9)
    assert net(w, features, m).count_nonzero() == 0  # starts at the mean of standardised data
    for p in net.out.parameters():
        nn.init.normal_(p, std=0.1)
    out = net(w, features, m)
    assert out.shape == w.shape
    for changed in (
        net(w + 1.5 * torch.randn_like(w), features, m),
        net(w, features + torch.randn(2, 7), m),
        net(w, features, ints(4, 1)),
    ):
        assert ((out - changed).abs().amax((1, 2)) > 1e-3).all()
    one = net(w[:1], features[:1], m[:1])
    torch.testing.assert_close(one, out[:1], atol=1e-5, rtol=1e-4)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def inputs_and_outputs(net, *arguments):
    """What went into and came out of every module of the network, by name."""
    seen = {}
    for name, module in net.named_modules():
        module.register_forward_hook(lambda _, i, o, name=name: seen.update({name: (i[0], o)}))
    net(*arguments)
    return seen


@pytest.mark.parametrize("name", DENOISERS)
def test_the_step_is_told_by_waves_of_length_1_to_10000(name):
    net = DENOISERS[name]((4, 4), 7)
    m = ints(0, 3, 90)
    told = inputs_and_outputs(net, torch.randn(3, 4, 4), torch.randn(3, 7), m)["condition.step"][0]
    pairs = told.shape[1] // 2
    for i in range(3):
        for k in range(pairs):
            angle = float(m[i]) / 10_000 ** (k / pairs)
            both = told[i, [k, pairs + k]].tolist()
            assert both == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-4)


@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_the_condition_scales_and_shifts(name):
    """FiLM: norm(h) (1 + scale) + shift, so that weights of zero leave norm(h) as it is."""
    net = DENOISERS[name]((4, 4), 7)
    seen = inputs_and_outputs(net, torch.randn(3, 4, 4), torch.randn(3, 7), ints(0, 3, 9))
    films = [key.removesuffix("film") for key in seen if key.endswith("film")]
    assert films
    for block in films:
        normed = seen[f"{block}norm"][1]
        scale, shift = seen[f"{block}film"][1].view(3, 2, -1, *[1] * (normed.dim() - 2)).unbind(1)
        wanted = normed * (1 + scale) + shift
        if name == "unet":  # there the non-linearity comes before the next layer
            wanted = nn.functional.silu(wanted)
        found = seen[f"{block}{'second' if name == 'unet' else 'first'}"][0]
        torch.testing.assert_close(found, wanted)


def test_vectors_go_to_the_mlp_only():
    assert Denoiser((10,), 4)(torch.zeros(2, 10), torch.zeros(2, 4), ints(1, 2)).shape == (2, 10)
    for name in ("rows", "unet"):
        with pytest.raises(BadInput, match="mlp"):
            DENOISERS[name]((10,), 4)


def test_pca_is_exact_for_the_table_it_was_fitted_to():
    table = torch.randn(6, 5, 5, generator=gen(), dtype=torch.float64)
    pca = PCA((5, 5), rank=5).double()
    pca.fit(table)
    assert pca.encode(table).shape == (6, 5)
    torch.testing.assert_close(pca.decode(pca.encode(table)), table)
    torch.testing.assert_close(
        pca.decode(pca.encode(table)[:, None].expand(-1, 2, -1)), table[:, None].expand(-1, 2, 5, 5)
    )
    few = PCA((5, 5), rank=2).double()
    few.fit(table)
    values = torch.linalg.eigvalsh(torch.cov(table.flatten(1).T, correction=0))
    lost = (few.decode(few.encode(table)) - table).square().flatten(1).sum(1).mean()
    assert lost.item() == pytest.approx(values[:-2].sum().item())


def test_pca_of_few_targets_leaves_the_rest_zero():
    pca = PCA((3, 3), rank=100)
    pca.fit(torch.randn(2, 3, 3, generator=gen()))
    assert pca.rank == 9 and pca.components[2:].count_nonzero() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule("linear"), "cosine"),
        (lambda: Schedule("cosine", 0), "at least one step"),
        (lambda: Schedule("respaced", 1001), "1000 or fewer"),
        (lambda: Diffusion(nn.Identity(), Schedule(), (1,), 1, predict="noise"), "eps"),
        (lambda: Diffusion(nn.Identity(), Schedule(), (1,), 1, start="one"), "matched"),
    ],
)
def test_unknown_names_are_refused(make, message):
    with pytest.raises(BadInput, match=message):
        make()


def test_pca_does_not_depend_on_autocast():
    table = torch.randn(30, 8, 8, generator=gen()) - 4
    pca = PCA((8, 8), 20)
    pca.fit(table)
    with torch.autocast("cpu", torch.bfloat16):
        coefficients = pca.encode(table)
        back = pca.decode(coefficients)
    assert torch.equal(coefficients, pca.encode(table))
    assert torch.equal(back, pca.decode(coefficients))
