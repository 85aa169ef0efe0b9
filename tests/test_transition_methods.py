"""The methods with a transition matrix: their own formulas by loops, their stages, a given T."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from ytilde import transition as tr
from ytilde.data import BadInput, Batch, StepInfo
from ytilde.engine import Recipe
from ytilde.fitting import fit_method, make_spec
from ytilde.method import create, unseen
from ytilde.methods._shared import distilled, slack_rate, stage_epochs
from ytilde.methods.bltm import bounded
from ytilde.methods.meidtm import MEIDTM
from ytilde.testing import BACKBONE, RECIPE, blobs

CLASS_LEVEL = ["forward", "backward", "reweight", "t_revision", "dual_t", "volminnet", "ptd"]
ALL = [*CLASS_LEVEL, "bltm", "meidtm"]
T3 = [[0.7, 0.3, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]]


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fit(name, data=None, recipe=None, **own):
    method = create(name, **own)
    data = blobs(n=150, rate=0.2) if data is None else data
    trainer = fit_method(method, data, recipe or replace(RECIPE, epochs=4), backbone=BACKBONE)
    return method, trainer


# ---- T(x) from features: BLTM ------------------------------------------------------------------


def test_residual_rows_by_loops():
    rows = tr.ResidualT(6, 4).double()
    with torch.no_grad():
        for p in (*rows.parameters(), *rows.buffers()):
            p.copy_(torch.randn(p.shape, generator=gen(1), dtype=torch.float64))
    h = torch.randn(3, 6, generator=gen(2), dtype=torch.float64)
    T = rows(h).detach()
    W = rows.residual.weight.detach()
    for n in range(3):
        mean = sum(h[n].tolist()) / 6
        var = sum((v - mean) ** 2 for v in h[n].tolist()) / 6
        scaled = [(v - mean) / math.sqrt(var + 1e-5) for v in h[n].tolist()]
        z = [sum(float(W[o, d]) * scaled[d] for d in range(6)) for o in range(20)]
        for i in range(4):
            stay = 1 / (1 + math.exp(-(float(rows.stay[i]) + z[i])))
            e = [math.exp(float(rows.target[i, j]) + z[4 + 4 * i + j]) for j in range(4)]
            total = sum(e) - e[i]
            for j in range(4):
                want = stay if i == j else (1 - stay) * e[j] / total
                assert float(T[n, i, j]) == pytest.approx(want, abs=1e-12)


def test_residual_starts_at_the_counted_class_level_T():
    clean = torch.tensor([0, 0, 0, 0, 0, 1, 1, -1])
    y = torch.tensor([0, 0, 1, 1, 2, 1, 1, 0])
    rows = tr.ResidualT(5, 3)
    before = rows(torch.randn(2, 5, generator=gen()))
    assert torch.allclose(before, torch.eye(3).expand(2, 3, 3), atol=1e-6)
    rows.start(clean, y, prior=1.0)
    T = rows(torch.randn(2, 5, generator=gen()))
    overall = 3.5 / 8
    rate = (3 + overall) / 6
    want = [1 - rate, rate * 2.5 / 4, rate * 1.5 / 4]
    assert torch.allclose(T[0, 0], torch.tensor(want), atol=1e-6)
    assert float(T[0, 2, 2].detach()) == pytest.approx(1 - overall, abs=1e-5)
    assert torch.allclose(T.sum(-1), torch.ones(2, 3), atol=1e-6)


def test_a_class_without_examples_is_never_surely_flipped():
    rows = tr.ResidualT(5, 3)
    rows.start(torch.zeros(400).long(), torch.ones(400).long())
    T = rows(torch.randn(1, 5, generator=gen()))[0]
    assert T[2].detach().tolist() == pytest.approx([0.495, 0.495, 0.01], abs=1e-5)


def test_residual_penalty_is_the_gaussian_prior_of_a_logit():
    rows = tr.ResidualT(8, 3)
    with torch.no_grad():
        rows.residual.weight.copy_(torch.randn(12, 8, generator=gen()))
    prior = torch.distributions.Normal(0.0, 1.5 / math.sqrt(8))  # sd 1.5 of a sum of 8 such weights
    zero = prior.log_prob(torch.zeros(12, 8)).sum()
    want = zero - prior.log_prob(rows.residual.weight).sum()
    torch.testing.assert_close(rows.penalty(1.5), want)


def test_rows_of_other_classes_have_no_residual():
    rows = tr.ResidualT(5, 3)
    clean, y = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 2, 2])
    rows.start(clean, y)
    level = rows(torch.randn(1, 5, generator=gen()))[0].detach()
    with torch.no_grad():
        rows.residual.weight.normal_(0, 1, generator=gen(1))
    h, own = torch.randn(4, 5, generator=gen(2)), torch.tensor([2, 0, 1, 0])
    T, whole = rows(h, own).detach(), rows(h).detach()
    for n, c in enumerate(own.tolist()):
        for i in range(3):
            torch.testing.assert_close(T[n, i], whole[n, i] if i == c else level[i])
            assert not torch.allclose(whole[n, i], level[i], atol=1e-3)


def test_distilled_takes_the_surest_of_every_class():
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7], [0.45, 0.55], [0.4, 0.6]])
    assert distilled(p, 1.0).tolist() == [0, 0, 1, 1, 1, 1]
    assert distilled(p, 0.5).tolist() == [0, -1, 1, 1, -1, -1]


def test_bltm_keeps_its_T_network_frozen():
    method, trainer = fit("bltm", reach=0.0)
    method.train()
    assert not method.t_net.training and method.net.training
    stages = [r["stage"] for r in trainer.history]
    assert list(dict.fromkeys(stages)) == ["warm_up", "transition", "main"]
    assert not any(p.grad is not None for p in method.t_net.parameters())
    assert float(method.slack.detach().abs().max()) == 0.0


def test_bltm_sees_that_noise_depends_on_the_input():
    """One feature decides how often class 0 is flipped: T(x) must follow it, unseen x too."""
    data = blobs(n=900, rate=0.0)
    x = torch.cat([data.x, torch.randn(900, 2, generator=gen(3))], 1)
    flip = (data.clean == 0) & (x[:, -1] > 0) & (torch.rand(900, generator=gen(4)) < 0.4)
    data = replace(data, x=x, y=torch.where(flip, torch.ones_like(data.y), data.clean))
    recipe = replace(RECIPE, epochs=20)
    method, _ = fit("bltm", data, recipe, spread=3.0)
    own = x[data.clean == 0]
    with torch.no_grad():
        stay = method.transition(unseen(own))[:, 0, 0]
    high, low = stay[own[:, -1] > 0.5].mean(), stay[own[:, -1] < -0.5].mean()
    assert low - high > 0.2, (float(low), float(high))


def test_bltm_uses_no_row_of_T_that_it_was_not_trained_on():
    """Row i is learnt where the distilled label is i; elsewhere it was drawn at random, so to say:
    another class then explained the true label better than the true class did."""
    data = blobs(n=600, rate=0.3)
    method, trainer = fit("bltm", data, replace(RECIPE, epochs=12), spread=5.0, reach=0.0)
    rows = trainer.data
    batch = trainer.batch(rows, torch.arange(len(rows)))
    with torch.no_grad():
        T = method.transition(batch)
        new = method.transition(unseen(batch.x))
        guess = method.t_net.head(method.t_net.features(batch.x)).argmax(-1)
    k = data.num_classes
    for found, own in ((T, method.bayes), (new, guess)):
        for i in range(k):
            others = found[own != i, i]
            assert len(others) > 10 and float(others.std(0).max()) < 1e-6, "one row for all of them"
            assert float(found[own == i, i].std(0).max()) > 1e-3, "T does not depend on x"


def test_bltm_supposes_the_distilled_label_of_a_row_and_predicts_the_others():
    """Row 0 is a row like any; what has no distilled label, or no row at all, is predicted."""
    data = blobs(n=30)
    method = create("bltm")
    method.build(make_spec(data, BACKBONE, RECIPE))
    h = method.t_net.features(data.x[:4]).detach()
    guess = method.t_net.head(h).argmax(-1)
    other = (guess + 1) % data.num_classes
    method.bayes[:4] = other
    method.bayes[2] = -1
    found = method.supposed(Batch(data.x[:4], data.y[:4], torch.tensor([0, 1, 2, -1])), h)
    assert found.tolist() == [*other[:2].tolist(), *guess[2:].tolist()]


def test_bounded_rows_by_loops():
    T = torch.randn(3, 4, 4, generator=gen()).softmax(-1)
    own = torch.tensor([0.1, 0.2, 0.3, 0.9])
    found = bounded(T, own)
    for n in range(3):
        for i in range(4):
            away = [0.0 if j == i else min(float(T[n, i, j]), float(own[j])) for j in range(4)]
            away[i] = 1 - sum(away)
            assert found[n, i].tolist() == pytest.approx(away, abs=1e-6)


# ---- T(x) from the posterior: MEIDTM ------------------------------------------------------------


def test_posterior_rows_by_loops():
    rows = tr.PosteriorT(3).double()
    with torch.no_grad():
        rows.W.copy_(torch.randn(9, 3, generator=gen(), dtype=torch.float64))
    p = torch.rand(4, 3, generator=gen(1), dtype=torch.float64).softmax(-1)
    T = rows(p)
    for n in range(4):
        for i in range(3):
            a = [float(rows.W[3 * i + j] @ p[n]) for j in range(3)]
            a = [min(max(v, 1e-5), 1 - 1e-5) for v in a]
            for j in range(3):
                assert float(T[n, i, j]) == pytest.approx(a[j] / sum(a), abs=1e-12)


def test_bltm_adds_the_prior_to_the_likelihood_of_the_labels():
    """-log T(x)[bayes, y], and the residual's prior, shared among the rows."""
    data = blobs(n=30)
    method = create("bltm")
    method.build(make_spec(data, BACKBONE, RECIPE))
    with torch.no_grad():
        method.rows.residual.weight.normal_(0, 0.3, generator=gen())
    method.bayes.copy_(data.y.roll(1))
    batch = Batch(data.x, data.y, torch.arange(30))
    step = StepInfo(torch.tensor(0.0), 1, gen(), lambda x: x)
    with torch.no_grad():
        value = float(method.t_loss(batch, step))
        T = method.rows(method.t_net.features(data.x)).tolist()
        prior = float(method.rows.penalty(method.spread))
    nll = [-math.log(T[n][int(method.bayes[n])][int(data.y[n])]) for n in range(30)]
    assert prior > 1 and value == pytest.approx(sum(nll) / 30 + prior / 30, rel=1e-4)


