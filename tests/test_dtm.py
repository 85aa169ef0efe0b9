"""DTM and LRA: matrices of groups by slow EM, stages, ablations, T(x) of unseen rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ytilde import Classifier
from ytilde.data import BadInput, Batch, Data, StepInfo
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import fit_method, make_spec
from ytilde.losses import mean
from ytilde.method import create, unseen
from ytilde.methods import dtm as module
from ytilde.methods.dtm import CrossFit
from ytilde.testing import BACKBONE, RECIPE, blobs
from ytilde.transition import class_floor, forward_nll, row_error, sigmoid_rows
from ytilde.transition import groups as of_groups
from ytilde.transition.groups import group_matrices, log_columns, sharpened, weights_of

FAST = replace(RECIPE, epochs=4)


class Stop(Exception):
    pass


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def posteriors(n, k, seed=0, sharp=2.0):
    return (sharp * torch.randn(n, k, generator=gen(seed), dtype=torch.float64)).softmax(-1)


def fit(name="dtm", data=None, recipe=FAST, **fields):
    method = create(name, **fields)
    return method, fit_method(method, data or blobs(rate=0.2), recipe, backbone=BACKBONE)


# ---- matrices of groups -------------------------------------------------------------------------


def slow_em(p, y, group, groups, prior, kappa, steps):
    """Card H3 with loops: expected counts of a group, its prior worth kappa labels a row."""
    n, k = p.shape
    T = [prior.clone() for _ in range(groups)]
    for _ in range(steps):
        counts = torch.zeros(groups, k, k, dtype=torch.float64)
        for a in range(n):
            j, g = int(y[a]), int(group[a])
            if j < 0:
                continue
            joint = [float(p[a, i] * T[g][i, j]) for i in range(k)]
            for i in range(k):
                counts[g, i, j] += joint[i] / sum(joint)
        for g in range(groups):
            for i in range(k):
                mass = counts[g, i].sum()
                own = counts[g, i] / mass if mass > 0 else counts[g, i]
                weight = mass / (mass + kappa)
                T[g][i] = weight * own + (1 - weight) * prior[i]
    return torch.stack(T)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.floats(0.5, 50.0))
def test_group_matrices_against_loops(seed, groups, kappa):
    p = posteriors(40, 3, seed)
    y = torch.randint(-1, 3, (40,), generator=gen(seed))
    group = torch.randint(groups, (40,), generator=gen(seed + 1))
    prior = posteriors(3, 3, seed + 2)
    found = group_matrices(p, y, group, groups, prior, kappa, steps=4)
    slow = slow_em(p, y, group, groups, prior, kappa, 4)
    torch.testing.assert_close(found.double(), slow, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(groups, 3))


def test_shrinkage_has_its_limits():
    p, y = torch.eye(3).repeat(20, 1), torch.tensor([0, 1, 1]).repeat(20)
    group, prior = torch.zeros(60, dtype=torch.int64), torch.full((3, 3), 1 / 3)
    nothing = group_matrices(p, y, group, 2, prior, kappa=1e9)
    torch.testing.assert_close(nothing, prior.expand(2, 3, 3), atol=1e-6, rtol=0)
    alone = group_matrices(p, y, group, 2, prior, kappa=1e-9)
    wanted = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0]])
    torch.testing.assert_close(alone[0], wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(alone[1], prior)  # a group without rows
    half = group_matrices(p, y, group, 1, prior, kappa=20.0)[0]  # 20 labels a class, worth as much
    torch.testing.assert_close(half, (wanted + prior) / 2, atol=1e-6, rtol=0)


def test_rows_of_absent_classes_stay_common():
    p = torch.tensor([[1.0, 0.0, 0.0]]).repeat(50, 1)
    y = torch.arange(50) % 2
    prior = posteriors(3, 3).float()
    found = group_matrices(p, y, torch.zeros_like(y), 1, prior, kappa=5.0)[0]
    torch.testing.assert_close(found[1:], prior[1:])
    assert not torch.allclose(found[0], prior[0], atol=0.05)


def test_flat_posteriors_are_sharpened_to_the_likeliest():
    true = posteriors(20_000, 4, sharp=2.5)
    T = sigmoid_rows(torch.full((4, 4), -1.0)).double()
    clean = torch.multinomial(true, 1, generator=gen())[:, 0]
    y = torch.multinomial(T[clean], 1, generator=gen(1))[:, 0]
    flat = true.sqrt() / true.sqrt().sum(-1, keepdim=True)
    start, group = torch.full((4, 4), 0.1).fill_diagonal_(0.7), torch.zeros_like(y)
    p, found = sharpened(5 * flat, y, group, 1, start, 20.0)
    torch.testing.assert_close(p.double(), true, atol=1e-5, rtol=0)  # power 2, exactly
    assert (found[0].double() - T).abs().max() < 0.03


def test_the_likeliest_power_is_that_of_whole_matrices(monkeypatch):
    """The column of a row's label says as much as its whole T, [N, K, K] in all."""
    p, y = posteriors(300, 4), torch.randint(-1, 4, (300,), generator=gen())
    group, start = torch.randint(3, (300,), generator=gen(1)), posteriors(4, 4, 2)
    seen = []
    monkeypatch.setattr(of_groups, "mean", lambda nll, y: seen.append(mean(nll, y)) or seen[-1])
    best, T = sharpened(p, y, group, 3, start, 20.0)
    wanted = []
    for power in of_groups.POWERS:
        q = p**power / (p**power).sum(-1, keepdim=True)
        common = group_matrices(q, y, torch.zeros_like(y), 1, start, kappa=1.0)[0]
        each = group_matrices(q, y, group, 3, common, 20.0).double()
        wanted.append((float(mean(forward_nll(q.log(), each[group], y), y)), q, each))
    assert [float(nll) for nll in seen] == pytest.approx([w[0] for w in wanted], abs=1e-9)
    _, q, each = min(wanted, key=lambda w: w[0])
    torch.testing.assert_close(best, q.float())
    torch.testing.assert_close(T, each.float())
    known = (y >= 0).nonzero()[:, 0].tolist()
    column = log_columns(T, group, y)
    for i in known[:20]:
        assert torch.equal(column[i], T[group[i], :, y[i]].log())


