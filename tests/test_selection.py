"""Selection against slow versions with sorts and loops; the noise rate against the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.stats import truncnorm
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture

from ytilde import selection
from ytilde.data import BadInput


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ small loss


@pytest.mark.parametrize(("epochs", "warmup"), [(200, 10), (20, 1), (40, 2), (1, 1)])
def test_keep_schedule_is_the_papers_linspace(epochs, warmup):
    """Forgets linspace(0, rate, T_k) in the first T_k epochs, then rate; T_k is 5 % of all."""
    forget = [0.4] * max(epochs, warmup)
    forget[:warmup] = np.linspace(0, 0.4, warmup)
    for epoch in range(epochs):
        keep = selection.keep_schedule(torch.tensor(epoch), epochs, 0.4)
        np.testing.assert_allclose(keep, 1 - forget[epoch], atol=1e-6)


def slow_small_loss(losses, keep):
    """Python's sort is stable too: of equal losses the first is kept."""
    count = max(1, int(round(keep * len(losses), 6)))
    chosen = sorted(range(len(losses)), key=lambda i: losses[i])[:count]
    return [float(i in chosen) for i in range(len(losses))]


values = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5]) | st.floats(0, 9, width=32), min_size=1)


@settings(max_examples=100, deadline=None)
@given(values, st.data(), st.integers(0, 10))
def test_co_teaching_equals_a_slow_sort(first, data, tenths):
    second = data.draw(st.permutations(first))
    keep = tenths / 10
    w1, w2 = selection.co_teaching(torch.tensor(first), torch.tensor(second), torch.tensor(keep))
    assert w1.tolist() == slow_small_loss(second, keep)
    assert w2.tolist() == slow_small_loss(first, keep)


def test_ties_keep_the_exact_number():
    weights = selection.small_loss(torch.full((10,), 0.7), 0.9)
    assert weights.tolist() == [1.0] * 9 + [0.0]


def test_at_least_one_is_kept_and_nothing_has_a_gradient():
    loss = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    weights = selection.small_loss(loss, 0.0)
    assert weights.tolist() == [0.0, 1.0, 0.0] and not weights.requires_grad


def test_ignored_elements_are_not_counted():
    loss = torch.tensor([[0.0, 4.0, 1.0], [3.0, 0.0, 2.0]])  # the loss of an ignored one is 0
    y = torch.tensor([[-1, 0, 1], [1, -1, 0]])
    assert selection.small_loss(loss, 0.5, y).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert selection.small_loss(loss, 1.0, torch.full_like(y, -1)).sum() == 0
    assert selection.quantile(loss, 0.0, y) == 1 and selection.quantile(loss, 1.0, y) == 4


def test_disagreement():
    a = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0], [0.0, 3.0]]])
    b = torch.tensor([[[5.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [0.0, 1.0]]])
    assert selection.disagreement(a, b).tolist() == [[0, 1], [1, 0]]


# ------------------------------------------------------------------ self-paced


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 5, width=32), min_size=1, max_size=40), st.integers(0, 20))
def test_quantile_has_the_nearest_rank(data, twentieth):
    q = twentieth / 20
    expected = sorted(data)[round(float(np.float32(q) * np.float32(len(data) - 1)))]
    assert selection.quantile(torch.tensor(data), torch.tensor(q)) == expected


def test_pace_threshold_starts_with_the_first_quantile():
    threshold = torch.tensor(math.nan)
    batches = torch.rand(3, 11, generator=generator())
    slow = None
    for loss in batches:
        threshold = selection.pace_threshold(threshold, loss, rate=0.2)
        now = sorted(loss.tolist())[8]
        slow = now if slow is None else 0.9 * slow + 0.1 * now
        np.testing.assert_allclose(threshold, slow, rtol=1e-6)


def test_self_paced_weights():
    loss = torch.tensor([0.0, 1.0, 1.5, 2.0, 9.0])
    assert selection.self_paced(loss, torch.tensor(1.0)).tolist() == [1, 1, 0, 0, 0]
    soft = selection.self_paced(loss, torch.tensor(1.0), softness=2.0)
    assert soft.tolist() == [1, 1, 0.75, 0.5, 0]


# ------------------------------------------------------------------ mixture


def two_gaussians(share=0.3, n=1000):
    g = generator(1)
    upper = torch.rand(n, generator=g) < share
    noise = torch.randn(n, generator=g, dtype=torch.float64)
    return torch.where(upper, 3.0 + 0.6 * noise, 0.5 + 0.2 * noise), upper


def test_mixture_agrees_with_scikit_learn():
    x, upper = two_gaussians()
    ours = selection.two_component_mixture(x, max_iter=100, tol=1e-9)
    scaled = ((x - x.min()) / (x.max() - x.min())).numpy()[:, None]
    theirs = GaussianMixture(2, max_iter=100, tol=1e-9, reg_covar=5e-4, random_state=0).fit(scaled)
    expected = theirs.predict_proba(scaled)[:, theirs.means_.argmin()]
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    assert ((ours < 0.5) == upper).double().mean() > 0.99


