"""Multi-network and sample-selection methods: their steps against loops in float64."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils._python_dispatch import TorchDispatchMode

from ytilde import noise
from ytilde.data import BadInput, Batch, Data, StepInfo
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import fit_method, make_spec
from ytilde.losses import symmetric_beta
from ytilde.method import create
from ytilde.methods import cc as cc_file
from ytilde.methods._shared import auto_rate
from ytilde.methods.dividemix import fill
from ytilde.mixing import random_order
from ytilde.selection import two_component_mixture
from ytilde.testing import BACKBONE, RECIPE, blobs, fitted


def built(name, data=None, **fields):
    data = blobs(n=24) if data is None else data
    method = create(name, **fields)
    torch.manual_seed(3)
    method.build(make_spec(data, BACKBONE, RECIPE))
    return method.double(), data


def batch_of(data, rows):
    rows = torch.as_tensor(rows)
    return Batch(data.x[rows].double(), data.y[rows], rows)


def step_at(epoch=0, epochs=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return StepInfo(torch.tensor(float(epoch)), epochs, generator, lambda x: x)


def slow_nll(net, batch):
    p = net(batch.x).detach().numpy()
    p = np.exp(p - p.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return [-math.log(p[i, c]) if c >= 0 else None for i, c in enumerate(batch.y.tolist())]


def smallest(losses, count):
    known = [i for i, value in enumerate(losses) if value is not None]
    return sorted(known, key=lambda i: losses[i])[: max(1, count)]


def with_ignored(data):
    y = data.y.clone()
    y[[1, 5]] = -1
    return replace(data, y=y)


# ------------------------------------------------------------------ co-teaching


@pytest.mark.parametrize(("epoch", "keep"), [(0, 1.0), (1, 0.6), (19, 0.6)])
def test_co_teaching_equals_a_slow_version(epoch, keep):
    method, data = built("co_teaching", with_ignored(blobs(n=24)))
    method.noise_rate.fill_(0.4)
    batch = batch_of(data, range(12))
    first, second = slow_nll(method.net, batch), slow_nll(method.peer, batch)
    count = math.floor(keep * 10 + 1e-9)
    mine, theirs = smallest(second, count), smallest(first, count)
    expected = sum(first[i] for i in mine) / count + sum(second[i] for i in theirs) / count
    got = method.loss(batch, step_at(epoch))
    assert got.item() == pytest.approx(expected, abs=1e-9)


def test_co_teaching_gives_no_gradient_to_what_the_peer_rejects():
    method, data = built("co_teaching")
    method.noise_rate.fill_(0.5)
    batch = batch_of(data, range(8))
    x = batch.x.clone().requires_grad_()
    method.loss(batch._replace(x=x), step_at(10)).backward()
    chosen = set(smallest(slow_nll(method.peer, batch), 4))
    chosen |= set(smallest(slow_nll(method.net, batch), 4))
    touched = {i for i in range(8) if x.grad[i].abs().sum() > 0}
    assert touched == chosen


# ------------------------------------------------------------------ decoupling


def test_decoupling_learns_where_the_networks_disagree():
    method, data = built("decoupling", with_ignored(blobs(n=24)))
    batch = batch_of(data, range(24))
    guess, peer = (net(batch.x).argmax(1).tolist() for net in (method.net, method.peer))
    differ = [i for i in range(24) if guess[i] != peer[i] and data.y[i] >= 0]
    assert 0 < len(differ) < 22
    first, second = slow_nll(method.net, batch), slow_nll(method.peer, batch)
    expected = sum(first[i] + second[i] for i in differ) / len(differ)
    assert method.loss(batch, step_at(5)).item() == pytest.approx(expected, abs=1e-9)


def test_decoupling_warms_up_on_all_and_rests_where_all_agree():
    method, data = built("decoupling")
    method.peer.load_state_dict(method.net.state_dict())
    batch = batch_of(data, range(24))
    assert method.loss(batch, step_at(1)).item() == 0
    expected = 2 * np.mean(slow_nll(method.net, batch))
    assert method.loss(batch, step_at(0)).item() == pytest.approx(expected, abs=1e-9)


# ------------------------------------------------------------------ mentornet


@pytest.mark.parametrize("lam2", [0.0, 0.5])
def test_self_paced_mentor_equals_a_slow_version(lam2):
    method, data = built("mentornet", lam2=lam2, warm_up=0.1)
    method.noise_rate.fill_(0.3)
    threshold, parts = None, [range(11), range(11, 22)]
    for epoch, rows in zip((1, 2), parts, strict=True):  # epoch 1 is burn-in, 2 is not
        batch = batch_of(data, rows)
        losses = slow_nll(method.net, batch)
        now = sorted(losses)[round(0.7 * 10)]
        threshold = now if threshold is None else 0.9 * threshold + 0.1 * now
        total = 0.0
        for value in losses:
            soft = value <= threshold if lam2 == 0 else 1 - (value - threshold) / lam2
            total += value * (1.0 if epoch == 1 else min(max(float(soft), 0.0), 1.0))
        got = method.loss(batch, step_at(epoch))
        assert float(got) == pytest.approx(total / 11, abs=1e-9)
        assert float(method.threshold[0]) == pytest.approx(threshold, abs=1e-9)


def test_small_loss_mentor_trains_two_networks_apart_and_averages_them():
    method, data = built("mentornet", mentor="small_loss")
    method.noise_rate.fill_(0.25)
    batch = batch_of(data, range(12))
    expected = 0.0
    for losses in (slow_nll(method.net, batch), slow_nll(method.peer, batch)):
        expected += sum(losses[i] for i in smallest(losses, 9)) / 12
    assert method.loss(batch, step_at(9)).item() == pytest.approx(expected, abs=1e-9)
    p = method.predict_proba(batch.x)
    both = (method.net(batch.x).softmax(1) + method.peer(batch.x).softmax(1)) / 2
    assert torch.allclose(p, both)


def test_small_loss_mentor_fits_and_an_unknown_one_is_refused():
    run = fitted(lambda: create("mentornet", mentor="small_loss"), blobs(rate=0.2), epochs=4)
    assert (run.proba(blobs()).argmax(-1) == blobs().clean).float().mean() > 0.95
    with pytest.raises(BadInput, match="self_paced"):
        built("mentornet", mentor="self_pace")


# ------------------------------------------------------------------ captured steps


class NoQuestions(TorchDispatchMode):
    """Fails where a step asks for a value or makes a shape from values: no graph could hold it."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.__name__.split(".")[0] not in self.ASKING, function
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name", ["co_teaching", "decoupling", "mentornet", "dividemix", "cc", "promix"]
)
def test_steps_never_ask_the_device(name):
    method, data = built(name)
    method.float()
    batch = Batch(data.x[:8], data.y[:8], torch.arange(8))
    sides = ("net_labelled", "net_unlabelled", "peer_labelled", "peer_unlabelled")
    with NoQuestions():
        if name in ("dividemix", "cc"):
            method.warm_loss(batch, step_at()).backward()
            method.semi_loss(dict.fromkeys(sides, batch), step_at(3)).backward()
        else:
            method.loss(batch, step_at(3)).backward()