@pytest.mark.parametrize("k", [2, 10, 100, 1000])
def test_a_clean_class_comes_back_clean(k):
    """However many entries are raised from zero, they take a hundredth of a row at most."""
    T = torch.eye(k)
    T[0] = torch.full((k,), 0.3 / (k - 1)).index_fill_(0, torch.tensor(0), 0.7)
    back = sigmoid_rows(weights_of(T))
    torch.testing.assert_close(back[0], T[0], atol=1e-6, rtol=1e-4)
    assert back.diagonal()[1:].min() > 0.99
    assert (back - T).abs().sum(-1).max() < 0.02


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_weights_are_the_inverse_of_rows(seed, k):
    W = torch.randn(3, k, k, generator=gen(seed)).clamp(-3, 3)
    W = W.masked_fill(torch.eye(k, dtype=torch.bool), 0.0)
    torch.testing.assert_close(weights_of(sigmoid_rows(W)), W, atol=1e-3, rtol=1e-3)


def test_weights_of_a_flipped_row_stay_below_the_diagonal():
    T = sigmoid_rows(weights_of(torch.tensor([[0.2, 0.8], [0.0, 1.0]])))
    assert T.isfinite().all() and T[0, 0] > T[0, 1] and T[1, 1] > 0.99


# ---- cross-fitting ------------------------------------------------------------------------------


def crossfit(n=60, hidden=4):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CrossFit(5, 3, n, hidden)


def test_a_row_is_judged_by_who_has_not_seen_it():
    heads, h = crossfit(), torch.randn(60, 5, generator=gen())
    heads.start(h, Recipe())
    assert sorted(torch.bincount(heads.fold).tolist()) == [12] * 5
    y = torch.arange(60) % 3
    row = torch.tensor([7])
    heads.loss(h[row], y[row], row, 0.0).backward()
    for layer in heads.layers:
        moved = layer.grad.flatten(1).abs().sum(1) > 0
        assert not moved[heads.fold[7]] and moved.sum() == 4
    held = heads.held_out(h)
    for i in (0, 7, 59):
        slow = heads.log_probs(h[i : i + 1])[heads.fold[i], 0].exp()
        torch.testing.assert_close(held[i], slow)