def test_posterior_rows_start_at_the_counted_class_level_T():
    """With one count more for each class, evenly spread, whatever the posterior is."""
    clean = torch.tensor([0, 0, 0, 1, 1, -1, 1])
    y = torch.tensor([0, 1, 1, 1, 1, 2, -1])
    rows = tr.PosteriorT(3)
    rows.start(clean, y)
    want = torch.tensor([[4 / 12, 7 / 12, 1 / 12], [1 / 9, 7 / 9, 1 / 9], [1 / 3, 1 / 3, 1 / 3]])
    p = torch.rand(4, 3, generator=gen()).softmax(-1)
    torch.testing.assert_close(rows(p).detach(), want.expand(4, 3, 3))


def test_manifold_penalty_by_loops():
    g = gen(4)
    p = torch.randn(5, 3, generator=g, dtype=torch.float64).softmax(-1)
    T = torch.randn(5, 3, 3, generator=g, dtype=torch.float64).softmax(-1).requires_grad_()
    want = 0.0
    for i in range(5):
        for j in range(5):
            s = math.exp(-float((p[i] - p[j]).square().sum()) / (2 * 1.1**2))
            s = s if p[i].argmax() == p[j].argmax() else -s
            want = want + s * (T[i] - T[j]).square().sum() / 9 / 25
    found = tr.manifold_penalty(T, p, 1.1)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found, T)[0], torch.autograd.grad(want, T)[0])


