"""CausalNL: its objective and quirks against loops, gradients, rules, T(x), pictures of x."""

import math
from dataclasses import replace

import pytest
import torch

from ytilde.data import BadInput, Batch, Data, StepInfo
from ytilde.fitting import fit_method, make_spec
from ytilde.method import create, unseen
from ytilde.methods.causal_nl import RULES
from ytilde.testing import BACKBONE, RECIPE, blobs, fitted

B, K, D = 8, 3, 6
IMAGE = (1, 9, 7)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data_of(shape=(D,), n=B):
    x = torch.rand(n, *shape, generator=seeded(1))
    return Data(x, torch.arange(n) % K, K)


def built(shape=(D,), **fields):
    torch.manual_seed(0)
    method = create("causal_nl", **fields)
    data = data_of(shape)
    method.build(make_spec(data, BACKBONE, RECIPE))
    if method.rule == "co_teaching":
        method.noise_rate.fill_(0.4)
    return method, Batch(data.x, data.y.clone(), torch.arange(B))


def step(epoch=5, epochs=10, seed=0):
    return StepInfo(torch.tensor(float(epoch)), epochs, seeded(seed), lambda x: x)


def without_co(method, monkeypatch):
    """The bounds of both branches alone."""
    monkeypatch.setitem(RULES, method.rule, lambda m, logits, *rest: logits.new_zeros(()))
    return method


# --- the objective ------------------------------------------------------------------------------


def slow_bound(method, x, y, net, model, generator, official):
    """Appendix B with its sign corrected (or the authors' code), one row and number at a time."""
    k = method.spec.num_classes
    logits = net(x).detach()
    with torch.no_grad():
        out = model((x - net.mean) / net.std, logits, generator)
    rec = nll = prior = kl = 0.0
    for i in range(len(x)):
        gaps = [abs(a - b) for a, b in zip(out.x_hat[i], (x[i] - net.mean) / net.std, strict=True)]
        rec += sum(float(g) ** 2 if official else float(g) for g in gaps) / D / len(x)
        odds = [math.exp(v) for v in out.noisy_logits[i]]
        nll += -math.log(odds[y[i]] / sum(odds)) / len(x)
        odds = [math.exp(v) for v in logits[i]]
        q = [v / sum(odds) for v in odds]
        prior += -math.log(k) / len(x) if official else sum(v * math.log(v) for v in q) / len(x)
        for m, lv in zip(out.mu[i].tolist(), out.logvar[i].tolist(), strict=True):
            part = -(1 + lv - m**2 - math.exp(lv))
            kl += part if official else part / 2 / len(x)
    return method.b0 * rec + method.b1 * nll + method.b2 * prior + method.b3 * kl


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_objective_against_loops(variant):
    method, batch = built(variant=variant, b2=0.3, z_dim=4)
    official = variant == "official"
    got = method.loss(batch, step()).item()
    g = seeded()
    expected = slow_bound(method, batch.x, batch.y, method.net, method.model, g, official)
    expected += slow_bound(method, batch.x, batch.y, method.peer, method.peer_model, g, official)
    # co-teaching: each learns from the int(0.6 * 8) = 4 rows with the other's smallest losses
    nll = [
        [-net.log_probs(batch.x)[i, batch.y[i]].item() for i in range(B)]
        for net in (method.net, method.peer)
    ]
    for own, other in ((0, 1), (1, 0)):
        chosen = sorted(range(B), key=lambda i: nll[other][i])[:4]
        expected += sum(nll[own][i] for i in chosen) / 4 / (4 if official else 1)
    assert got == pytest.approx(expected, rel=1e-4)


def test_official_quirks(monkeypatch):
    """The term of the prior has no gradient; the KL grows with the batch."""
    only = {"b0": 0.0, "b1": 0.0, "variant": "official"}
    for fields, moves in (({"b2": 1.0, "b3": 0.0}, False), ({"b2": 0.0, "b3": 1.0}, True)):
        method, batch = built(**only, **fields)
        loss = without_co(method, monkeypatch).loss(batch, step())
        loss.backward()
        grads = [p.grad.abs().max() for p in method.net.parameters() if p.grad is not None]
        assert (max(grads).item() > 1e-6) is moves
    method, batch = built(**only, b2=1.0, b3=0.0)
    assert method.loss(batch, step()).item() == pytest.approx(-2 * math.log(K), rel=1e-5)
    method, batch = built(b0=0.0, b1=0.0, b2=1.0, b3=0.0)
    method.loss(batch, step()).backward()
    assert max(p.grad.abs().max() for p in method.net.parameters()) > 1e-4
    for variant, factor in (("paper", 1), ("official", 2)):
        method, batch = built(variant=variant, b0=0.0, b1=0.0, b2=0.0, b3=1.0, sampling="softmax")
        twice = Batch(*(torch.cat([part, part]) for part in batch[:3]))
        once = method.loss(batch, step()).item()
        assert method.loss(twice, step()).item() == pytest.approx(factor * once, rel=1e-5)