def test_any_number_of_rows_is_judged():
    """They are taken in parts of some thousands."""
    n = 9000
    heads, h = crossfit(n), torch.randn(n, 5, generator=gen())
    heads.start(h, Recipe())
    held = heads.held_out(h)
    assert held.shape == (n, 3)
    for i in (0, 8191, 8192, n - 1):
        slow = heads.log_probs(h[i : i + 1])[heads.fold[i], 0].exp()
        torch.testing.assert_close(held[i], slow)


def test_common_loss_against_a_loop():
    heads, h = crossfit(hidden=0), torch.randn(60, 5, generator=gen())
    heads.start(h, Recipe())
    y = torch.arange(60) % 4 - 1
    index = torch.arange(10)
    T = heads.transition.T().detach().double()
    total = count = 0.0
    for fold in range(5):
        for i in index.tolist():
            if int(heads.fold[i]) == fold or y[i] < 0:
                continue
            x = ((h[i] - h.mean(0)) / h.std(0, correction=0)).double()
            z = x @ heads.layers[0][fold].double() + heads.biases[0][fold, 0].double()
            total -= math.log(float((z.softmax(-1) @ T[:, y[i]]).detach()))
            count += 1
    wanted = total / count + 0.3 * float(torch.linalg.slogdet(T).logabsdet)
    found = heads.loss(h[index], y[index], index, 0.3).detach()
    assert float(found) == pytest.approx(wanted, abs=1e-5)


# ---- the pipeline -------------------------------------------------------------------------------


