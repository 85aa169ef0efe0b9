"""Second opinion: its targets and estimates against loops in float64, and what it must survive."""

import importlib.util
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from ytilde import Classifier, noise
from ytilde.augment import strong_view
from ytilde.data import IGNORE, Batch, Data, StepInfo
from ytilde.engine import Recipe
from ytilde.losses import one_hot
from ytilde.method import create, fit_method, make_spec
from ytilde.methods.second_opinion import SecondOpinion, count_T, sources, wrong_of_surest
from ytilde.testing import BACKBONE, RECIPE, blobs


def built(data, **fields):
    method = create("second_opinion", **fields)
    torch.manual_seed(0)
    method.build(make_spec(data, BACKBONE, RECIPE))
    return method


def draw(n, k, seed=0, sure=3.0):
    generator = torch.Generator().manual_seed(seed)
    opinions = (sure * torch.randn(n, k, generator=generator)).softmax(1)
    return opinions, torch.randint(k, (n,), generator=generator)


def slow_sources(T, count, prior=5.0):
    k = len(T)
    S = np.ones((k, k))
    for j in range(k):
        others = [i for i in range(k) if i != j]
        share = sum(T[i, j] * count[i] for i in others) / max(1, sum(count[i] for i in others))
        for i in others:
            S[i, j] = (T[i, j] * count[i] + prior) / (share * count[i] + prior)
    return S


def test_sources_against_loops():
    T, count = draw(6, 6)[0].double(), torch.tensor([3.0, 0.0, 40.0, 900.0, 12.0, 7.0]).double()
    S = sources(T, count)
    np.testing.assert_allclose(S.numpy(), slow_sources(T.numpy(), count.numpy()))
    assert torch.equal(S.diagonal(), torch.ones(6, dtype=torch.float64))


def test_sources_tell_nothing_of_wrong_labels_that_are_alike_or_few():
    alike = 0.6 * torch.eye(5) + 0.4 / 5
    torch.testing.assert_close(sources(alike, torch.full((5,), 900.0)), torch.ones(5, 5))
    pair = 0.6 * torch.eye(5) + 0.4 * torch.eye(5).roll(1, 1)
    assert (sources(pair, torch.full((5,), 0.01)) - 1).abs().max() < 0.01
    many = sources(pair, torch.full((5,), 1e6))
    assert (many[0, 1], many[2, 1]) == (pytest.approx(4.0, rel=1e-3), pytest.approx(0, abs=1e-3))


def test_a_label_that_is_not_believed_is_replaced_by_a_class_that_is_given_it():
    """An opinion that wavers between two classes, of which one alone is mistaken for the label."""
    method = built(blobs(n=24))
    k = method.spec.num_classes
    method.spec = replace(method.spec, num_train=60_000)
    wavers = torch.tensor([0.5, 0.5, 1e-9]).expand(2, 1, k)
    method.take(0.6 * torch.eye(k) + 0.4 * torch.eye(k).roll(1, 1))  # class 1 becomes label 2
    assert (method.target(wavers, torch.tensor([2]), 1.0)[..., 1] > 0.99).all()
    method.confusion = 0.0
    method.take(method.T)
    torch.testing.assert_close(method.target(wavers, torch.tensor([2]), 1.0)[0, 0, 0].item(), 0.5)


def test_targets_believe_a_label_by_its_lift():
    """Against loops in float64."""
    data = blobs(n=24)
    method = built(data, exponent=2.0)
    k = data.num_classes
    opinions = torch.stack([draw(6, k, seed=seed)[0] for seed in (0, 1)])
    y = draw(6, k)[1]
    y[2] = IGNORE
    method.means.copy_(draw(2, k, seed=2)[0].unsqueeze(1))
    method.take(draw(k, k, seed=3)[0])
    S = slow_sources(method.T.double().numpy(), 12 * method.frequency.double().numpy())
    got = method.target(opinions, y, 0.25).double().numpy()
    m, c = opinions.double().numpy(), method.means.double().numpy()
    for net in range(2):
        for i in range(6):
            lift = m[net, i] / c[net, 0]
            label, w = np.zeros(k), 0.0
            if y[i] >= 0:
                label[int(y[i])], w = 1.0, (lift[int(y[i])] / lift.max()) ** 2
            told = np.ones(k) if y[i] < 0 else S[:, int(y[i])]
            sharp = (m[net, i] * told) ** 2 / ((m[net, i] * told) ** 2).sum()
            want = 0.75 * label + 0.25 * (w * label + (1 - w) * sharp)
            np.testing.assert_allclose(got[net, i], want, rtol=1e-5)