# ------------------------------------------------------------------ the noise rate


def digits(kind, seed=0):
    x, clean = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    x = (x / 16).float().view(-1, 1, 8, 8)
    generator = torch.Generator().manual_seed(seed)
    noisy = noise.corrupt(kind, x, clean, 10, generator=generator)
    return Data(x, noisy.y, 10), float((noisy.y != clean).float().mean())


@pytest.mark.parametrize("kind", ["symmetric:0.4,inclusive=false", "instance:0.2"])
def test_the_rate_is_estimated_from_noisy_data(kind):
    data, true = digits(kind)
    method = create("co_teaching")
    fit_method(method, data, replace(RECIPE, epochs=1), backbone=BACKBONE)
    assert abs(float(method.noise_rate) - true) < 0.05


def test_a_given_rate_is_taken_and_a_bad_one_refused():
    run = fitted(lambda: create("co_teaching", rate=0.123), blobs(), epochs=1)
    assert float(run.method.noise_rate) == pytest.approx(0.123)
    assert auto_rate(0, None, blobs(), None) == 0.0
    for bad in (1.0, -0.1, "much"):
        with pytest.raises(BadInput, match="rate must be a share"):
            auto_rate(bad, None, blobs(), None)


def colours(n=200):
    """Colour images whose class shows in the channel's mean."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.rand(n, 3, 6, 6, generator=generator) * 0.5
    x[torch.arange(n), y] += 0.5
    return Data(x, y, 3)


def test_colour_images_use_a_short_training_and_put_the_network_back(tmp_path):
    data, recipe = colours(), replace(RECIPE, epochs=20, val=0.0)
    method = create("co_teaching")
    torch.manual_seed(0)
    method.build(make_spec(data, BACKBONE, recipe))
    before = {name: value.clone() for name, value in method.state_dict().items()}
    trainer = Trainer(method, recipe, folder=tmp_path)
    rate = auto_rate("auto", method.net, data, trainer)
    assert rate < 0.05
    assert [record["stage"] for record in trainer.history] == ["rate"] * 2
    for name, value in method.state_dict().items():
        assert torch.equal(value, before[name]), name
    again = Trainer(method, recipe, folder=tmp_path)
    assert auto_rate("auto", method.net, data, again) == pytest.approx(rate)
    assert not again.history, "the run folder kept the rate, but it was estimated anew"


@pytest.mark.parametrize(("side", "trained"), [(32, False), (33, True)])
def test_small_grey_pictures_are_compared_as_they_are(side, trained, tmp_path):
    y = torch.arange(60) % 3
    x = torch.rand(60, 1, side, side, generator=torch.Generator().manual_seed(0)) / 2
    x[torch.arange(60), :, y] += 0.5
    data, method = Data(x, y, 3), create("co_teaching")
    method.build(make_spec(data, BACKBONE, RECIPE))
    trainer = Trainer(method, RECIPE, folder=tmp_path)
    assert auto_rate("auto", method.net, data, trainer) < 0.1
    assert bool(trainer.history) is trained


def test_pixel_labels_need_a_rate():
    data = Data(torch.rand(4, 1, 4, 4), torch.zeros(4, 4, 4, dtype=torch.long), 2)
    with pytest.raises(BadInput, match="one label per row"):
        auto_rate("auto", None, data, None)


# ------------------------------------------------------------------ DivideMix


def test_fill_uses_every_row_equally_often():
    rows = torch.tensor([3, 5, 8])
    counts = fill(rows, 8, torch.Generator().manual_seed(0)).bincount(minlength=9)
    assert sorted(counts[rows].tolist()) == [2, 3, 3] and int(counts.sum()) == 8


def streams_of(right, y=None, batch_size=4):
    data = blobs(n=12)
    data = data if y is None else replace(data, y=y)
    method, _ = built("dividemix", data)
    method.right.copy_(torch.as_tensor(right))
    trainer = Trainer(method, replace(RECIPE, batch_size=batch_size))
    return method.streams(data, trainer)


def test_streams_have_whole_batches_and_the_right_sides():
    right = torch.zeros(2, 12)
    right[0, :5], right[1, 6:] = 0.9, 0.9
    streams = streams_of(right)
    assert next(iter(streams)) == "net_labelled"
    assert {len(rows) for rows in streams.values()} == {8}  # six labelled rows: two batches of 4
    assert set(streams["net_labelled"].tolist()) == set(range(5))
    assert set(streams["net_unlabelled"].tolist()) == set(range(5, 12)), "seven rows in eight"
    assert set(streams["peer_labelled"].tolist()) == set(range(6, 12))


def test_an_empty_side_becomes_all_rows_that_may_stand_there():
    y = torch.arange(12) % 3
    y[0] = -1
    streams = streams_of(torch.stack([torch.zeros(12), torch.ones(12)]), y, batch_size=32)
    assert {len(rows) for rows in streams.values()} == {12}
    assert set(streams["net_labelled"].tolist()) == set(range(1, 12)), "-1 is not a label"
    assert set(streams["peer_unlabelled"].tolist()) == set(range(12))


def slow_softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def test_mixmatch_equals_a_slow_version():
    """Eq. 5-8 by loops; without augmentation both views are the inputs."""
    method, data = built("dividemix")
    method.train()
    labelled, unlabelled = batch_of(data, range(4)), batch_of(data, range(4, 8))
    right = torch.rand(24, generator=torch.Generator().manual_seed(5)).double()
    x, targets = method.mixmatch(
        method.net, method.peer, labelled, unlabelled, right, step_at(seed=9)
    )
    with torch.no_grad():
        logits = {
            (n, s): net(b.x).numpy()
            for n, net in (("net", method.net), ("peer", method.peer))
            for s, b in (("l", labelled), ("u", unlabelled))
        }
    ours = []
    for i in range(4):
        w = float(right[i])
        p = (1 - w) * slow_softmax(logits["net", "l"][i])
        p[int(labelled.y[i])] += w
        ours.append(p**2 / (p**2).sum())
    for i in range(4):
        p = (slow_softmax(logits["net", "u"][i]) + slow_softmax(logits["peer", "u"][i])) / 2
        ours.append(p**2 / (p**2).sum())
    ours = [*ours[:4], *ours[:4], *ours[4:], *ours[4:]]
    inputs = torch.cat([labelled.x, labelled.x, unlabelled.x, unlabelled.x]).numpy()
    generator = torch.Generator().manual_seed(9)
    lam = float(symmetric_beta(4.0, generator))
    lam = max(lam, 1 - lam)
    order = random_order(16, generator).tolist()
    for i, j in enumerate(order):
        np.testing.assert_allclose(targets[i], lam * ours[i] + (1 - lam) * ours[j], atol=1e-6)
        np.testing.assert_allclose(x[i], lam * inputs[i] + (1 - lam) * inputs[j], atol=1e-6)
    assert method.net.training and method.peer.training


@pytest.mark.parametrize(("epoch", "share"), [(0, 0.0), (1, 0.5), (2, 1.0), (9, 1.0)])
def test_mixed_loss_equals_a_slow_version(epoch, share):
    method, _ = built("dividemix", lam_u=7.0, ramp=0.1)
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(8, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(8, 3, generator=generator, dtype=torch.float64).softmax(1)
    p = [slow_softmax(row) for row in logits.numpy()]
    t = targets.numpy()
    supervised = -sum(t[i] @ np.log(p[i]) for i in range(4)) / 4
    guessed = sum(((p[i] - t[i]) ** 2).sum() for i in range(4, 8)) / (4 * 3)
    mean = sum(p) / 8
    kl = sum(1 / 3 * math.log(1 / 3 / mean[c]) for c in range(3))
    expected = supervised + 7.0 * share * guessed + kl
    assert float(method.mixed_loss(logits, targets, step_at(epoch))) == pytest.approx(
        expected, abs=1e-5
    )


def test_the_penalty_is_the_negative_entropy():
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    y = torch.tensor([1])
    plain, full = (built("dividemix", penalty=s)[0].penalised(logits, y) for s in (0.0, 1.0))
    p = slow_softmax(logits[0].double().numpy())
    assert float(full - plain) == pytest.approx(float(p @ np.log(p)), abs=1e-5)


@pytest.mark.parametrize("name", ["dividemix", "cc"])
def test_the_geometric_mean_of_both_networks_predicts(name):
    method, data = built(name)
    with torch.no_grad():
        p, q = (net(data.x.double()).softmax(1).numpy() for net in (method.net, method.peer))
        got = method.predict_proba(data.x.double()).numpy()
    both = np.sqrt(p * q)
    np.testing.assert_allclose(got, both / both.sum(1, keepdims=True), atol=1e-6)
    assert np.abs(p - q).max() > 0.01


def test_the_warm_up_is_cross_entropy_of_every_head():
    """DivideMix has two networks of one head, CC two of three."""
    for name in ("dividemix", "cc"):
        method, data = built(name, with_ignored(blobs(n=24)))
        batch = batch_of(data, range(12))
        want = 0.0
        for net in (method.net, method.peer):
            h = net.features(batch.x)
            heads = [net.head(h)]
            if name == "cc":
                heads += [twin(net.bottleneck(h)) for twin in net.twins]
            for logits in heads:
                p = logits.detach().softmax(1)
                known = [i for i in range(12) if batch.y[i] >= 0]
                want -= sum(math.log(p[i, batch.y[i]]) for i in known) / len(known)
        assert method.warm_loss(batch, step_at()).item() == pytest.approx(want, abs=1e-6)


def test_division_serves_the_other_network_and_finds_wrong_labels():
    data = blobs(n=300, rate=0.3)
    method, seen = create("dividemix"), []

    class Spy(type(method)):
        def streams(self, data, trainer):
            seen.append((self.right.clone(), *(self.divide(n, data, trainer) for n in nets(self))))
            return super().streams(data, trainer)

    def nets(m):
        return m.net, m.peer

    spy = Spy()
    fit_method(spy, data, replace(RECIPE, epochs=10, val=0.0), backbone=BACKBONE)
    right, by_net, by_peer = seen[-1]
    assert torch.equal(right[0], by_peer) and torch.equal(right[1], by_net)
    kept, clean = right[0] > 0.5, data.y == data.clean
    assert (kept == clean).float().mean() > 0.9


@pytest.mark.parametrize("name", ["dividemix", "cc"])
def test_resuming_goes_on_to_the_same_bits(name, tmp_path):
    data, recipe = blobs(rate=0.2), replace(RECIPE, epochs=6)

    def stop(record):
        if record["stage"] == "main" and record["epoch"] == 3:
            raise KeyboardInterrupt

    whole, again = create(name), create(name)
    fit_method(whole, data, recipe, backbone=BACKBONE)
    with pytest.raises(KeyboardInterrupt):
        fit_method(create(name), data, recipe, backbone=BACKBONE, folder=tmp_path, on_record=stop)
    fit_method(again, data, recipe, backbone=BACKBONE, folder=tmp_path, resume=True)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


@pytest.mark.parametrize("name", ["dividemix", "cc"])
def test_rows_without_a_label_take_part_unlabelled(name):
    data = blobs(n=200)
    y = torch.where(torch.arange(200) % 4 == 0, -1, data.y)
    run = fitted(lambda: create(name), replace(data, y=y), epochs=16, val=0.0)
    assert (run.method.right[:, y == -1] == 0).all()
    assert (run.proba(data).argmax(1) == data.clean).float().mean() > 0.9


# ------------------------------------------------------------------ CC


def test_centrality_equals_a_slow_version():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    guess = torch.randint(0, 3, (20,), generator=generator)
    y = torch.randint(0, 4, (20,), generator=generator)  # nothing is guessed to be of class 3
    got = cc_file.centrality(features, guess, y, 4)
    unit = [row / np.linalg.norm(row) for row in features.numpy()]
    for i in range(20):
        mates = [unit[j] for j in range(20) if guess[j] == y[i]]
        if mates:
            centre = sum(mates) / len(mates)
            expected = unit[i] @ centre / np.linalg.norm(centre)
        else:
            expected = -1.0
        assert float(got[i]) == pytest.approx(expected, abs=1e-9)


def test_heads_part_most_where_their_labels_leave_them_free(monkeypatch):
    """Rows in the middle of a class stay agreed upon; rows between two classes do not.

    By a tenth of the L1 distance: half of that, its mean over two classes, ends at .028.
    """
    generator = torch.Generator().manual_seed(0)
    twins = tuple(torch.nn.Linear(2, 2) for _ in range(2))
    with torch.no_grad():
        for twin in twins:
            twin.weight.copy_(0.1 * torch.randn(2, 2, generator=generator))
            twin.bias.zero_()
    x = torch.randn(200, 2, generator=generator)
    y = torch.arange(200) % 2  # one sixth of the rows are nearer to the other class
    x[:, 0] += 1.0 - 2.0 * y
    alike = copy.deepcopy(twins)
    cc_file.push_heads_apart(twins, x, y, 100, 64, torch.Generator().manual_seed(0))
    p, q = (twin(x).softmax(1) for twin in twins)
    apart = cc_file.distance(p, q)
    monkeypatch.setattr(cc_file, "PULL", 0.0)
    cc_file.push_heads_apart(alike, x, y, 100, 64, torch.Generator().manual_seed(0))
    unpushed = cc_file.distance(*(twin(x).softmax(1) for twin in alike))
    assert apart.mean() > 0.045 and unpushed.mean() < 0.01
    middle, border = x[:, 0].abs() > 3, x[:, 0].abs() < 1.5
    assert apart[border].mean() > 10 * apart[middle].mean()
    assert ((p.argmax(1) == y) & (q.argmax(1) == y)).float().mean() > 0.8


def test_heads_part_on_classes_alike_and_never_on_rows_without_a_label(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 90 + [1] * 10 + [-1] * 20)
    x = torch.randn(120, 3, generator=generator)
    x[100:] = torch.nan
    seen = []
    monkeypatch.setattr(cc_file, "ce", lambda z, y: (seen.append(y), (z**2).mean(-1))[1])
    twins = tuple(torch.nn.Linear(3, 2) for _ in range(2))
    cc_file.push_heads_apart(twins, x, y, 50, 32, generator)
    labels = torch.cat(seen)
    assert labels.min() == 0 and len(seen) == 2 * 50
    assert abs(float(labels.float().mean()) - 0.5) < 0.05, "nine in ten are of class 0"
    assert all(torch.isfinite(twin.weight).all() for twin in twins)
    before = twins[0].weight.clone()
    cc_file.push_heads_apart(twins, x, torch.full_like(y, -1), 50, 32, generator)
    assert torch.equal(before, twins[0].weight)


@pytest.mark.parametrize("threshold", [0.5, 0.9999])
def test_agreement_of_zero_keeps_all_central_labels_and_no_others(threshold):
    data = blobs(n=120, rate=0.2)
    hazy = 3 * torch.randn(data.x.shape, generator=torch.Generator().manual_seed(0))
    data = replace(data, x=data.x + hazy)
    recipe = Recipe(epochs=4, batch_size=32, optimizer="adam", lr=5e-3, val=0.0)
    method = create("cc", agreement=0.0, threshold=threshold)
    trainer = fit_method(method, data, recipe, backbone=BACKBONE)
    h = trainer.map(lambda batch: method.net.features(batch.x), data)
    with torch.no_grad():
        guess, features = method.net.head(h).argmax(1), method.net.bottleneck(h)
    cosine = cc_file.centrality(features, guess, data.y, 3)
    central = two_component_mixture(1 - cosine)
    expected = torch.where(central > method.threshold, central, 0.0)
    assert threshold < 0.9 or ((central > 0.01) & (expected == 0)).any()
    assert torch.allclose(method.divide(method.net, data, trainer), expected, atol=1e-6)


def test_agreement_of_zero_keeps_labels_whose_heads_are_surely_apart(monkeypatch):
    """The mixture's posteriors are exactly 0 where two clusters lie far apart."""
    data = blobs(n=60, rate=0.2)
    recipe = Recipe(epochs=2, batch_size=32, optimizer="adam", lr=1e-3, val=0.0)
    method = create("cc", agreement=0.0)
    trainer = fit_method(method, data, recipe, backbone=BACKBONE)
    monkeypatch.setattr(
        cc_file, "two_component_mixture", lambda z: torch.ones(60) if len(z) == 60 else 0 * z
    )
    assert torch.equal(method.divide(method.net, data, trainer), torch.ones(60))
    method.agreement = 0.1
    assert not method.divide(method.net, data, trainer).any()