def two_noises(n=900):
    """Three classes in two places each; in one of them a third of the labels moves on."""
    generator = gen(3)
    clean, place = torch.arange(n) % 3, (torch.arange(n) // 3) % 2
    centre = 6 * torch.randn(3, 2, 4, generator=generator)
    x = centre[clean, place] + torch.randn(n, 4, generator=generator)
    rows = torch.eye(3)[clean]
    rows[place == 1] = 0.65 * rows[place == 1] + 0.35 * torch.eye(3)[(clean[place == 1] + 1) % 3]
    y = torch.multinomial(rows, 1, generator=generator)[:, 0]
    return Data(x, y, 3), clean, rows


def test_T_depends_on_the_place():
    data, clean, rows = two_noises()
    recipe, fields = replace(RECIPE, epochs=20, val=0.0), {"kappa": 5.0, "without": "diffusion"}
    method, trainer = fit(data=data, recipe=recipe, **fields)
    T = trainer.map(method.transition, data)
    error = float(row_error(T[torch.arange(len(T)), clean], rows))
    assert error < 0.5 * float(class_floor(rows, clean)), "a class-level T does as well"
    new = trainer.map(method.transition, replace(data, x=data.x + 0))  # unseen rows
    torch.testing.assert_close(new, T, atol=1e-5, rtol=0)


def noise_by_brightness(n=900):
    """Three classes told by a stripe's place; labels of dark images are wrong in 35 %."""
    generator = gen(3)
    clean, dark = torch.arange(n) % 3, (torch.arange(n) // 3) % 2
    x = 0.2 * torch.rand(n, 1, 12, 12, generator=generator) + 0.3 * (1 - dark)[:, None, None, None]
    x[torch.arange(n), 0, 4 * clean + 1] += 0.4
    rows = torch.eye(3)[clean]
    rows[dark == 1] = 0.65 * rows[dark == 1] + 0.35 * torch.eye(3)[(clean[dark == 1] + 1) % 3]
    return Data(x, torch.multinomial(rows, 1, generator=generator)[:, 0], 3), clean, rows


class Blind(torch.nn.Module):
    """An encoder that does not see how bright an image is."""

    def forward(self, x):
        h = x.mean(-1).flatten(1)
        return h - h.mean(1, keepdim=True)


@pytest.mark.parametrize("kind", ["pixels", "both"])
def test_pixels_show_what_an_encoder_is_blind_to(kind, monkeypatch):
    data, clean, rows = noise_by_brightness()
    recipe = replace(RECIPE, epochs=20, val=0.0)
    monkeypatch.setattr(module.DTM, "pretraining", lambda self, shape: None)
    floor, errors = float(class_floor(rows, clean)), {}
    for name in ("features", kind):
        fields = {"group_features": name, "without": "diffusion", "kappa": 5.0, "clusters": 3}
        method = create("dtm", **fields, t_epochs=4.0)
        monkeypatch.setattr(method, "build", lambda s, m=method: build_blind(m, s))
        trainer = fit_method(method, data, recipe, backbone="mlp:width=12,depth=1")
        T = trainer.map(method.transition, data)
        errors[name] = float(row_error(T[torch.arange(len(T)), clean], rows))
        assert method.centres.shape[1] == {"features": 12, "pixels": 32, "both": 44}[name]
    assert errors["features"] > 0.8 * floor
    assert errors[kind] < 0.4 * floor


def build_blind(method, spec):
    type(method).build(method, spec)
    method.encoder.backbone = Blind()


def test_without_clustering_the_common_T_comes_back():
    method, _ = fit(without="clustering")
    common = sigmoid_rows(method.W)
    assert common.shape == (1, 3, 3)
    T = method.transition(unseen(torch.randn(50, 6, generator=gen())))
    assert (T - common).abs().sum(-1).max() < 0.02


def test_the_four_ablations_differ():
    names = ("nothing", "pretraining", "clustering", "diffusion", "denoising")
    found = {}
    for name in names:
        method, trainer = fit(without=name)
        stages = {record["stage"] for record in trainer.history}
        assert ("diffusion" in stages) == (name != "diffusion")
        assert ("warm_up" in stages) == (name == "pretraining")
        found[name] = method.transition(unseen(blobs().x[:20]))
    for a in names:
        for b in names:
            assert a == b or not torch.allclose(found[a], found[b], atol=1e-4), (a, b)
    groups = sigmoid_rows(fit(without="diffusion")[0].W)
    apart = (found["diffusion"][:, None] - groups).abs().amax((-1, -2))
    assert apart.amin(1).max() < 1e-6  # each row has the T of one group


def test_the_warm_up_keeps_the_epoch_of_its_own_best_fit():
    """T(x) is not learnt by then: behind a flat one, the most certain network looks the best."""
    data, recipe, kept = blobs(rate=0.4), replace(FAST, epochs=60, lr=0.02), []
    held = torch.arange(len(data)) % 3 == 0
    val, train = data.rows(held.nonzero()[:, 0]), data.rows((~held).nonzero()[:, 0])
    method = create("dtm", without="pretraining")
    method.build(make_spec(train, BACKBONE, recipe))

    def look(record):
        p = method.net.log_probs(val.x).detach()
        nll = -float(p[torch.arange(len(val)), val.y].mean())
        assert record["val_nll"] == pytest.approx(nll, abs=1e-5)
        kept.append((nll, {k: v.clone() for k, v in method.net.backbone.state_dict().items()}))

    method.learn_features(train, Trainer(method, recipe, val=val, on_record=look))
    best = min(range(len(kept)), key=lambda k: kept[k][0])
    assert len(kept) == 12 and best < 11, "no epoch was too many"
    for key, value in method.encoder.backbone.state_dict().items():
        assert torch.equal(value, kept[best][1][key])


def test_the_noisy_posterior_has_T_once_it_is_learnt():
    method, _ = fit(without="diffusion")
    x = blobs().x[:9]
    p, T = method.predict_proba(x), method.transition(unseen(x))
    torch.testing.assert_close(method.noisy_proba(x), torch.einsum("bi,bij->bj", p, T))
    method.load_state_dict(method.state_dict() | {"has_T": torch.tensor(False)})
    assert torch.equal(method.noisy_proba(x), p)


@pytest.mark.parametrize(
    "fields",
    [
        {"without": "features"},
        {"features": "none"},
        {"init": "zero"},
        {"denoiser": "cnn"},
        {"schedule": "linear"},
        {"predict": "y"},
        {"start": "one"},
        {"resample": "always"},
    ],
)
def test_unknown_words_are_refused(fields):
    with pytest.raises(BadInput, match=next(iter(fields.values()))):
        fit(**fields)


def test_the_papers_setting_runs():
    fields = {"schedule": "paper", "predict": "eps", "standardise": False, "eta": 1.0}
    method, _ = fit(**fields, denoiser="unet", samples=2)
    T = method.transition(unseen(blobs().x[:4]))
    torch.testing.assert_close(T.sum(-1), torch.ones(4, 3))


@pytest.mark.parametrize("start", ["normal", "matched", "zero"])
def test_sampling_begins_where_it_is_told(start):
    """A denoiser that finds no noise leaves w_M / sqrt(alpha_bar_M)."""
    fields = {"schedule": "paper", "predict": "eps", "standardise": False, "start": start}
    method, data = create("dtm", **fields), blobs(n=40)
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.diffusion.mean.fill_(-3.0)
    method.diffusion.std.fill_(0.5)
    left = math.prod(1 - (1e-4 + (0.02 - 1e-4) * m / 9) for m in range(10))
    begin = {
        "normal": method.noise[0],
        "matched": -3.0 * left**0.5 + (0.25 * left + 1 - left) ** 0.5 * method.noise[0],
        "zero": torch.zeros(8, 3, 3),
    }
    wanted = sigmoid_rows(begin[start] / left**0.5).mean(0)
    torch.testing.assert_close(method.transition(unseen(data.x[:2])), wanted.expand(2, 3, 3))


def test_resampling_draws_anew_for_training_rows_alone():
    method, _ = fit(resample="epoch")
    data = blobs()
    batch = Batch(data.x[:6], data.y[:6], torch.arange(6))
    step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x)
    assert len(method.table) == 0
    first, second = method.training_T(batch, step), method.training_T(batch, step)
    assert (first - second).abs().amax((1, 2)).min() > 0  # other noise for every row
    h = method.encoder(batch.x)
    slow = method.diffusion.sample(h, method.samples, generator=gen())
    torch.testing.assert_close(first, sigmoid_rows(slow).mean(1))
    torch.testing.assert_close(method.transition(batch), method.transition(batch), atol=0, rtol=0)


def test_samples_spread_and_average():
    method, _ = fit()
    x = blobs().x[:7]
    draws = method.draws_of(method.encoder(x))
    assert draws.shape == (7, 8, 3, 3)
    torch.testing.assert_close(method.transition(unseen(x)), draws.mean(1))
    torch.testing.assert_close(method.spread(x), draws.std(1, correction=0))
    alone = torch.cat([method.transition(unseen(row[None])) for row in x])
    torch.testing.assert_close(alone, draws.mean(1), atol=1e-6, rtol=0)


def test_many_classes_are_diffused_as_coefficients_and_sampled_lazily(monkeypatch):
    data = blobs(n=250, num_classes=25, rate=0.2)
    method, _ = fit(data=data, recipe=replace(FAST, epochs=2), samples=2)
    assert method.pca is not None and method.diffusion.shape == (method.groups - 1,)
    step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x)
    table = method.training_T(Batch(data.x[:5], data.y[:5], torch.arange(5)), step)
    assert table.shape == (5, 25, 25)
    flat = (method.W - method.W.mean(0)).flatten(1) @ method.pca.components.flatten(1).T
    torch.testing.assert_close(method.targets(method.group), flat[method.group])
    monkeypatch.setattr(module, "LARGEST_TABLE", 0)
    lazy, _ = fit(data=data, recipe=replace(FAST, epochs=2), samples=2)
    assert len(lazy.table) == 0
    same = method.state_dict()
    for key, value in lazy.state_dict().items():
        torch.testing.assert_close(value, same[key], atol=2e-3, rtol=1e-3)