def test_a_label_of_the_largest_lift_is_believed_and_an_excluded_one_is_not():
    method = built(blobs(n=24))
    k = method.spec.num_classes
    opinions = torch.full((2, 1, k), 1e-9)
    opinions[..., 1] = 1.0
    believed = method.target(opinions, torch.tensor([1]), 1.0)
    torch.testing.assert_close(believed, torch.eye(k)[1].expand(2, 1, k))
    excluded = method.target(opinions, torch.tensor([0]), 1.0)
    torch.testing.assert_close(excluded, believed, atol=1e-6, rtol=0)


def test_labels_are_taken_at_their_word_during_the_warm_up():
    data = blobs(n=24)
    for fields, at in (({}, 0.05), ({"warm_up": 0.5}, 0.5)):
        method = built(data, **fields)
        step = StepInfo(torch.tensor(100 * at), 100, torch.Generator(), lambda x: x)
        assert method.trust(step) == 0
        opinions, y = draw(6, data.num_classes)
        got = method.target(opinions.expand(2, -1, -1), y, method.trust(step))
        torch.testing.assert_close(got[0].argmax(1), y)
    late = StepInfo(torch.tensor(60.0), 100, torch.Generator(), lambda x: x)
    assert built(data, warm_up=0.5).trust(late) == 1
    between = StepInfo(torch.tensor(55.0), 100, torch.Generator(), lambda x: x)
    assert built(data, warm_up=0.5).trust(between).item() == pytest.approx(0.5)


def test_a_run_made_before_that_was_kept_loads():
    """What a label tells that is not believed follows from T and the classes' frequency."""
    method, other = built(blobs(n=24)), built(blobs(n=24))
    k = method.spec.num_classes
    method.frequency.copy_(torch.tensor([0.2, 0.3, 0.5]))
    method.take(draw(k, k, seed=3)[0])
    new = {name: value for name, value in method.state_dict().items() if name != "taught"}
    without = {name: value for name, value in new.items() if name != "told"}
    without_doubt = {name: value for name, value in new.items() if name != "doubt"}
    older = {name: value for name, value in without.items() if name != "doubt"}
    other.doubt.fill_(0.5)
    other.load_state_dict(without_doubt | {"taught": other.taught})
    assert other.doubt == 1.0
    for old in (without, older, new | {"told": torch.zeros(k, k)}):  # was the logarithm once
        other.told.zero_()
        other.load_state_dict(old)
        torch.testing.assert_close(other.told, method.told)
    assert (other.told - 1).abs().max() > 0.01


def test_pictures_warm_up_for_longer_than_vectors():
    """Half of the ramp, a tenth of training, is done 0.05 after the warm-up."""
    pictures = Data(torch.rand(12, 1, 8, 8), torch.arange(12) % 3, 3)
    for data, at in ((blobs(n=24), 0.15), (pictures, 0.35)):
        step = StepInfo(torch.tensor(100 * at), 100, torch.Generator(), lambda x: x)
        assert built(data).trust(step).item() == pytest.approx(0.5, abs=1e-4)


def test_each_network_learns_from_the_opinion_of_the_other():
    """Change what one average thinks: only the gradient of the other network changes."""
    data = pictures(40)
    method = SecondOpinion(warm_up=0.0, ramp=0.0, memory=0.0)
    torch.manual_seed(0)
    method.build(make_spec(data, "lenet5", RECIPE))
    step = StepInfo(torch.tensor(5.0), 10, torch.Generator(), lambda x: x)
    start = {name: value.clone() for name, value in method.state_dict().items()}
    grads = []
    for shift in (0.0, 3.0):
        method.load_state_dict(start)
        method.steps.fill_(1e9)  # the averages stay
        last = list(method.average.parameters())[-1]
        last.data[0] += shift
        method.zero_grad()
        step.generator.manual_seed(0)
        method.loss(Batch(data.x, data.y, torch.arange(40)), step).backward()
        nets = (method.net, method.peer)
        grads.append([torch.cat([p.grad.flatten() for p in net.parameters()]) for net in nets])
    torch.testing.assert_close(grads[0][0], grads[1][0])
    assert not torch.allclose(grads[0][1], grads[1][1], rtol=0.01)