def test_meidtm_trains_on_the_chosen_share():
    method, trainer = fit("meidtm", keep=0.5)
    assert float(method.chosen.sum()) == round(0.5 * len(method.chosen))
    stages = [r["stage"] for r in trainer.history]
    assert list(dict.fromkeys(stages)) == ["warm_up", "transition", "main"]


def test_meidtm_chooses_its_rows_anew_five_times_a_training(monkeypatch):
    """At the start of each stage, and after every fifth of the epochs, if any are left."""
    chosen, choose = [], MEIDTM.choose

    def noted(self, data, trainer):
        chosen.append(len(trainer.history))
        choose(self, data, trainer)

    monkeypatch.setattr(MEIDTM, "choose", noted)
    fit("meidtm", recipe=replace(RECIPE, epochs=20), warm_up=0.2, t_epochs=0.2)
    assert chosen == [4, 8, 12, 16]


def built(name, **own):
    """A method, untrained, with a batch of ten rows and a step that changes nothing."""
    data = blobs(n=10)
    method = create(name, **own)
    torch.manual_seed(0)
    method.build(make_spec(data, BACKBONE, RECIPE))
    step = StepInfo(torch.zeros(()), 4, gen(), lambda x: x)
    return method, Batch(data.x, data.y, torch.arange(10)), step