def test_T_of_the_training_rows_is_kept_where_it_is_asked_for_again_and_fits(monkeypatch):
    data = blobs(n=100)
    spec = make_spec(data, BACKBONE, RECIPE)

    def kept(**fields):
        method = create("dtm", **fields)
        method.build(spec)
        return len(method.table)

    assert [kept(), kept(without="clustering")] == [100, 100]
    assert [kept(without="diffusion"), kept(resample="epoch")] == [0, 0]
    for size, rows in ((4 * 100 * 9, 100), (4 * 100 * 9 - 1, 0)):
        monkeypatch.setattr(module, "LARGEST_TABLE", size)
        assert kept() == rows


@pytest.mark.parametrize("kind", ["features", "both"])
@pytest.mark.parametrize("stage", ["common", "diffusion", "main"])
def test_each_stage_goes_on_to_the_same_bits(stage, kind, tmp_path):
    data = blobs(rate=0.2)

    def stop(record):
        if record["stage"] == stage and record["epoch"] == 2:
            raise Stop

    recipe, fields = replace(FAST, epochs=4), {"t_epochs": 0.75, "diffusion_epochs": 0.75}
    fields |= {"group_features": kind}
    whole, _ = fit(recipe=recipe, **fields)
    first = create("dtm", **fields)
    with pytest.raises(Stop):
        fit_method(first, data, recipe, backbone=BACKBONE, folder=tmp_path, on_record=stop)
    again = create("dtm", **fields)
    fit_method(again, data, recipe, backbone=BACKBONE, folder=tmp_path, resume=True)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_pretraining_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    monkeypatch.delenv("YTILDE_CACHE", raising=False)
    monkeypatch.setattr("ytilde.encoders.simclr.CHECKPOINT_EVERY", 0.0)
    data = Data(torch.rand(60, 3, 16, 16, generator=gen()), torch.arange(60) % 3, 3)
    recipe = replace(FAST, epochs=1, batch_size=30)
    seen = []

    def run(stop=False, **where):
        def look(record):
            seen.append((record["stage"], record["epoch"]))
            if stop and seen[-1] == ("simclr", 2):
                raise Stop

        method = create("dtm", pretrain_epochs=3)
        backbone = "resnet18:width=8"
        fit_method(method, data, recipe, backbone=backbone, on_record=look, **where)
        return method.state_dict()

    whole = run()
    with pytest.raises(Stop):
        run(stop=True, folder=tmp_path)
    seen.clear()
    again = run(folder=tmp_path, resume=True)
    assert seen[:2] == [("simclr", 2), ("simclr", 3)]  # the first epoch is not made again
    for key, value in whole.items():
        assert torch.equal(value, again[key]), key