def test_mixture_does_not_depend_on_scale_or_order():
    x, _ = two_gaussians()
    ours = selection.two_component_mixture(x)
    np.testing.assert_allclose(selection.two_component_mixture(1e6 * x - 7), ours, atol=1e-6)
    np.testing.assert_allclose(selection.two_component_mixture(1e-9 * x), ours, atol=1e-6)
    np.testing.assert_allclose(selection.two_component_mixture(x.flip(0)), ours.flip(0), atol=1e-9)


def test_mixture_starts_from_two_means_and_stops_when_the_fit_gains_little():
    x, _ = two_gaussians()
    scaled = (x - x.min()) / (x.max() - x.min())
    group = KMeans(2, init=[[0.0], [1.0]], n_init=1).fit(scaled[:, None].numpy()).labels_
    density = []
    for side in (0, 1):  # one step of EM: the weighted densities of the two parts
        part = scaled[torch.tensor(group == side)]
        variance = part.var(correction=0) + 5e-4
        spread = torch.distributions.Normal(part.mean(), variance.sqrt())
        density.append(len(part) / len(x) * spread.log_prob(scaled).exp())
    low = min((0, 1), key=lambda side: float(scaled[torch.tensor(group == side)].mean()))
    wanted = density[low] / (density[0] + density[1])
    once = selection.two_component_mixture(x, max_iter=1)
    np.testing.assert_allclose(once, wanted, atol=1e-6)
    steps = [selection.two_component_mixture(x, max_iter=n, tol=0) for n in range(1, 31)]
    stopped = selection.two_component_mixture(x, max_iter=30, tol=1e-3)
    same = [torch.equal(stopped, each) for each in steps]
    assert any(same[1:10]) and not same[-1]


def test_mixture_of_degenerate_values():
    nan, inf = math.nan, math.inf

    def mixture(*values):
        return selection.two_component_mixture(torch.tensor(values)).tolist()

    assert selection.two_component_mixture(torch.empty(0)).shape == (0,)
    assert mixture(2.0) == [1.0]
    assert mixture(*[3.7] * 5) == [1.0] * 5
    rounded = 1e6 * torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)  # equal but for rounding
    assert selection.two_component_mixture(rounded).tolist() == [1.0, 1.0]
    assert mixture(nan, nan) == [0.0, 0.0]
    assert mixture(1.0, nan, 1.0, inf) == [1.0, 0.0, 1.0, 0.0]
    low, high = mixture(0.0, 1.0)
    assert low > 0.99 and high < 0.01
    x, _ = two_gaussians(n=200)
    holed = torch.cat([x, x.new_tensor([nan, inf, -inf])])
    whole, part = selection.two_component_mixture(x), selection.two_component_mixture(holed)
    np.testing.assert_allclose(part[:-3], whole)
    assert part[-3:].tolist() == [0, 0, 0]
    with pytest.raises(BadInput, match="one axis"):
        selection.two_component_mixture(torch.zeros(2, 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32) | st.sampled_from([0.0, 1e-8]), max_size=30))
def test_mixture_is_always_a_probability(data):
    posterior = selection.two_component_mixture(torch.tensor(data, dtype=torch.float32))
    assert ((posterior >= 0) & (posterior <= 1)).all()


# ------------------------------------------------------------------ noise rate


def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)


def symmetric(x, y, rate, g):
    flip = torch.rand(len(y), generator=g) < rate
    return torch.where(flip, (y + torch.randint(1, 10, (len(y),), generator=g)) % 10, y)


