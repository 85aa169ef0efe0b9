"""ProMix: its rules of selection and debiasing against loops in float64, and odd batches."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from test_selection_methods import batch_of, built, step_at
from ytilde import noise
from ytilde.augment import make_augment, strong_view
from ytilde.data import BadInput, Batch, Data
from ytilde.engine import Recipe
from ytilde.losses import fmix, mixup
from ytilde.method import create, fit_method, make_spec
from ytilde.methods.promix import fill, pair_ce
from ytilde.selection import small_loss_by_class
from ytilde.testing import BACKBONE, RECIPE, blobs, fitted

EPOCHS = 20  # of `step_at`: epoch 0 warms up, from epoch 12 on guesses are added
WARM, MIDDLE, LATE = 0, 5, 15


def slow_small_loss_by_class(losses, y, num_classes, share):
    count = math.ceil(share * sum(c >= 0 for c in y) / num_classes)
    kept = []
    for c in range(num_classes):
        own = [i for i in range(len(y)) if y[i] == c]
        kept += sorted(own, key=lambda i: losses[i])[:count]
    return [i in kept for i in range(len(y))]


def softmax(z):
    z = np.exp(z - z.max())
    return z / z.sum()


def slow_choose(method, p, batch, epoch):
    """Labels and chosen rows of both networks, row by row."""
    n, y = len(batch.y), batch.y.tolist()
    pi = method.pi.numpy()  # [network, side, K]
    labels, chosen = [], []
    for k in (0, 1):
        small = method.small[k].tolist()
        kept = set()
        for i, index in enumerate(batch.index.tolist()):
            trusted = epoch == 0 or small[index] or p[k][i][y[i]] > method.threshold
            if y[i] >= 0 and trusted:
                kept.add(i)
        sure = {}
        for i in set(range(n)) - kept:
            agree = p[0][i].argmax() == p[1][i].argmax()
            low = min(p[0][i].max(), p[1][i].max())
            if epoch >= (1 - method.late) * EPOCHS and agree and low > method.threshold:
                sure[i] = low
        room = max(0, math.floor(method.limit * n + 1e-9) - len(kept))
        added = sorted(sure, key=lambda i: -sure[i])[:room]
        guess = [
            int((np.log(p[k][i]) - method.delta * np.log(pi[k, 0 if i in added else 1])).argmax())
            for i in range(n)
        ]
        labels.append([y[i] if i in kept else guess[i] for i in range(n)])
        chosen.append([i in kept or i in added for i in range(n)])
    return labels, chosen


def test_guesses_are_added_by_how_sure_the_networks_are_not_by_their_debiased_probabilities():
    """Of two classes of which one is predicted four times as often: 98 % is not 99 %."""
    method = create("promix", warm_up=0.0, late=1.0, limit=1.0)
    data = blobs(n=8, num_classes=2)
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.pi[:, 1] = torch.tensor([0.2, 0.8])
    batch = Batch(data.x, torch.full((8,), -1), torch.arange(8))
    for p, added in ((0.98, False), (0.994, True)):
        both = torch.tensor([p, 1 - p]).expand(2, 8, 2)
        for side in (both, both.flip(-1)):
            assert bool(method.choose(side, batch, step_at(MIDDLE))[1].all()) == added


def predictions(n, num_classes, seed, sharpness=4.0):
    """Of two networks that mostly agree, [2, n, K]."""
    generator = torch.Generator().manual_seed(seed)
    common, own = (torch.randn(k, n, num_classes, generator=generator).double() for k in (1, 2))
    return (sharpness * (common + 0.2 * own)).softmax(-1)


def a_case(seed=0, **fields):
    """A method with an uneven pi and a random selection, and a batch with unlabelled rows."""
    data = blobs(n=40, num_classes=4, rate=0.4)
    data.y[::7] = -1
    method, data = built("promix", data, **{"threshold": 0.8, "delta": 0.8} | fields)
    generator = torch.Generator().manual_seed(seed)
    method.pi.copy_(torch.rand(2, 2, 4, generator=generator).double() + 0.1)
    method.pi /= method.pi.sum(-1, keepdim=True)
    method.small.copy_(torch.rand(2, 40, generator=generator) < 0.3)
    rows = torch.randperm(40, generator=generator)[:24]
    return method, batch_of(data, rows)


def a_step_case(**fields):
    """The same in float32, in which networks compute."""
    method, batch = a_case(**fields)
    return method.float(), batch._replace(x=batch.x.float())


# ---- selection ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_small_losses_of_each_class_equal_a_slow_version(share):
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(50, generator=generator).double().round(decimals=1)  # with ties
    y = torch.randint(-1, 4, (50,), generator=generator)
    y[y == 2] = 3
    y[5] = 2  # a class of one row; class 4 has none
    got = small_loss_by_class(losses, y, 5, share)
    assert got.tolist() == slow_small_loss_by_class(losses.tolist(), y.tolist(), 5, share)


def test_small_losses_of_odd_classes():
    y = torch.tensor([0, 0, 0, 0, 1, -1, -1, -1])
    losses = torch.tensor([0.4, math.nan, 0.1, 0.2, 9.0, 0.0, 0.0, 0.0])
    kept = small_loss_by_class(losses, y, 2, 0.5)  # 5 labels: 2 of a class
    assert kept.nonzero().flatten().tolist() == [2, 3, 4]
    assert not small_loss_by_class(losses, torch.full_like(y, -1), 2, 0.5).any()


@pytest.mark.parametrize("epoch", [WARM, MIDDLE, LATE])
@pytest.mark.parametrize("limit", [0.9, 0.75])  # 18 of 24 rows, exactly
def test_choosing_equals_a_slow_version(epoch, limit):
    held_back = 0
    for seed in range(5):
        method, batch = a_case(seed, limit=limit)
        p, step = predictions(24, 4, seed), step_at(epoch, EPOCHS)
        labels, chosen = method.choose(p, batch, step)
        expected = slow_choose(method, p.numpy(), batch, epoch)
        assert (labels.tolist(), chosen.tolist()) == expected
        assert (chosen & (labels != batch.y)).any() == (epoch == LATE)
        method.limit = 1.0
        held_back += int((method.choose(p, batch, step)[1] & ~chosen).sum())
    assert epoch == LATE or held_back == 0, "only added rows are limited"
    assert (epoch, limit) != (LATE, 0.75) or held_back > 0


def test_guesses_are_debiased():
    """A class that is predicted too often is guessed less often, and never chosen for it."""
    method, batch = a_case()
    p = predictions(24, 4, 1, sharpness=0.5)
    counts = []
    for strength in (0.0, 0.8):
        method.delta = strength
        method.pi[:, 1] = torch.tensor([0.7, 0.1, 0.1, 0.1]).double()
        labels, _ = method.choose(p, batch._replace(y=torch.full((24,), -1)), step_at(MIDDLE))
        counts.append(int((labels == 0).sum()))
    assert counts[1] < counts[0]


# ---- the running means --------------------------------------------------------------------------


def test_running_means_equal_a_slow_version():
    method, _ = a_case(decay=0.6)
    method.pi.fill_(0.25)
    pi, seen = np.full((2, 2, 4), 0.25), np.ones((2, 2))
    for seed in range(4):
        p = predictions(6, 4, seed)
        chosen = torch.rand(2, 6, generator=torch.Generator().manual_seed(seed)) < 0.5
        if seed == 1:
            chosen[0], chosen[1] = True, False  # one side is empty: it stays where it was
        method.move_pi(p, chosen)
        for k in (0, 1):
            for side in (0, 1):
                rows = [i for i in range(6) if bool(chosen[k, i]) == (side == 0)]
                if rows:
                    seen[k, side] += 1
                    part = max(1 / seen[k, side], 1 - 0.6)
                    mean = p[k].numpy()[rows].mean(0)
                    pi[k, side] += part * (mean - pi[k, side])
    assert np.allclose(method.pi.numpy(), pi, atol=1e-12)


# ---- the loss -----------------------------------------------------------------------------------


def test_the_warm_up_is_the_debiased_cross_entropy_of_all_labels():
    method, batch = a_step_case()
    got = method.loss(batch, step_at(WARM)).item()
    expected = 0.0
    for k, net in enumerate((method.net, method.peer)):
        logits = net(batch.x).detach().numpy() + method.delta * np.log(method.pi.numpy()[k, 0])
        nll = [-np.log(softmax(z)[c]) for z, c in zip(logits, batch.y.tolist()) if c >= 0]  # noqa: B905
        expected += np.mean(nll)
    assert got == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("ramp", "epochs"), [(0.2, 4), (0.0, 1)])
def test_all_other_terms_come_in_over_the_ramp(ramp, epochs):
    """By equal steps, of which the first epoch after the warm-up makes one."""
    method, batch = a_step_case(ramp=ramp)
    y, chosen = batch.y.clamp_min(0), batch.y >= 0

    def loss(epoch):
        return method.one_loss(0, batch.x, batch.x, y, chosen, step_at(epoch)).item()

    alone, whole = loss(WARM), loss(MIDDLE)
    steps = [(loss(epoch) - alone) / (whole - alone) for epoch in (1, 2, 3, 4)]
    assert steps == pytest.approx([min(1, (k + 1) / epochs) for k in range(4)], abs=1e-4)


@pytest.mark.parametrize("k", [0, 1])
def test_the_loss_equals_a_slow_version(k):
    """CE(weak) + CE(strong) + mixup + FMix of chosen rows, and the second head on the others."""
    method, batch = a_step_case()
    y, chosen = batch.y.clamp_min(0), torch.arange(24) % 3 != 0
    strong = batch.x + 0.5
    got = method.one_loss(k, batch.x, strong, y, chosen, step_at(MIDDLE, EPOCHS, seed=4)).item()
    generator = torch.Generator().manual_seed(4)
    x, labels = fill(batch.x, y, chosen, generator)
    mixed, *first = mixup(x, labels, method.alpha, generator=generator)
    masked, *second = fmix(x, labels, generator=generator)
    net, bias = (method.net, method.peer)[k], method.delta * method.pi[k].log()

    def nll(head, x, side):
        with torch.no_grad():
            return -(head(net.features(x)) + bias[side]).log_softmax(1).double()

    rows, kept = torch.arange(24), chosen.nonzero().flatten()
    want = sum(nll(net.head, v, 0)[kept, y[kept]].mean() for v in (batch.x, strong))
    for v, (a, b, lam) in ((mixed, first), (masked, second)):
        each = nll(net.head, v, 0)
        want += (lam * each[rows, a] + (1 - lam) * each[rows, b]).mean()
    others = (~chosen).nonzero().flatten()
    want += nll(method.second[k], strong, 1)[others, y[others]].mean()
    assert got == pytest.approx(float(want), rel=1e-4)


def test_only_chosen_rows_teach_the_main_head_and_only_others_the_second():
    method, batch = a_step_case(threshold=1.0)
    for kept, main, second in ((True, True, False), (False, False, True)):
        method.zero_grad()
        method.small.fill_(kept)
        given = batch._replace(y=batch.y.clamp_min(0))
        method.loss(given, step_at(MIDDLE)).backward()
        heads = ((method.net.head, main), (method.second[0], second), (method.second[1], second))
        for head, learns in heads:
            grads = [p.grad.abs().sum().item() for p in head.parameters()]
            assert all(map(math.isfinite, grads)) and (sum(grads) > 0) == learns
        assert any(p.grad.abs().sum() > 0 for p in method.net.backbone.parameters())


@pytest.mark.parametrize("epoch", [WARM, MIDDLE, LATE])
@pytest.mark.parametrize("labels", ["none", "all", "one"])
def test_odd_batches_have_finite_gradients(epoch, labels):
    method, batch = a_step_case(threshold=1.0)
    method.small.fill_(labels == "all")
    y = batch.y.clamp_min(0) if labels == "all" else torch.full_like(batch.y, -1)
    if labels == "one":
        y[3] = 1
    method.loss(batch._replace(y=y), step_at(epoch)).backward()
    grads = [p.grad for p in method.parameters() if p.grad is not None]
    assert grads and all(torch.isfinite(grad).all() for grad in grads)
    assert torch.isfinite(method.pi).all()


def test_the_loss_of_a_pair_is_shared_as_its_parts_are():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y, other = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 1, 0, 2])
    lam = torch.tensor([0.2, 0.9, 0.5, 1.0], dtype=torch.float64)
    want = 0.0
    for i in range(4):
        p, share = softmax(logits[i].numpy()), float(lam[i])
        want -= (share * np.log(p[y[i]]) + (1 - share) * np.log(p[other[i]])) / 4
    assert pair_ce(logits, y, other, lam).item() == pytest.approx(want, rel=1e-9)


def test_each_network_keeps_its_own_small_losses_and_both_predict():
    data = blobs(n=60, num_classes=4, rate=0.3)
    method = create("promix", quota=0.4)
    trainer = fit_method(method, data, replace(RECIPE, epochs=1, val=0.0), backbone=BACKBONE)
    method.select(data, trainer)
    both = []
    for kept, net in zip(method.small, (method.net, method.peer), strict=True):
        with torch.no_grad():
            p = net(data.x).softmax(1)
        losses = (-p[torch.arange(60), data.y].log()).tolist()
        assert kept.tolist() == slow_small_loss_by_class(losses, data.y.tolist(), 4, 0.4)
        both.append(p)
    torch.testing.assert_close(method.predict_proba(data.x).detach(), (both[0] + both[1]) / 2)
    assert (both[0] - both[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("shape", "policy"),
    [
        ((3, 16, 16), "randaugment3+randomcutout+crop+flip"),
        ((1, 20, 16), "randaugment3+randomcutout+crop"),
        ((3, 20, 15), None),
        ((6,), None),
    ],
)
def test_the_strong_view_fits_the_input(shape, policy):
    x = torch.rand(6, *shape, generator=torch.Generator().manual_seed(0))
    method, _ = built("promix", Data(x, torch.arange(6) % 3, 3))
    method.float()
    want = make_augment(policy, shape) if policy else strong_view(shape, method.net.std)
    for seed in range(3):
        got, expected = (
            view(x, generator=torch.Generator().manual_seed(seed))
            for view in (method.strong_augment(), want)
        )
        torch.testing.assert_close(got, expected)


def test_a_batch_is_filled_with_chosen_rows_alike():
    x, y = torch.arange(10.0)[:, None], torch.arange(10)
    chosen = torch.tensor([0, 1, 0, 1, 1, 0, 0, 0, 0, 0]).bool()
    rows, labels = fill(x, y, chosen, torch.Generator().manual_seed(0))
    counts = labels.bincount(minlength=10)
    assert torch.equal(rows.flatten().long(), labels)
    assert sorted(counts[chosen].tolist()) == [3, 3, 4] and counts[~chosen].sum() == 0
    everything = fill(x, y, torch.ones(10).bool(), torch.Generator().manual_seed(0))[1]
    assert sorted(everything.tolist()) == list(range(10))


# ---- whole trainings ----------------------------------------------------------------------------


def test_ten_labels_are_enough_to_train():
    data = blobs(n=300, num_classes=3)
    y = torch.full_like(data.y, -1)
    y[:10] = data.y[:10]
    run = fitted(lambda: create("promix"), replace(data, y=y), epochs=40, val=0.0)
    assert run.accuracy(data) > 0.9


@pytest.mark.parametrize("rows", [[0] * 60 + [1], [*range(50), *range(50)]])
def test_rare_and_many_classes(rows):
    """A class with one row among 60 of another; 1,000 classes of which 50 have two rows."""
    y = torch.tensor(rows)
    generator = torch.Generator().manual_seed(0)
    num_classes = 2 if int(y.max()) == 1 else 1000
    x = torch.randn(num_classes, 6, generator=generator)[y] * 3
    data = Data(x + torch.randn(len(y), 6, generator=generator), y, num_classes)
    p = fitted(lambda: create("promix"), data, epochs=6, val=0.0).proba(data)
    assert p.shape == (len(y), num_classes)
    torch.testing.assert_close(p.sum(1), torch.ones(len(y)))
    assert -p[torch.arange(len(y)), y].log().mean() < math.log(num_classes)  # better than a guess


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 20, 16), (2, 8, 8)])
def test_images_of_any_kind(shape):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.rand(60, *shape, generator=generator) * 0.4
    x[torch.arange(60), 0, y] += 0.6
    recipe = replace(RECIPE, epochs=3, val=0.0, augment="crop1", precision="bfloat16")
    method = create("promix")
    trainer = fit_method(method, Data(x, y, 3), recipe, backbone=BACKBONE)
    assert all(math.isfinite(record["loss"]) for record in trainer.history)
    assert trainer.score(Data(x, y, 3))["nll"] < 0.98 * math.log(3)  # better than a guess


@pytest.mark.parametrize("stop_at", [1, 4])
def test_resumes_to_the_same_bits(tmp_path, stop_at):
    data, recipe = blobs(rate=0.3), replace(RECIPE, epochs=6)

    class Stop(Exception):
        pass

    def run(folder, resume=False, stop=0):
        def on_record(record):
            if record["epoch"] == stop:
                raise Stop

        method = create("promix")
        options = {"folder": folder, "resume": resume, "on_record": on_record}
        fit_method(method, data, recipe, backbone=BACKBONE, **options)
        return method.state_dict()

    whole = run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", stop=stop_at + 1)
    resumed = run(tmp_path / "cut", resume=True)
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_what_does_not_fit_is_refused_before_training():
    with pytest.raises(BadInput, match="does not work on features"):
        built("promix", strong="randaugment3")
    maps = Data(torch.rand(4, 1, 8, 8), torch.zeros(4, 8, 8, dtype=torch.long), 2)
    with pytest.raises(BadInput, match="one label per row"):
        fit_method(create("promix"), maps, replace(RECIPE, val=0.0), backbone="unet:width=4")


def test_beats_cross_entropy_on_digits_by_far():
    """40 % wrong labels, which cross-entropy learns by heart; last epoch, as in the benchmark."""
    x, clean = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    x, clean = (x / 16).float()[order], clean[order]
    noisy = noise.corrupt("symmetric:0.4,inclusive=false", x, clean, 10, generator=generator)
    train, test = Data(x[540:], noisy.y[540:], 10), Data(x[:540], clean[:540], 10)
    recipe = Recipe(
        epochs=60, batch_size=256, optimizer="adam", lr=4e-3, schedule="constant", val=0.0
    )
    accuracy = {}
    for name in ("ce", "promix"):
        trainer = fit_method(create(name), train, recipe, backbone="mlp:width=128,depth=1")
        accuracy[name] = trainer.score(test)["accuracy"]
    assert accuracy["promix"] > 0.92 and accuracy["promix"] > accuracy["ce"] + 0.15