def test_images_use_the_encoder_and_init_says_where_the_classifier_starts(tmp_path):
    x = torch.rand(60, 3, 16, 16, generator=gen())
    data = Data(x, torch.arange(60) % 3, 3)
    recipe = Recipe(epochs=1, batch_size=30, lr=0.0, weight_decay=0.0, val=0.0)
    starts = {}
    for init in ("encoder", "scratch"):
        method = create("dtm", init=init, pretrain_epochs=1)
        records = []
        fit_method(method, data, recipe, backbone="resnet18:width=8", on_record=records.append)
        assert records[0]["stage"] == "simclr"
        same = [
            torch.equal(a, b)
            for a, b in zip(
                method.net.backbone.parameters(), method.encoder.backbone.parameters(), strict=True
            )
        ]
        starts[init] = all(same)
    assert starts == {"encoder": True, "scratch": False}


def test_pixels_are_refused():
    y = torch.zeros(8, 16, 16, dtype=torch.int64)
    data = Data(torch.rand(8, 3, 16, 16, generator=gen()), y, 2)
    for name, fields in (("dtm", {}), ("lra", {"k": 2})):
        with pytest.raises(BadInput, match="one label per row"):
            fit_method(
                create(name, features="raw", **fields), data, replace(RECIPE, epochs=1, val=0.0)
            )


@pytest.mark.parametrize(("without", "wanted"), [("nothing", 2.0), ("denoising", 1.0)])
def test_without_denoising_it_regresses(without, wanted, monkeypatch):
    method, data = create("dtm", without=without), blobs(n=40)
    method.build(make_spec(data, BACKBONE, RECIPE))
    monkeypatch.setattr(method.diffusion, "loss", lambda w, h, generator: 2 * torch.ones(len(w)))
    monkeypatch.setattr(method.diffusion, "regression", lambda w, h: torch.ones(len(w)))
    batch = Batch(data.x[:5], data.y[:5], torch.arange(5))
    step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x)
    assert float(method.diffusion_loss(batch, step)) == wanted


# ---- LRA ----------------------------------------------------------------------------------------


def test_labels_are_retrieved_from_neighbours():
    data = blobs(rate=0.3)
    method, _ = fit("lra", data=data, recipe=replace(FAST, val=0.0), k=4)
    h = torch.nn.functional.normalize((data.x - method.encoder.mean) / method.encoder.std, dim=-1)
    for i in (0, 5, 77):
        order = sorted(range(len(h)), key=lambda j: -float(h[i] @ h[j]))
        near = [j for j in order if j != i][:4]
        assert method.retrieved[i].tolist() == [int(data.y[i]), *(int(data.y[j]) for j in near)]