def instance(x, y, rate, g, raw):
    """Xia et al. 2020: a flip rate for each example, the target by a projection of the input."""
    seed = int(torch.randint(2**31, (), generator=g))
    q = truncnorm.rvs(-rate / 0.1, (1 - rate) / 0.1, rate, 0.1, size=len(y), random_state=seed)
    features = 255 * x if raw else (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    w = torch.randn(10, x.shape[1], 10, generator=g)
    target = torch.empty(len(y), 10)
    for i in range(len(y)):
        scores = features[i] @ w[y[i]]
        scores[y[i]] = -math.inf
        target[i] = q[i] * scores.softmax(0)
        target[i, y[i]] = 1 - q[i]
    return target.multinomial(1, generator=g).squeeze(1)


NOISE = {
    "symmetric": symmetric,
    "raw255": lambda x, y, rate, g: instance(x, y, rate, g, raw=True),
    "standardized": lambda x, y, rate, g: instance(x, y, rate, g, raw=False),
}


@pytest.mark.parametrize("rate", [0.2, 0.4])
@pytest.mark.parametrize("kind", NOISE)
def test_rate_is_within_five_points_on_digits(kind, rate):
    x, clean = digits()
    for seed in range(5):
        g = generator(seed)
        y = NOISE[kind](x, clean, rate, g)
        truth = (y != clean).double().mean().item()
        probs = selection.out_of_fold_knn(x, y, 10, generator=g)
        assert abs(selection.estimate_rate(probs, y) - truth) < 0.05


def test_rate_of_clean_labels_is_small():
    x, y = digits()
    probs = selection.out_of_fold_knn(x, y, 10, generator=generator())
    assert selection.estimate_rate(probs, y) < 0.02


def test_rate_leaves_out_the_errors_of_the_model():
    """A model that is wrong for its less confident rows; the labels are wrong for 30 % of all."""
    g, n = generator(), 20000
    confidence = 0.3 + 0.7 * torch.rand(n, generator=g)
    clean = torch.randint(4, (n,), generator=g)
    model_errs = torch.rand(n, generator=g) < 0.6 * (1 - confidence)
    guess = torch.where(model_errs, (clean + 1) % 4, clean)
    y = torch.where(torch.rand(n, generator=g) < 0.3, (clean + 2) % 4, clean)
    probs = ((1 - confidence) / 3)[:, None].repeat(1, 4)
    probs.scatter_(1, guess[:, None], confidence[:, None])
    assert (guess != y).double().mean() > 0.4
    assert abs(selection.estimate_rate(probs, y) - 0.3) < 0.02


def test_rate_is_the_fit_at_the_surest_by_loops():
    g = generator(5)
    probs = torch.rand(14, 3, generator=g).softmax(-1).double()
    y = torch.randint(3, (14,), generator=g)
    basis, wrong = [], []
    for i in range(14):
        mine = probs[i].argmax()
        rivals = [j for j in range(14) if probs[j].argmax() == mine]
        surer = sum(bool(probs[j].max() > probs[i].max()) for j in rivals)
        u = (surer + 0.5) / len(rivals)
        basis.append([1.0, u, u**8])
        wrong.append(float(mine != y[i]))
    wanted = nnls(np.array(basis), np.array(wrong))[0][0]
    assert 0 < wanted < 1
    assert selection.estimate_rate(probs, y) == pytest.approx(wanted)


def test_rate_ignores_rows_without_a_label():
    x, y = digits()
    probs = selection.out_of_fold_knn(x, y, 10, generator=generator())
    noisy = symmetric(x, y, 0.3, generator())
    hidden = torch.cat([noisy, torch.full((500,), -1)])
    padded = torch.cat([probs, torch.full((500, 10), 0.1)])
    assert selection.estimate_rate(padded, hidden) == selection.estimate_rate(probs, noisy)


def test_rate_refuses_what_it_cannot_use():
    with pytest.raises(BadInput, match="All labels are -1"):
        selection.estimate_rate(torch.full((3, 2), 0.5), torch.full((3,), -1))
    with pytest.raises(BadInput, match=r"\[N, K\]"):
        selection.estimate_rate(torch.full((3, 2), 0.5), torch.zeros(4, dtype=torch.long))
    with pytest.raises(BadInput, match="rows"):
        selection.out_of_fold_knn(
            torch.zeros(3, 2), torch.zeros(4).long(), 2, generator=generator()
        )


@pytest.mark.parametrize(("rows", "most"), [(60, 4), (9, 1), (2000, 30)])
def test_no_more_neighbours_vote_than_half_a_class_has(rows, most):
    """The voters of five folds are four fifths of the rows."""
    g = generator()
    x, y = torch.randn(rows, 2, generator=g), torch.arange(rows) % 6
    shares = selection.out_of_fold_knn(x, y, 6, generator=g) * most
    torch.testing.assert_close(shares, shares.round())
    assert (shares == 1).any()


def test_knn_equals_a_slow_search_and_never_sees_its_own_fold():
    g = generator(3)
    x, y = torch.randn(60, 4, generator=g), torch.randint(3, (60,), generator=g)
    y[:5] = -1
    probs = selection.out_of_fold_knn(x, y, 3, folds=4, k=5, generator=generator(7))
    fold = (torch.randperm(60, generator=generator(7)) % 4).tolist()
    centred = (x - x.mean(0)).double()
    for i in range(60):
        others = [j for j in range(60) if fold[j] != fold[i] and y[j] >= 0]
        cosine = {
            j: float(centred[i] @ centred[j] / centred[i].norm() / centred[j].norm())
            for j in others
        }
        near = sorted(others, key=lambda j: -cosine[j])[:5]
        expected = [sum(int(y[j]) == c for j in near) / 5 for c in range(3)]
        np.testing.assert_allclose(probs[i], expected, atol=1e-6)