def test_what_a_table_teaches_is_worked_out_between_epochs():
    """After one epoch: of all rows, from what the other network's average thinks of them."""
    data = blobs(n=60)
    y = data.y.clone()
    y[:5] = IGNORE
    recipe = replace(RECIPE, epochs=1, val=0.0)
    method = create("second_opinion")
    fit_method(method, replace(data, y=y), recipe, backbone=BACKBONE)
    method.eval()
    with torch.no_grad():
        averages = (method.average, method.peer_average)
        thought = torch.stack([net(data.x).softmax(-1) for net in averages])
    assert (thought[0] - thought[1]).abs().max() > 1e-3
    torch.testing.assert_close(method.opinions.all().view_as(thought), thought)
    torch.testing.assert_close(method.means, thought.mean(1, keepdim=True))
    want = method.target(thought, y, 1.0)
    torch.testing.assert_close(method.taught, torch.stack([want[1], want[0]]))
    index = torch.tensor([50, 2, 7])
    late, early = (method.teach(data.x[index], Batch(data.x[index], y[index], index), at(progress))
                   for progress in (0.9, 0.0))  # fmt: skip
    torch.testing.assert_close(late, method.taught[:, index])
    labels = one_hot(y[index], late[0])
    assert torch.equal(early, torch.stack([labels, labels]))


def test_a_table_too_large_for_that_learns_as_well(monkeypatch):
    train, test = digits("symmetric:0.4,inclusive=false")
    recipe = Recipe(epochs=30, optimizer="adamw", lr=2e-3, weight_decay=1e-4, val=0.0)
    accuracy = []
    for most in (0, 2**24):
        monkeypatch.setattr("ytilde.methods.second_opinion.MOST", most)
        method = create("second_opinion")
        trainer = fit_method(method, train, recipe, backbone="mlp:width=128,depth=1")
        accuracy.append(trainer.score(test)["accuracy"])
        assert len(method.taught[0]) == (len(train) if most else 0)
    assert min(accuracy) > 0.93 and abs(accuracy[0] - accuracy[1]) < 0.015, accuracy


def test_an_opinion_is_a_running_mean_that_starts_at_the_first():
    """Of each average, row by row."""
    data = blobs(n=30)
    method = built(data, memory=0.7)
    index = torch.tensor([4, 20, 11])
    nets = (method.average, method.peer_average)
    want = None
    for shift in (0.0, 1.0, -0.5):
        x = data.x[index] + shift
        with torch.no_grad():
            fresh = torch.stack([net(x).softmax(-1) for net in nets])
            got = method.ask(x, index)
        want = fresh if want is None else 0.7 * want + 0.3 * fresh
        torch.testing.assert_close(got, want)
    held = method.opinions.all().view(2, 30, -1)
    torch.testing.assert_close(held[:, index], want)
    others = torch.ones(30, dtype=torch.bool)
    others[index] = False
    assert not held[:, others].any()


def test_the_averages_look_back_on_a_tenth_of_the_steps_and_not_beyond_the_decay():
    method = built(blobs(n=24), decay=0.8)
    fast, slow = next(method.peer.parameters()), next(method.peer_average.parameters())
    want = slow.detach().clone()
    for number in range(1, 60):
        with torch.no_grad():
            fast.fill_(float(number))
        method.move_averages()
        part = max(10 / (number + 9), 0.2)
        want = (1 - part) * want + part * number
    torch.testing.assert_close(slow.detach(), want)