def test_the_official_z_is_uniform():
    assert built(variant="official")[0].model.noise == "uniform"
    assert built()[0].model.noise == "normal"


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(D,), IMAGE])
@pytest.mark.parametrize("fields", [{}, {"exact": True}, {"sampling": "sum"}, {"sampling": "st"}])
def test_the_bound_reaches_all_networks_of_both_branches(monkeypatch, shape, fields):
    method, batch = built(shape, **fields)
    without_co(method, monkeypatch).loss(batch, step()).backward()
    parts = [method.net, method.peer, method.table, method.peer_table]
    for model in (method.model, method.peer_model):
        parts += [model.encoder, model.decoder, model.noisy]
    for part in parts:
        if part is not None:
            assert sum(p.grad.abs().sum() for p in part.parameters()) > 0


def test_detached_reconstruction(monkeypatch):
    for detach in (False, True):
        method, batch = built(b0=0.0, b2=0.0, b3=0.0, detach_recon_for_t=detach)
        without_co(method, monkeypatch).loss(batch, step()).backward()
        reached = any(
            p.grad is not None and p.grad.abs().sum() > 0 for p in method.model.decoder.parameters()
        )
        assert reached is not detach


def test_hold_keeps_the_classifiers_and_trains_the_rest(monkeypatch):
    for epoch, moves in ((2, False), (3, True)):
        method, batch = built(hold=0.3, sampling="sum")
        without_co(method, monkeypatch).loss(batch, step(epoch)).backward()
        grads = [p.grad for p in method.net.parameters() if p.grad is not None]
        assert any(g.abs().max().item() > 0 for g in grads) is moves
        assert all(p.grad.abs().sum() > 0 for p in method.model.decoder.parameters())


def test_hold_takes_the_likeliest_label_for_certain():
    """Mixtures of labels would teach the decoder one manifold for all classes."""
    held, batch = built(hold=0.3, sampling="sum")
    free, _ = built(sampling="sum")
    logits = held.net(batch.x).detach()
    certain = 1e3 * torch.nn.functional.one_hot(logits.argmax(-1), K).float()
    found = held.bound(held.model, batch.x, batch.y, logits, step(2))
    torch.testing.assert_close(found, free.bound(free.model, batch.x, batch.y, certain, step(2)))


def test_unlabelled_rows_count_without_their_label():
    method, batch = built()
    batch.y[3] = -1
    loss = method.loss(batch, step())
    loss.backward()
    assert loss.isfinite()
    fields = {"b0": 0.0, "b2": 0.0, "b3": 0.0}
    ours, theirs = built(**fields), built(**fields)
    ours[1].y[:] = -1
    assert ours[0].loss(ours[1], step()).item() == 0 < theirs[0].loss(theirs[1], step()).item()


# --- rules --------------------------------------------------------------------------------------


def test_rules_differ_and_train():
    seen = {}
    for rule in RULES:
        run = fitted(lambda rule=rule: create("causal_nl", rule=rule, rate=0.3), blobs(rate=0.3),
                     epochs=2)  # fmt: skip
        assert run.trainer.history[-1]["stage"] == "main"
        seen[rule] = run.proba(blobs())
    names = list(seen)
    for i, one in enumerate(names):
        for other in names[:i]:
            assert not torch.allclose(seen[one], seen[other], atol=1e-4), (one, other)


def test_rules_against_the_methods_they_come_from(monkeypatch):
    """With the bound switched off, branch 1 trains as the method of that name does."""
    off = {"b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
    for rule in ("ce", "gce", "elr", "co_teaching", "decoupling"):
        method, batch = built(rule=rule, **off)
        single = create(rule)
        single.build(method.spec)
        single.net.load_state_dict(method.net.state_dict())
        expected = 0.0
        if hasattr(single, "peer"):
            single.peer.load_state_dict(method.peer.state_dict())
        else:
            other = create(rule)
            other.build(method.spec)
            other.net.load_state_dict(method.peer.state_dict())
            expected = other.loss(batch, step()).item()
        if rule == "co_teaching":
            single.noise_rate.fill_(0.4)
        expected += single.loss(batch, step()).item()
        assert method.loss(batch, step()).item() == pytest.approx(expected, rel=1e-5), rule


@pytest.mark.parametrize("rule", RULES)
def test_rules_leave_out_rows_without_a_label(rule):
    off = {"b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
    (one, batch), (two, _) = built(rule=rule, **off), built(rule=rule, **off)
    wanted = one.loss(Batch(*(column[2:] for column in batch[:3])), step())
    batch.y[:2] = -1
    torch.testing.assert_close(two.loss(batch, step()), wanted)


def test_t_revision_corrects_both_networks():
    method, batch = built(rule="t_revision", b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    method.matrix.copy_(torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]]))
    wanted = 0.0
    for net in (method.net, method.peer):
        p = net.log_probs(batch.x).exp().detach() @ method.matrix
        wanted -= sum(math.log(p[i, batch.y[i]]) for i in range(B)) / B
    assert method.loss(batch, step()).item() == pytest.approx(wanted, rel=1e-5)


