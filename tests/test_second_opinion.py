"""Second opinion: its targets and estimates against loops in float64, and what it must survive."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from ytilde import noise
from ytilde.data import IGNORE, Batch, Data, StepInfo
from ytilde.engine import Recipe
from ytilde.method import create, fit_method, make_spec
from ytilde.methods.second_opinion import count_T, fit_powers, likeliest_power
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


def test_targets_are_the_posterior_of_opinion_and_label():
    data = blobs(n=24)
    method = built(data)
    k = data.num_classes
    opinions, y = draw(6, k)
    y[2] = IGNORE
    method.trust.fill_(0.25)
    method.powers.copy_(torch.tensor([1.5, 0.5]))
    T = draw(k, k, seed=1)[0]
    method.T.copy_(T)
    got = method.target(opinions, y).double().numpy()
    for i in range(6):
        m = opinions[i].double().numpy() ** 1.5
        q = m * (T[:, y[i]].double().numpy() ** 0.5 if y[i] >= 0 else 1.0)
        want = 0.25 * q / q.sum()
        if y[i] >= 0:
            want[int(y[i])] += 0.75
        np.testing.assert_allclose(got[i], want, rtol=1e-5)


def test_labels_are_taken_at_their_word_before_opinions_are_trusted():
    data = blobs(n=24)
    opinions, y = draw(6, data.num_classes)
    torch.testing.assert_close(
        built(data).target(opinions, y).argmax(1), y, msg="trust is 0 when training begins"
    )


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


@pytest.mark.parametrize("power", [0.75, 1.0, 2.0])
def test_the_power_that_opinions_need_is_found(power):
    """Opinions are the posterior to the power of 1 / a, so a gives the posterior back."""
    posterior = draw(20000, 4, sure=2.0)[0]
    T = 0.7 * torch.eye(4) + 0.3 / 4
    y = torch.multinomial(posterior @ T, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    timid = (posterior.log() / power).softmax(1)
    assert float(likeliest_power(timid, T, y)) == pytest.approx(power, abs=0.13)


def test_a_label_that_an_opinion_knows_already_is_not_counted_twice():
    prior, y = draw(2000, 4, sure=1.0)
    T = 0.7 * torch.eye(4) + 0.3 / 4
    verdict = prior * T.T[y]
    verdict = verdict / verdict.sum(1, keepdim=True)
    torch.testing.assert_close(
        fit_powers(prior, T, y, verdict), torch.tensor([1.1, 1.0]), atol=0.11, rtol=0
    )
    a, b = fit_powers(verdict, T, y, verdict).tolist()
    assert (a, b) == pytest.approx((1.0, 0.0), abs=0.11)


def test_a_network_learns_nothing_from_the_labels_hidden_from_it():
    """Change the hidden labels: the gradient of the network that is not shown them stays."""
    data = blobs(n=40)
    method = built(data, hidden=0.25)
    hidden = (~method.shown[0]).nonzero()[:, 0]
    assert len(hidden) == 10
    assert not (~method.shown).all(0).any(), "no label is hidden from both"
    step = StepInfo(torch.zeros(()), 10, torch.Generator().manual_seed(0), lambda x: x)
    start = {name: value.clone() for name, value in method.state_dict().items()}
    grads = []
    for shift in (0, 1):
        method.load_state_dict(start)
        method.trust.fill_(0.5)
        y = data.y.clone()
        y[hidden] = (y[hidden] + shift) % data.num_classes
        method.zero_grad()
        step.generator.manual_seed(0)
        method.loss(Batch(data.x, y, torch.arange(40)), step).backward()
        grads.append(
            [p.grad.clone() for net in (method.net, method.peer) for p in net.parameters()]
        )
    half = len(grads[0]) // 2
    for first, second in zip(grads[0][:half], grads[1][:half], strict=True):
        torch.testing.assert_close(first, second)
    assert any(not torch.equal(a, b) for a, b in zip(grads[0][half:], grads[1][half:], strict=True))


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


@pytest.mark.parametrize("hidden", [0.0, 0.1])
def test_all_rows_unlabelled_but_ten(hidden):
    data = blobs(n=120)
    y = data.y.clone()
    y[10:] = IGNORE
    recipe = replace(RECIPE, epochs=4, val=0.0)
    trainer = fit_method(
        create("second_opinion", hidden=hidden), replace(data, y=y), recipe, backbone=BACKBONE
    )
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