def slow_forward_nll(p, T, y):
    """The mean over rows of -log of the noisy posterior's p @ T at the label."""
    total = 0.0
    for i in range(len(y)):
        t = T if T.dim() == 2 else T[i]
        total -= math.log(sum(float(p[i, c]) * float(t[c, y[i]]) for c in range(p.shape[1])))
    return total / len(y)


def test_meidtm_adds_the_manifold_penalty_and_maximises_entropy_in_the_warm_up():
    method, batch, step = built("meidtm", lam=0.7, entropy=0.4)
    p = method.net.log_probs(batch.x).exp().detach()
    with torch.no_grad():
        method.rows.W.copy_(torch.rand(9, 3, generator=gen(3)))
    T = method.rows(p).detach()
    wanted = slow_forward_nll(p, T, batch.y) + 0.7 * float(tr.manifold_penalty(T, p, method.sigma))
    assert method.loss(batch, step).item() == pytest.approx(wanted, rel=1e-5)
    entropy = -sum(float(v) * math.log(v) for row in p for v in row) / 10
    cross = slow_forward_nll(p, torch.eye(3), batch.y)
    assert method.first_loss(batch, step).item() == pytest.approx(cross - 0.4 * entropy, rel=1e-5)


def test_volminnet_adds_the_volume():
    method, batch, step = built("volminnet", lam=0.7)
    p, T = method.net.log_probs(batch.x).exp().detach(), method.transition(batch).detach()
    wanted = slow_forward_nll(p, T, batch.y) + 0.7 * math.log(abs(float(torch.linalg.det(T))))
    assert method.loss(batch, step).item() == pytest.approx(wanted, rel=1e-5)


# ---- parts: PTD --------------------------------------------------------------------------------


def test_nmf_rebuilds_a_product_of_non_negative_factors():
    g = gen(5)
    H = torch.rand(80, 3, generator=g) @ torch.rand(3, 12, generator=g)
    B = tr.nmf_basis(H, 3, gen(6), steps=400)
    assert (B >= 0).all() and B.shape == (3, 12)
    W = torch.tensor(np.stack([nnls(B.T.double().numpy(), h)[0] for h in H.double().numpy()]))
    assert float((W.float() @ B - H).norm() / H.norm()) < 0.03
    assert torch.equal(B, tr.nmf_basis(H, 3, gen(6), steps=400))


def test_part_weights_solve_the_non_negative_least_squares():
    g = gen(7)
    B, H = torch.rand(4, 15, generator=g), torch.rand(6, 15, generator=g)
    W = tr.part_weights(H, B, steps=3000)
    for n in range(6):
        want = nnls(B.T.double().numpy(), H[n].double().numpy())[0]
        np.testing.assert_allclose(W[n].numpy(), want / want.sum(), atol=2e-3)
    torch.testing.assert_close(tr.part_weights(H[2:3], B, steps=3000), W[2:3])
    nothing = tr.part_weights(H, torch.zeros(4, 15))
    assert torch.equal(nothing, torch.full((6, 4), 0.25))


def test_part_matrices_fit_the_anchors():
    g = gen(8)
    P = torch.randn(3, 4, 4, generator=g).mul(1.5).softmax(-1)
    w = torch.randn(12, 4, 3, generator=g).mul(2).softmax(-1)
    rows = torch.zeros(12, 4, 4)
    for a in range(12):
        for i in range(4):
            for k in range(3):
                rows[a, i] += w[a, i, k] * P[k, i]
    found = tr.part_matrices(w, rows, ridge=1e-4)
    assert torch.allclose(found.sum(-1), torch.ones(3, 4), atol=1e-6)
    assert float((found - P).abs().max()) < 0.03


def test_a_part_that_a_class_hardly_has_gets_the_class_level_row():
    """Its row drifted by up to 10 logits: it was fitted to what the anchors do not tell."""
    g = gen(9)
    P = (torch.randn(4, 3, 3, generator=g) + 2 * torch.eye(3)).softmax(-1)
    w = torch.full((10, 3, 4), 0.01)
    for i in range(3):  # anchors of class i have part i, and a little of the others
        w[:, i, i] += torch.rand(10, generator=g) + 1
    w = w / w.sum(-1, keepdim=True)
    rows = torch.einsum("aik,kij->aij", w, P)
    rows = (rows + 0.02 * torch.rand(10, 3, 3, generator=g)).clamp_min(0)
    rows = rows / rows.sum(-1, keepdim=True)
    found, mean = tr.part_matrices(w, rows), rows.mean(0)
    for i in range(3):
        for k in range(4):
            near = 0.1 if k == i else 0.02
            assert float((found[k, i] - mean[i]).abs().sum()) < near, (k, i)
    assert (found >= 0).all() and torch.allclose(found.sum(-1), torch.ones(4, 3), atol=1e-6)