def test_predictions_are_the_geometric_mean_of_both_averages():
    method = built(blobs(n=24))
    x = 3 * torch.randn(7, *method.spec.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        p, q = (net(x).softmax(-1) for net in (method.average, method.peer_average))
        got = method.predict_proba(x)
    both = (p * q).sqrt()
    torch.testing.assert_close(got, both / both.sum(1, keepdim=True))
    assert (p - q).abs().max() > 0.01


# ---- how many labels are wrong where opinions are surest -----------------------------------------


def test_wrong_labels_of_the_surest_rows_against_a_loop():
    opinions, y = draw(57, 4, seed=1)
    rows = sorted(range(57), key=lambda i: -max(opinions[i].tolist()))[: int(0.2 * 57)]
    wrong = sum(int(opinions[i].argmax()) != int(y[i]) for i in rows)
    assert 0 < wrong < len(rows)
    assert wrong_of_surest(opinions, y) == pytest.approx(wrong / len(rows))
    assert wrong_of_surest(opinions[:1], opinions[:1].argmax(1)) == 0.0  # one row at least


def after_warm_up(kind, **fields):
    train, test = digits(kind)
    recipe = Recipe(epochs=20, optimizer="adamw", lr=2e-3, weight_decay=1e-4, val=0.0)
    method = create("second_opinion", **fields)
    fit_method(method, train, recipe, backbone="mlp:width=128,depth=1")
    return method, test


def test_labels_keep_weight_where_those_of_the_surest_rows_are_right():
    clean, test = after_warm_up("symmetric:0")
    assert clean.doubt < 0.3
    noisy, _ = after_warm_up("symmetric:0.2")
    assert noisy.doubt == 1.0
    assert after_warm_up("symmetric:0", floor=0.0)[0].doubt == 1.0
    batch = Batch(test.x[:4], torch.tensor([0, 1, IGNORE, 3]), torch.arange(4))
    opinion = clean.taught[:, :4]
    label = one_hot(batch.y, opinion[0])
    want = (1 - clean.doubt) * label + clean.doubt * opinion
    want[:, 2] = opinion[:, 2]  # without a label opinions count fully, whatever other labels are
    torch.testing.assert_close(clean.teach(batch.x, batch, at(0.9)), want)
    early = clean.teach(batch.x, batch, at(0.05))
    torch.testing.assert_close(early, label.expand_as(early))


def test_doubt_is_measured_in_the_warm_up_alone_and_not_of_pictures():
    data = blobs(n=60)
    recipe = replace(RECIPE, epochs=10, val=0.0)
    trainer = fit_method(create("second_opinion"), data, recipe, backbone=BACKBONE)
    method = trainer.method
    trainer.data = shuffled = replace(data, y=data.y.roll(1))
    method.doubt.fill_(0.25)
    method.look_back(shuffled, trainer, 0.11)
    assert method.doubt == 0.25
    method.look_back(shuffled, trainer, 0.1)
    assert method.doubt == 1.0
    pictured = SecondOpinion()
    pictured.build(make_spec(pictures(24), "lenet5", RECIPE))
    assert pictured.least_wrong() == 0.0 and method.least_wrong() == 0.05


def at(progress):
    """A step at this share of training, in which views are the inputs as they are."""
    generator = torch.Generator().manual_seed(0)
    return StepInfo(torch.tensor(100 * progress), 100, generator, lambda x: x)


def test_predictions_are_held_to_the_frequency_of_the_labels():
    """KL(frequency || mean prediction) of each network, with its weight; of vectors none.

    It counts as opinions do: nothing in the warm-up, half in the middle of the ramp.
    """
    data = blobs(n=24)
    method = built(data, prior=0.3, warm_up=0.4, ramp=0.2)
    k = data.num_classes
    method.frequency.copy_(torch.rand(k, generator=torch.Generator().manual_seed(0)).softmax(0))
    logits = torch.randn(2, 9, k, generator=torch.Generator().manual_seed(1))
    want = 0.0
    for net in range(2):
        p = logits[net].double().softmax(1).mean(0).tolist()
        want += sum(f * np.log(f / m) for f, m in zip(method.frequency.tolist(), p, strict=True))
    for progress, trust in ((0.3, 0.0), (0.5, 0.5), (0.9, 1.0)):
        got = float(method.imbalance(logits, at(progress)))
        assert got == pytest.approx(0.3 * trust * want, rel=1e-5)
    assert built(data).imbalance(logits, at(0.9)) == 0


def test_the_frequency_is_that_of_the_given_labels_and_never_zero():
    data = blobs(n=60)
    y = torch.zeros_like(data.y)
    y[:20], y[50:] = 1, IGNORE  # 30 of class 0, 20 of class 1, none of the others
    recipe = replace(RECIPE, epochs=1, val=0.0)
    trainer = fit_method(create("second_opinion"), replace(data, y=y), recipe, backbone=BACKBONE)
    want = torch.tensor([31.0, 21.0, *[1.0] * (data.num_classes - 2)])
    torch.testing.assert_close(trainer.method.frequency, want / want.sum())


def log_probs_of_views(method, batch):
    """Of each network, each view that it learns in a first step: (row, log-probabilities [K])."""
    strong = strong_view(method.spec.shape, method.net.std)(batch.x, generator=at(0).generator)
    assert (strong - batch.x).abs().flatten(1).amax(1).min() > 0
    n = len(batch.y)
    for k, net in enumerate((method.net, method.peer)):
        with torch.no_grad():
            weak, other = (net(x).double().log_softmax(1) for x in (batch.x, strong))
        if method.images:
            yield [(i, view[i]) for view in (weak, other) for i in range(n)]
        else:  # one view of a vector: the networks' turns are opposite
            yield [(i, (weak if (i < n // 2) == (k == 0) else other)[i]) for i in range(n)]


def built_on(kind, **fields):
    """A method and a batch of all rows, of pictures or of vectors."""
    data = pictures(25) if kind == "pictures" else blobs(n=25)
    torch.manual_seed(0)
    method = create("second_opinion", alpha=1e-3, **fields)
    method.build(make_spec(data, "lenet5" if kind == "pictures" else BACKBONE, RECIPE))
    return method, Batch(data.x, data.y.clone(), torch.arange(25))


@pytest.mark.parametrize("kind", ["vectors", "pictures"])
@pytest.mark.parametrize("late", [False, True])
def test_the_loss_without_mixing_is_cross_entropy_of_the_views_and_the_imbalance(late, kind):
    """alpha near 0 draws a share of 1; x is not augmented; labels are believed, whatever lifts are.

    The imbalance is there late in training only.
    """
    method, batch = built_on(kind, prior=0.5, exponent=0.0)
    if kind == "vectors":
        method.taught.copy_(one_hot(batch.y, method.taught[0]))  # as fit does
    k = method.spec.num_classes
    method.frequency.copy_(torch.arange(1.0, k + 1) / sum(range(1, k + 1)))
    value = method.loss(batch, at(0.9 if late else 0.0)).item()
    want = 0.0
    for seen in log_probs_of_views(method, batch):
        want -= sum(float(log[batch.y[i]]) for i, log in seen) / len(seen)
        mean = torch.stack([log for _, log in seen]).exp().mean(0)
        want += 0.5 * late * float((method.frequency * (method.frequency / mean).log()).sum())
    assert value == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("kind", ["vectors", "pictures"])
def test_a_row_without_a_label_counts_nothing_in_the_warm_up(kind):
    method, batch = built_on(kind)
    batch.y[3] = IGNORE
    value = method.loss(batch, at(0.0)).item()
    want = 0.0
    for seen in log_probs_of_views(method, batch):
        known = [float(log[batch.y[i]]) for i, log in seen if i != 3]
        want -= sum(known) / len(known)
    assert value == pytest.approx(want, rel=1e-4)


def test_it_learns_from_every_row_to_the_last_epoch_unless_asked_otherwise():
    data = blobs(n=1100)
    x, y = data.x.numpy(), data.y.numpy()
    for fields, held, keep in (({}, 0.0, "last"), ({"keep": "best"}, 0.1, "best")):
        clf = Classifier("second_opinion", BACKBONE, epochs=1, **fields).fit(x, y)
        assert (clf.recipe_.val, clf.recipe_.keep) == (held, keep)
    assert Classifier("ce", BACKBONE, epochs=1).fit(x, y).recipe_.keep == "best"


def test_T_is_counted_on_the_surest_half_of_each_class():
    k, n = 4, 200
    opinions, y = draw(n, k)
    frequency = torch.tensor([0.1, 0.2, 0.3, 0.4])
    counts = np.zeros((k, k))
    for c in range(k):
        rows = [i for i in range(n) if int(opinions[i].argmax()) == c]
        rows.sort(key=lambda i: -float(opinions[i, c]))
        for i in rows[: (len(rows) + 1) // 2]:
            counts[c, int(y[i])] += 1
    rate = np.trace(counts) / counts.sum()
    counts += k * (rate * np.eye(k) + (1 - rate) * frequency.double().numpy())
    got = count_T(opinions, y, frequency)
    np.testing.assert_allclose(got, counts / counts.sum(1, keepdims=True), rtol=1e-5)


def test_T_is_the_identity_where_every_label_is_right():
    opinions = draw(3000, 3, sure=5.0)[0]
    T = count_T(opinions, opinions.argmax(1), torch.full((3,), 1 / 3))
    torch.testing.assert_close(T, torch.eye(3), atol=0.01, rtol=0)


def test_T_of_made_noise_is_found():
    k = 5
    opinions = draw(40000, k, sure=20.0)[0]
    clean = torch.multinomial(opinions, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    noisy = noise.symmetric(clean, k, rate=0.5, generator=torch.Generator().manual_seed(2))
    T = count_T(opinions, noisy.y, torch.full((k,), 1 / k))
    torch.testing.assert_close(T.diagonal(), torch.full((k,), 0.6), atol=0.03, rtol=0)


def digits(kind, seed=0):
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    x, y = x.float()[order], y.long()[order]
    noisy = noise.corrupt(kind, x[540:], y[540:], 10, generator=generator)
    return Data(x[540:], noisy.y, 10), Data(x[:540], y[:540], 10)


def test_wrong_labels_of_digits_are_seen_through():
    train, test = digits("symmetric:0.4,inclusive=false")
    recipe = Recipe(epochs=60, optimizer="adamw", lr=2e-3, weight_decay=1e-4, val=0.0)
    accuracy = {}
    for name in ("ce", "second_opinion"):
        trainer = fit_method(create(name), train, recipe, backbone="mlp:width=128,depth=1")
        accuracy[name] = trainer.score(test)["accuracy"]
    assert accuracy["second_opinion"] > max(0.93, accuracy["ce"] + 0.05), accuracy


def test_all_rows_unlabelled_but_ten():
    data = blobs(n=120)
    y = data.y.clone()
    y[10:] = IGNORE
    recipe = replace(RECIPE, epochs=20, val=0.0)
    trainer = fit_method(create("second_opinion"), replace(data, y=y), recipe, backbone=BACKBONE)
    p = trainer.method.predict_proba(data.x)
    assert (p.argmax(-1) == data.clean).float().mean() > 0.85


def test_one_giant_class_and_classes_with_one_row():
    data = blobs(n=120)
    y = torch.zeros_like(data.y)
    y[0], y[1] = 1, 2
    recipe = replace(RECIPE, epochs=6, val=0.0)
    trainer = fit_method(create("second_opinion"), replace(data, y=y), recipe, backbone=BACKBONE)
    p = trainer.method.predict_proba(data.x)
    assert p.isfinite().all()
    assert (p.argmax(1) == 0).float().mean() > 0.9


def test_no_field_of_the_default_hides_one_of_the_recipe():
    """`ytilde fit --balance` is class-balanced sampling, with the default method too."""
    recipe = asdict(Recipe()).keys()
    assert not recipe & create("second_opinion").get_params().keys()


# ---- the rungs of the benchmark ------------------------------------------------------------------


def benchmark():
    path = Path(__file__).parents[1] / "benchmarks" / "second_opinion.py"
    spec = importlib.util.spec_from_file_location("rungs_of_second_opinion", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pictures(n=48):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 12, 12, generator=generator)
    y = torch.arange(n) % 3
    x[torch.arange(n), 0, 4 * y] += 1.0  # a bright line tells the class
    return Data(x.clamp(max=1), y, 3)


def test_every_rung_of_the_benchmark_can_be_trained():
    rungs = benchmark()
    recipe = Recipe(epochs=4, batch_size=24, lr=0.02, val=0.0)
    for name, fields in rungs.RUNGS.items():
        method = rungs.VARIANTS.get(name, SecondOpinion)(**fields)
        trainer = fit_method(method, pictures(), recipe, backbone="lenet5")
        assert [record["epoch"] for record in trainer.history] == [1, 2, 3, 4], name
        p = method.predict_proba(pictures().x)
        assert p.isfinite().all(), name


def test_a_network_learns_no_label_of_the_fold_that_it_rests_from():
    """Other labels for a third of the rows: the gradient of the network that rests stays."""
    data = pictures()
    method = benchmark().Rest(warm_up=1.0, alpha=0.01)
    torch.manual_seed(0)
    method.build(make_spec(data, "lenet5", RECIPE))
    start = {name: value.clone() for name, value in method.state_dict().items()}
    grads = []
    for shift in (0, 1):
        method.load_state_dict(start)
        method.zero_grad()
        first = torch.arange(len(data)) % 3 == 0  # net rests from these in the first turn
        y = torch.where(first, (data.y + shift) % 3, data.y)
        method.loss(Batch(data.x, y, torch.arange(len(data))), at(0.0)).backward()
        nets = (method.net, method.peer)
        grads.append([torch.cat([p.grad.flatten() for p in net.parameters()]) for net in nets])
    torch.testing.assert_close(grads[0][0], grads[1][0])
    assert not torch.allclose(grads[0][1], grads[1][1], rtol=0.01)