def test_cc_adds_both_heads_fit_and_a_tenth_of_their_distance():
    """Against loops in float64; the distance moves the features alone, never the heads."""
    data = blobs(n=24)
    method = create("cc")
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.double()
    x, k = data.x[:8].double(), data.num_classes
    targets = torch.rand(8, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = targets / targets.sum(1, keepdim=True)
    step = StepInfo(torch.zeros(()), 10, torch.Generator(), lambda x: x)
    got = method.one_loss(method.net, x, targets, step)
    net = method.net
    h = net.features(x)
    a, b = (twin(net.bottleneck(h)).softmax(1).detach().numpy() for twin in net.twins)
    fit = sum(-(targets[i] * torch.as_tensor(p[i]).log()).sum() for p in (a, b) for i in range(4))
    apart = sum(abs(a[i, c] - b[i, c]) for i in range(8) for c in range(k)) / 8
    want = method.mixed_loss(net.head(h), targets, step) + fit / 4 + 0.1 * apart
    assert got.item() == pytest.approx(want.item(), abs=1e-6)
    twins = [twin.weight for twin in net.twins]
    backbone = list(net.backbone.parameters())
    moved = torch.autograd.grad(got, backbone, retain_graph=True)
    features = net.bottleneck(h)  # what fits the heads leaves the backbone alone
    p, q = (
        (features @ twin.weight.detach().T + twin.bias.detach()).softmax(1) for twin in net.twins
    )
    other = method.mixed_loss(net.head(h), targets, step) + 0.1 * (p - q).abs().sum(1).mean()
    for one, of_others in zip(
        moved, torch.autograd.grad(other, backbone, retain_graph=True), strict=True
    ):
        torch.testing.assert_close(one, of_others)
    whole = torch.autograd.grad(got, twins, retain_graph=True)
    logits = [twin(net.bottleneck(h.detach())[:4]) for twin in net.twins]
    alone = -sum((targets[:4] * z.log_softmax(1)).sum() for z in logits) / 4
    for one, other in zip(whole, torch.autograd.grad(alone, twins), strict=True):
        torch.testing.assert_close(one, other)