def test_ptd_answers_an_unseen_x_as_the_row_it_was():
    data = blobs(n=150, rate=0.2)
    method, trainer = fit("ptd", data)
    train = trainer.data
    some = torch.arange(20)
    batch = trainer.batch(train, some)
    with torch.no_grad():
        seen = method.transition(Batch(batch.x, batch.y, some))
        new = method.transition(unseen(batch.x))
    torch.testing.assert_close(seen, new, atol=1e-5, rtol=0)
    assert float(seen.std(0).max()) > 1e-4, "T does not depend on x"
    method.weights[:20] = method.weights[:20].roll(1, dims=1)
    with torch.no_grad():
        other = method.transition(Batch(batch.x, batch.y, some))
        same = method.transition(unseen(batch.x))
    changed = (other - seen).abs().amax((1, 2)) > 1e-4
    assert changed.all(), "the parts of a training row are those that were found for it"
    torch.testing.assert_close(same, new, atol=0, rtol=0)


# ---- class-level methods and a given T -----------------------------------------------------------


@pytest.mark.parametrize("name", CLASS_LEVEL)
@pytest.mark.parametrize("form", ["list", "npy", "csv"])
def test_a_given_T_is_used_as_it_is(name, form, tmp_path):
    given = T3
    if form == "npy":
        np.save(tmp_path / "T.npy", np.array(T3))
        given = str(tmp_path / "T.npy")
    elif form == "csv":
        np.savetxt(tmp_path / "T.csv", np.array(T3), delimiter=",")
        given = str(tmp_path / "T.csv")
    own = {"reach": 0.0} if name in ("t_revision", "ptd") else {}
    method, trainer = fit(name, recipe=replace(RECIPE, epochs=2), T=given, **own)
    with torch.no_grad():
        T = method.transition(unseen(torch.randn(5, 6, generator=gen())))
    assert torch.allclose(T, torch.tensor(T3).expand_as(T), atol=1e-6)
    assert "warm_up" not in {r["stage"] for r in trainer.history}


@pytest.mark.parametrize("name", ["forward", "backward", "reweight", "dual_t", "volminnet"])
def test_the_identity_gives_plain_cross_entropy(name):
    data = blobs(n=150, rate=0.2)
    runs = [fit("ce", data), fit(name, data, T=torch.eye(3).tolist())]
    p, q = (t.map(lambda b, m=m: m.predict_proba(b.x), data) for m, t in runs)
    torch.testing.assert_close(p, q, atol=1e-5, rtol=0)


@pytest.mark.parametrize("bad", [[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.4, 0.4]]])
def test_a_bad_T_is_refused_in_one_sentence(bad):
    data = blobs(n=60, num_classes=2)
    with pytest.raises(BadInput, match=r"inverted|sum to 1") as error:
        fit("backward", data, T=bad)
    assert "\n" not in str(error.value)


def test_backward_mixes_an_estimate_that_cannot_be_inverted():
    method = create("backward")
    flat = torch.tensor([[0.5, 0.5]]).repeat(100, 1)
    T = method.matrix_of(flat, torch.zeros(100, dtype=torch.long))
    assert torch.linalg.cond(T) <= method.condition
    assert torch.allclose(T.sum(-1), torch.ones(2))
    sharp = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
    kept = method.matrix_of(sharp, torch.zeros(100, dtype=torch.long))
    assert torch.allclose(kept, sharp[:2], atol=1e-6), "a good estimate must stay as it is"
    strict = create("backward", condition=1.0)  # which the identity alone has
    assert torch.equal(strict.matrix_of(flat, torch.zeros(100, dtype=torch.long)), torch.eye(2))


def test_backward_takes_the_least_mixture_that_its_condition_allows():
    """Tenths of the way to the identity, whose condition number is 1."""
    method = create("backward")
    p = (0.3 * torch.randn(60, 3, generator=gen())).softmax(-1)
    y = torch.arange(60) % 3
    raw = create("forward").matrix_of(p, y).double()
    mixtures = [(1 - step / 10) * raw + step / 10 * torch.eye(3).double() for step in range(11)]
    for bound in (1.0, 2.0, 5.0, 1e9):
        method.condition = bound
        allowed = [m for m in mixtures if float(torch.linalg.cond(m)) <= bound + 1e-9]
        torch.testing.assert_close(method.matrix_of(p, y).double(), allowed[0], atol=1e-5, rtol=0)
    assert 5 < float(torch.linalg.cond(raw)) < 1e9