def test_t_revision_estimates_and_revises():
    data = blobs(n=600, rate=0.3)
    run = fitted(lambda: create("causal_nl", rule="t_revision", warm_up=0.5), data, epochs=8)
    assert [r["stage"] for r in run.trainer.history] == ["warm_up"] * 4 + ["main"] * 4
    T = run.method.matrix
    torch.testing.assert_close(T.sum(-1), torch.ones(3))
    assert 0.5 < T.diagonal().mean() < 0.95  # truth: 0.7
    assert 0 < run.method.slack.abs().max() < 0.1


def test_the_rate_is_given_or_estimated():
    data = blobs(n=600, rate=0.3)
    for rate, low, high in ((0.25, 0.25, 0.25), ("auto", 0.2, 0.4)):
        run = fitted(lambda rate=rate: create("causal_nl", rate=rate), data, epochs=1)
        assert low - 1e-6 <= run.method.noise_rate.item() <= high + 1e-6


# --- answers ------------------------------------------------------------------------------------


def test_exact_prediction_is_the_marginal():
    method, batch = built(exact=True)
    method.eval()
    p = method.predict_proba(batch.x)
    table = method.table(batch.x).view(B, K, K).softmax(-1)
    noisy = method.net(batch.x).softmax(-1)
    for b in range(B):
        for k in range(K):
            total = sum((table[b, j, k] * noisy[b, j]).item() for j in range(K))
            assert p[b, k].item() == pytest.approx(total, abs=1e-6)


def test_exact_learns():
    data = blobs(n=300, rate=0.2)
    p = fitted(lambda: create("causal_nl", exact=True, rate=0.2), data, epochs=15).proba(data)
    assert (p.argmax(-1) == data.clean).float().mean() > 0.9


@pytest.mark.parametrize("shape", [(D,), IMAGE])
def test_transition_and_pictures(shape):
    method, batch = built(shape)
    method.eval()
    T = method.transition(unseen(batch.x))
    assert T.shape == (B, K, K) and (T >= 0).all()
    torch.testing.assert_close(T.sum(-1), torch.ones(B, K))
    torch.testing.assert_close(T, method.transition(batch))
    torch.testing.assert_close(
        method.noisy_proba(batch.x), torch.einsum("bi,bij->bj", method.predict_proba(batch.x), T)
    )
    assert method.reconstruct(batch.x).shape == batch.x.shape
    drawn = method.generate(1, 4)
    assert drawn.shape == (4, *shape)
    assert torch.equal(drawn, method.generate(1, 4))
    assert not torch.equal(drawn, method.generate(1, 4, seed=1))
    assert not torch.equal(drawn, method.generate(2, 4))


def test_features_are_standardised_for_the_causal_model_and_put_back():
    """Units do not matter: x in metres and in millimetres give the same training."""
    data = blobs(rate=0.2)
    fields = {"rate": 0.2, "z_dim": 2, "b0": 5.0, "b3": 5.0}
    one, two = (
        fitted(lambda: create("causal_nl", **fields), replace(data, x=scale * data.x), epochs=15)
        for scale in (1.0, 1000.0)
    )
    torch.testing.assert_close(one.proba(data), two.proba(replace(data, x=1000 * data.x)),
                               atol=1e-2, rtol=0)  # fmt: skip
    method = two.method
    x = 1000 * data.x
    gap = (method.reconstruct(x) - x).abs().mean()
    assert gap < 0.6 * (x - x.mean(0)).abs().mean()
    means = torch.stack([x[data.clean == c].mean(0) for c in range(3)])
    for c in range(3):  # what is generated for a class lies nearest to that class
        nearest = (method.generate(c, 50)[:, None] - means).norm(dim=-1).argmin(1)
        assert (nearest == c).float().mean() > 0.8


def test_training_raises_the_bound():
    data = blobs(n=240)
    unit = {"b0": 1.0, "b1": 1.0, "b2": 1.0, "b3": 1.0, "z_dim": 2, "rule": "ce"}
    method = create("causal_nl", **unit)

    def bound():
        method.eval()
        with torch.no_grad():
            return method.bound(method.model, method.scaled(data.x), data.y, method.net(data.x),
                                step()).item()  # fmt: skip

    torch.manual_seed(0)
    method.build(make_spec(data, BACKBONE, RECIPE))
    before = bound()
    fit_method(method, data, replace(RECIPE, epochs=20, val=0.0), backbone=BACKBONE)
    assert bound() < before - 0.5


def test_bad_fields_are_refused():
    for field, value in (("rule", "coteaching"), ("variant", "author"), ("sampling", "hard")):
        with pytest.raises(BadInput, match=field):
            built(**{field: value})
    data = data_of(IMAGE)
    maps = replace(data, y=torch.zeros(B, *IMAGE[1:], dtype=torch.long))
    with pytest.raises(BadInput, match="one label"):
        fit_method(create("causal_nl"), maps, RECIPE)