def test_neighbours_are_those_of_the_view_unless_they_are_frozen(monkeypatch):
    """The authors embed the augmented image and retrieve anew in every step."""
    data = blobs(n=60, rate=0.3)
    for retrieve in ("view", "frozen"):
        fields = {"k": 1, "retrieve": retrieve}
        method, _ = fit("lra", data=data, recipe=replace(FAST, val=0.0), **fields)
        other = (torch.arange(60) + 20) % 60  # the view of a row is another row
        h = method.encoder(data.x)
        labels = method.labels_near(method.encoder(data.x[other]), torch.arange(60))
        assert torch.equal(labels[:, 0], data.y)
        if retrieve == "frozen":
            assert torch.equal(labels, method.retrieved)
            continue
        key = torch.nn.functional.normalize(h, dim=-1)
        for i in (0, 31, 59):
            scores = key[other[i]] @ key.T
            scores[i] = -torch.inf
            assert int(labels[i, 1]) == int(data.y[int(scores.argmax())])
        seen = []

        def loss(target, condition, generator, seen=seen):
            seen.append(condition)
            return torch.zeros(len(target))

        monkeypatch.setattr(method.diffusion, "loss", loss)
        step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x + 1.0)
        method.loss(Batch(data.x, data.y, torch.arange(60)), step)
        assert torch.allclose(seen[0][:, method.spec.dim :], method.encoder(data.x + 1.0))


def test_the_loss_weighs_a_label_by_how_often_it_is_retrieved(monkeypatch):
    method = create("lra", k=3, retrieve="frozen")
    data = blobs(n=40)
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.retrieved.copy_(torch.tensor([[0, 1, 1, 1], [2, 2, 2, 2]]).repeat(20, 1))
    method.retrieved[3] = -1
    seen = []

    def loss(target, condition, generator):
        seen.append(target)
        return torch.arange(4.0)

    monkeypatch.setattr(method.diffusion, "loss", loss)
    index = torch.arange(4)
    step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x)
    found = float(method.loss(Batch(data.x[:4], data.y[:4], index), step))
    label = seen[0].argmax(-1)
    weight = [(method.retrieved[i] == label[i]).float().mean().item() for i in range(3)]
    assert found == pytest.approx(sum(i * weight[i] for i in range(3)) / sum(weight))
    assert weight[1] == 1.0 and weight[0] in (0.25, 0.75)


def test_every_retrieved_label_is_drawn_as_often(monkeypatch):
    method, data, drawn = create("lra", k=3, retrieve="frozen"), blobs(n=500), []
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.retrieved.copy_(torch.tensor([0, 2, 1, 1]).expand(500, 4))

    def loss(target, condition, generator):
        drawn.append(target)
        return torch.zeros(500)

    monkeypatch.setattr(method.diffusion, "loss", loss)
    step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x)
    method.loss(Batch(data.x, data.y, torch.arange(500)), step)
    assert drawn[0].mean(0).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.08)  # 3.6 sd


def test_lra_survives_noise_and_its_file(tmp_path):
    data = blobs(n=400, rate=0.3)
    x, y = data.x.numpy(), data.y.numpy()
    clf = Classifier(create("lra"), BACKBONE, epochs=12, batch_size=32).fit(x, y)
    assert (clf.predict(x) == data.clean.numpy()).mean() > 0.9
    clf.save(tmp_path / "model")
    assert np.array_equal(
        Classifier.load(tmp_path / "model").predict_proba(x), clf.predict_proba(x)
    )


def test_k_must_leave_neighbours():
    with pytest.raises(BadInput, match="k of lra is 0"):
        fit("lra", k=0)
    spec = make_spec(blobs(n=20), BACKBONE, RECIPE)
    create("lra", k=19).build(spec)  # a row is no neighbour of itself
    with pytest.raises(BadInput, match="k of lra must be below the number of rows, 20, not 20"):
        create("lra", k=20).build(spec)


def test_stages_on_features_can_be_captured():
    """No step waits for the host: under fake tensors, whose values nobody can read, they run."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    data = blobs(n=40)
    method = create("dtm")
    method.build(make_spec(data, BACKBONE, RECIPE))
    trainer = Trainer(method, RECIPE)
    rows = Data(data.x, data.y, 3)
    batch = trainer.batch(rows, torch.arange(8))
    step = StepInfo(torch.zeros(()), 1, gen(), lambda x: x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for loss in (method.common_loss, method.diffusion_loss, method.loss):
            assert loss(batch, step).shape == ()