def test_forward_learns_with_the_true_T_what_cross_entropy_cannot():
    """Pair noise: the given T tells the wrong labels of a class from the right ones of the next."""
    T = (0.55 * torch.eye(3) + 0.45 * torch.eye(3).roll(1, 1)).tolist()
    data = blobs(n=600, rate=0.45)
    scores = {}
    for name, own in (("ce", {}), ("forward", {"T": T})):
        method, trainer = fit(name, data, replace(RECIPE, epochs=20), **own)
        p = trainer.map(lambda b, m=method: m.predict_proba(b.x), data)
        scores[name] = float((p.argmax(-1) == data.clean).float().mean())
    assert scores["forward"] > scores["ce"] + 0.05, scores


def test_the_slack_moves_and_no_further_than_its_reach():
    method, _ = fit("t_revision", reach=0.05)
    moved = float(method.slack.detach().abs().max())
    assert 0.005 < moved <= 0.051
    data = blobs(n=150)
    trainer = fit("forward")[1]
    assert slack_rate(0.04, data, trainer, 10) == pytest.approx(0.04 / 50)


def test_the_slack_has_a_gradient():
    """The weight stays attached, or dT could not be learnt (as in the reference code)."""
    method, trainer = fit("t_revision", recipe=replace(RECIPE, epochs=1))
    batch = trainer.batch(trainer.data, torch.arange(40))
    method.slack.grad = None
    identity = RECIPE.generator("order")
    step = type("S", (), {"augment": staticmethod(lambda x: x), "generator": identity})()
    method.revise(batch, step).backward()
    assert float(method.slack.grad.abs().max()) > 0


def test_the_revised_loss_by_loops():
    """Each row's cross-entropy, times p_y / (p @ (T + dT))_y."""
    method, trainer = fit("t_revision", recipe=replace(RECIPE, epochs=1))
    batch = trainer.batch(trainer.data, torch.arange(40))
    step = StepInfo(torch.tensor(0.0), 1, gen(), lambda x: x)
    with torch.no_grad():
        value = float(method.revise(batch, step))
        p, T = method.predict_proba(batch.x).double(), (method.matrix + method.slack).double()
    terms = []
    for row, y in zip(p.tolist(), batch.y.tolist(), strict=True):
        noisy = sum(row[i] * float(T[i, y]) for i in range(len(row)))
        terms.append(min(row[y] / noisy, method.clip) * -math.log(row[y]))
    assert value == pytest.approx(sum(terms) / len(terms), rel=1e-4)


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_one_epoch_goes_through_every_stage_and_rows_sum_to_one(name, precision):
    recipe = replace(RECIPE, epochs=1, precision=precision)
    data = blobs(n=120, num_classes=4, rate=0.3)
    method, trainer = fit(name, data, recipe)
    assert trainer.history[-1]["stage"] == "main"
    T = trainer.map(lambda b: method.transition(b).expand(len(b.x), 4, 4), data)
    assert T.dtype == torch.float32
    assert torch.allclose(T.sum(-1), torch.ones(120, 4), atol=1e-6)
    assert (T >= 0).all()


@pytest.mark.parametrize("name", ALL)
def test_ignored_labels_do_no_harm(name):
    """Of half of the labels, it learns what all rows are."""
    data = blobs(n=300, rate=0.1)
    y = data.y.clone()
    y[::2] = -1
    method, trainer = fit(name, replace(data, y=y), replace(RECIPE, epochs=10))
    p = trainer.map(lambda b: method.predict_proba(b.x), data)
    assert (p.argmax(-1) == data.clean).float().mean() > 0.8


@pytest.mark.parametrize("name", ALL)
def test_the_epochs_are_those_of_the_recipe_and_the_last_stage_has_the_most(name):
    recipe = Recipe(epochs=10, batch_size=64, optimizer="adam", lr=1e-3)
    stages = [r["stage"] for r in fit(name, recipe=recipe)[1].history]
    assert len(stages) == 10 and stages[-1] == "main"
    assert max(map(stages.count, stages)) == stages.count("main")


def test_share_is_at_least_one_epoch():
    assert [stage_epochs(1, 0.2), stage_epochs(10, 0.2), stage_epochs(30, 0.15)] == [1, 2, 4]
