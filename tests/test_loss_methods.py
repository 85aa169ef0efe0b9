"""The single-network methods: each loss against loops in float64, schedules, per-example state."""

import contextlib
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ytilde.data import BadInput, Batch, Data, StepInfo
from ytilde.fitting import fit_method, make_spec
from ytilde.losses import symmetric_beta
from ytilde.method import create
from ytilde.methods._shared import Memory
from ytilde.mixing import random_order
from ytilde.testing import BACKBONE, RECIPE, blobs, fitted

B, K, D = 6, 4, 3


def built(name, rows=B, **fields):
    """A built method whose network is one linear layer in float64."""
    method = create(name, **fields)
    x = torch.randn(rows, D, generator=seeded(1))
    method.build(make_spec(Data(x, torch.arange(rows) % K, K), BACKBONE, RECIPE))
    for part in ("net", "peer", "average", "peer_average"):
        if hasattr(method, part):
            setattr(method, part, linear(part))
    return method


def linear(part):
    layer = nn.Linear(D, K, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(K, D, generator=seeded(len(part)), dtype=torch.float64))
        layer.bias.zero_()
    return layer


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def step(progress=0.0, epochs=100, augment=None, seed=0):
    def same(x, *y):
        return (x, *y) if y else x

    epoch = torch.tensor(progress * epochs)
    return StepInfo(epoch, epochs, seeded(seed), augment or same)


def batch(shape=(), rows=B, ignored=True):
    x = 2 * torch.randn(rows, *shape, D, generator=seeded(2), dtype=torch.float64)
    y = torch.randint(0, K, (rows, *shape), generator=seeded(3))
    if ignored:
        y[1] = -1
    return Batch(x, y, torch.arange(rows))


def probs(net, x):
    """Softmax rows as lists, one for each element, computed without torch's softmax."""
    rows = []
    for z in net(x).detach().reshape(-1, K).tolist():
        e = [math.exp(v - max(z)) for v in z]
        rows.append([v / sum(e) for v in e])
    return rows


def slow_mean(method, data, formula):
    pairs = zip(probs(method.net, data.x), data.y.flatten().tolist(), strict=True)
    values = [formula(p, y) for p, y in pairs if y != -1]
    return sum(values) / len(values)


def nll(p, y):
    return -math.log(p[y])


def tempered(p, y, t1=0.8, t2=1.2):
    """Amid et al., eq. 8, the normaliser by bisection; p -> its logits up to a constant."""
    z = [math.log(v) for v in p]

    def exp_t(v):
        return max(1 + (1 - t2) * v, 0) ** (1 / (1 - t2))

    low, high = max(z), max(z) + 1000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(exp_t(v - middle) for v in z) > 1 else (low, middle)
    q = [exp_t(v - low) for v in z]
    log_t = (q[y] ** (1 - t1) - 1) / (1 - t1)
    return -log_t - (1 - sum(v ** (2 - t1) for v in q)) / (2 - t1)


SIMPLE = {
    "gce": lambda p, y: (1 - p[y] ** 0.7) / 0.7,
    "mae": lambda p, y: sum(abs((c == y) - p[c]) for c in range(K)),
    "bi_tempered": tempered,
    "symmetric_ce": lambda p, y: (
        0.1 * nll(p, y) - sum(p[c] * math.log(1 if c == y else 1e-4) for c in range(K))
    ),
    "label_smoothing": lambda p, y: sum((0.9 * (c == y) + 0.1 / K) * nll(p, c) for c in range(K)),
    "bootstrap_soft": lambda p, y: sum(
        (0.95 * (c == y) + 0.05 * p[c]) * nll(p, c) for c in range(K)
    ),
    "bootstrap_hard": lambda p, y: 0.8 * nll(p, y) + 0.2 * nll(p, p.index(max(p))),
}


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=["rows", "pixels"])
@pytest.mark.parametrize("name", SIMPLE)
def test_simple_losses(name, shape):
    method, data = built(name), batch(shape)
    expected = slow_mean(method, data, SIMPLE[name])
    assert method.loss(data, step()).item() == pytest.approx(expected, abs=1e-9)


def test_bi_tempered_predicts_what_it_trains():
    method, data = built("bi_tempered"), batch()
    p = method.predict_proba(data.x)
    assert torch.allclose(p.sum(-1), torch.ones(B, dtype=torch.float64), atol=1e-9)
    soft = method.net(data.x).softmax(-1)
    assert (p.argmax(-1) == soft.argmax(-1)).all()
    assert (p.amax(-1) < soft.amax(-1)).all()  # heavier tails


def test_noise_against_noise_adds_noise_to_every_class():
    method, data = built("noise_against_noise", sigma=0.5), batch(ignored=False)
    noise = torch.randn(B, K, generator=seeded(7), dtype=torch.float64).tolist()
    values = [
        sum(((c == y) + 0.5 * e[c]) * nll(p, c) for c in range(K))
        for p, y, e in zip(probs(method.net, data.x), data.y.tolist(), noise, strict=True)
    ]
    value = method.loss(data, step(seed=7)).item()
    assert value == pytest.approx(sum(values) / B, abs=1e-9)


def test_mixup_mixes_inputs_and_losses_alike():
    method, data = built("mixup"), batch()
    value = method.loss(data, step(seed=4)).item()
    generator = seeded(4)
    lam = symmetric_beta(1.0, generator).double()
    order = random_order(B, generator)
    mixed = data._replace(x=lam * data.x + (1 - lam) * data.x[order])
    first = slow_mean(method, mixed, nll)
    second = slow_mean(method, mixed._replace(y=data.y[order]), nll)
    assert value == pytest.approx(float(lam * first + (1 - lam) * second), abs=1e-6)
    assert 0.01 < lam < 0.99


# ---- peer terms ----------------------------------------------------------------------------------


def test_peer_loss_is_cross_entropy_before_its_warm_up_and_unbiased_after():
    method, data = built("peer_loss", alpha=0.5), batch()
    plain = slow_mean(method, data, nll)
    assert method.loss(data, step(0.1)).item() == pytest.approx(plain, abs=1e-9)
    labels = [y for y in data.y.tolist() if y != -1]
    peers = [min(nll(p, k), 10) for p in valid_probs(method, data) for k in labels]
    expected = {0.25: 0.25, 0.9: 0.5}  # half of the ramp, then all of alpha
    for progress, alpha in expected.items():
        drawn = [method.loss(data, step(progress, seed=s)).item() for s in range(400)]
        want = plain - alpha * sum(peers) / len(peers)
        error = torch.tensor(drawn).std().item() / 20
        assert abs(sum(drawn) / 400 - want) < 4 * error


def valid_probs(method, data):
    pairs = zip(probs(method.net, data.x), data.y.tolist(), strict=True)
    return [p for p, y in pairs if y != -1]


@pytest.mark.parametrize("progress", [0.05, 0.25, 0.35, 0.9])
def test_cores_ramps_and_then_leaves_out_what_fits_worse_than_average(progress):
    method, data = built("cores"), batch()
    beta = {0.05: 0.0, 0.25: 1.0, 0.35: 2 * 0.25 / 0.3, 0.9: 2.0}[progress]
    kept = []
    for p, y in zip(probs(method.net, data.x), data.y.tolist(), strict=True):
        mean = sum(nll(p, c) for c in range(K)) / K
        if y != -1 and (progress < 0.3 or nll(p, y) <= mean):
            kept.append(nll(p, y) - beta * sum(min(nll(p, c), 10) for c in range(K)) / K)
    assert method.loss(data, step(progress)).item() == pytest.approx(
        sum(kept) / len(kept), abs=1e-5
    )
    if progress > 0.3:
        assert 0 < len(kept) < B - 1


def test_the_sieve_of_cores_may_start_at_once():
    method, data = built("cores", beta=0.0, sieve=0.0), batch()
    values = {}
    for row, (p, y) in enumerate(zip(probs(method.net, data.x), data.y.tolist(), strict=True)):
        if y != -1 and nll(p, y) <= sum(nll(p, c) for c in range(K)) / K:
            values[row] = nll(p, y)
    assert 0 < len(values) < B - 1  # rows with a label: some fit, some do not
    expected = sum(values.values()) / len(values)
    assert method.loss(data, step(0.0)).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["cores", "peer_loss"])
def test_without_a_ramp_the_weight_is_whole_from_the_end_of_the_warm_up_on(name):
    def loss(progress, **fields):
        return built(name, **fields).loss(batch(), step(progress)).item()

    before, at, after = (loss(progress, warm_up=0.25, ramp=0.0) for progress in (0.2, 0.25, 0.26))
    assert before == loss(0.0) != after  # the default warms up, too
    assert at == after == loss(0.26, warm_up=0.0, ramp=0.01)


# ---- truncated GCE -------------------------------------------------------------------------------


def test_truncated_gce_drops_the_loss_of_pruned_rows():
    method, data = built("truncated_gce"), batch()
    method.weights[:] = torch.tensor([1.0, 1, 0, 1, 0, 1])
    values = []
    for p, y, w in zip(
        probs(method.net, data.x), data.y.tolist(), method.weights.tolist(), strict=True
    ):
        if y != -1:
            values.append(w * ((1 - p[y] ** 0.7) / 0.7 - (1 - 0.5**0.7) / 0.7))
    value = method.loss(data, step()).item()
    assert value == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_truncated_gce_prunes_wrong_labels():
    data = blobs(n=300, rate=0.3)
    run = fitted(lambda: create("truncated_gce"), data, epochs=12, val=0.0)
    pruned, wrong = run.method.weights == 0, data.y != data.clean
    assert pruned[wrong].float().mean() > 0.9
    assert pruned[~wrong].float().mean() < 0.1


def test_truncated_gce_prunes_from_its_start_on_at_equal_distances(monkeypatch):
    method, records, when = create("truncated_gce", start=0.25, every=1 / 3), [], []
    keeps = method.keeps

    def watched(batch):
        when.append(records[-1]["epoch"])
        return keeps(batch)

    monkeypatch.setattr(type(method), "keeps", staticmethod(watched))
    recipe = replace(RECIPE, epochs=12)
    fit_method(method, blobs(n=60), recipe, backbone=BACKBONE, on_record=records.append)
    assert sorted(set(when)) == [3, 7, 11]


def test_truncated_gce_is_gce_until_the_first_pruning():
    data = blobs(n=120, rate=0.3)
    plain = fitted(lambda: create("gce"), data, epochs=3).method.net.state_dict()
    late = fitted(
        lambda: create("truncated_gce", start=1.0), data, epochs=3
    ).method.net.state_dict()
    early = fitted(
        lambda: create("truncated_gce", start=0.3), data, epochs=3
    ).method.net.state_dict()
    assert all(torch.allclose(plain[name], late[name], atol=1e-6) for name in plain)
    assert not all(torch.allclose(plain[name], early[name], atol=1e-6) for name in plain)


# ---- ELR -----------------------------------------------------------------------------------------


def slow_targets(t, p, beta=0.7):
    p = [min(max(v, 1e-4), 1 - 1e-4) for v in p]
    return [beta * a + (1 - beta) * v / sum(p) for a, v in zip(t, p, strict=True)]


def test_elr_updates_its_memory_before_the_loss():
    method, data = built("elr"), batch()
    memory = [[0.0] * K for _ in range(B)]
    for _ in range(3):
        values = []
        for i, (p, y) in enumerate(zip(probs(method.net, data.x), data.y.tolist(), strict=True)):
            memory[i] = slow_targets(memory[i], p)
            near = sum(t * min(max(v, 1e-4), 1 - 1e-4) for t, v in zip(memory[i], p, strict=True))
            if y != -1:
                values.append(nll(p, y) + 3 * math.log(1 - near))
        value = method.loss(data, step()).item()
        assert value == pytest.approx(sum(values) / len(values), abs=1e-5)
        assert torch.allclose(method.memory.read(data.index), torch.tensor(memory), atol=1e-6)


def test_elr_moves_the_rows_of_the_batch_alone():
    method, data = built("elr", rows=10), batch(rows=3)
    index = torch.tensor([7, 0, 4])
    method.loss(data._replace(index=index), step())
    moved = method.memory.values.sum(1) > 0
    assert moved.nonzero().flatten().tolist() == [0, 4, 7]


def test_top_k_keeps_the_largest_targets():
    method, whole, data = built("elr", top_k=2), built("elr"), batch()
    losses = [m.loss(data, step()).item() for m in (method, whole)]
    assert losses[0] == losses[1]  # what is dropped counts from the next epoch on
    dense, kept = whole.memory.values, method.memory.read(data.index)
    for i in range(B):
        best = dense[i].sort(descending=True).indices[:2].tolist()
        for c in range(K):
            assert kept[i, c] == (dense[i, c] if c in best else 0)
    losses = [m.loss(data, step()).item() for m in (method, whole)]
    assert losses[0] != pytest.approx(losses[1], abs=1e-6)


def test_top_k_of_all_classes_is_the_whole_memory():
    whole, same, data = built("elr"), built("elr", top_k=K + 5), batch()
    for _ in range(3):
        assert whole.loss(data, step()).item() == pytest.approx(same.loss(data, step()).item())


def test_memory_of_a_million_rows_fits():
    """1.2 million rows of 1000 classes: the docstring's numbers."""

    def gigabytes(top_k, dtype):
        with torch.device("meta"):
            memory = Memory(1_200_000, 1000, top_k, dtype)
        return sum(b.numel() * b.element_size() for b in memory.buffers()) / 1e9

    assert gigabytes(0, "float32") == pytest.approx(4.8)
    assert gigabytes(0, "float16") == gigabytes(0, "bfloat16") == pytest.approx(2.4)
    assert gigabytes(10, "float32") == pytest.approx(0.096)
    assert gigabytes(10, "float16") == pytest.approx(0.072)


def test_half_precision_memory_follows_the_whole_one():
    data = batch()
    whole = built("elr")
    for dtype in ("float16", "bfloat16"):
        method = built("elr", dtype=dtype)
        for _ in range(4):
            value, expected = method.loss(data, step()).item(), whole.loss(data, step()).item()
        assert value == pytest.approx(expected, rel=0.02)
        whole = built("elr")


def test_an_unknown_dtype_is_named():
    with pytest.raises(BadInput, match="float16"):
        built("elr", dtype="half")


def test_elr_plus_targets_come_from_the_other_network():
    method, data = built("elr_plus"), batch(ignored=False)
    method.loss(data, step())
    for memory, net in ((method.memory, method.peer), (method.peer_memory, method.net)):
        expected = [slow_targets([0.0] * K, p) for p in probs(net, data.x)]  # average = weights yet
        assert torch.allclose(memory.read(data.index), torch.tensor(expected), atol=1e-6)


def test_elr_plus_value_without_mixing():
    """alpha near 0 draws lam = 0 or 1: each network has ELR's loss with the other's targets."""
    method, data = built("elr_plus", alpha=1e-3), batch(ignored=False)
    total = 0.0
    for net, other in ((method.net, method.peer), (method.peer, method.net)):
        for p, q, y in zip(probs(net, data.x), probs(other, data.x), data.y.tolist(), strict=True):
            t = slow_targets([0.0] * K, q)
            near = sum(a * min(max(v, 1e-4), 1 - 1e-4) for a, v in zip(t, p, strict=True))
            total += (nll(p, y) + 3 * math.log(1 - near)) / B
    assert method.loss(data, step()).item() == pytest.approx(total, abs=1e-4)


def test_elr_plus_averages_the_weights_and_predicts_with_them():
    method, data = built("elr_plus", decay=0.6), batch()
    seen = []
    for value in (1.0, 3.0, 8.0, 8.0):
        with torch.no_grad():
            method.net.weight.fill_(value)
        method.loss(data, step())
        seen.append(method.average.weight[0, 0].item())
    # parts 1, 1/2, then 0.4, the least that decay = 0.6 allows
    assert seen == pytest.approx([1.0, 2.0, 2 + 0.4 * 6, 4.4 + 0.4 * 3.6])


def test_elr_plus_predicts_the_mean_of_both_averages():
    run = fitted(lambda: create("elr_plus"), blobs(n=60), epochs=2)
    method, x = run.method, torch.randn(5, 6, generator=seeded(0))
    both = [net(x).softmax(-1) for net in (method.average, method.peer_average)]
    assert torch.allclose(method.predict_proba(x), (both[0] + both[1]) / 2, atol=1e-6)
    assert (both[0] - both[1]).abs().max() > 1e-3
    assert not set(method.param_groups()) & set(method.average.parameters())


def test_elr_plus_ramp():
    method = built("elr_plus", ramp=0.4)
    for progress, part in ((0.0, 0.0), (0.2, 0.5), (0.4, 1.0), (0.9, 1.0)):
        expected = math.exp(-5 * (1 - part) ** 2)
        assert method.strength(step(progress)).item() == pytest.approx(expected, rel=1e-5)
    assert built("elr_plus").strength(step()).item() == 1


def test_elr_plus_loss_has_lam_by_the_strength_of_the_ramp():
    """Half of the ramp done, the loss is that of lam exp(-5/4) without a ramp."""
    data = batch()
    ramped = built("elr_plus", lam=3.0, ramp=0.4).loss(data, step(0.2))
    plain = built("elr_plus", lam=3 * math.exp(-1.25), ramp=0.0).loss(data, step(0.2))
    assert ramped.item() == pytest.approx(plain.item(), rel=1e-6)
    assert ramped.item() != pytest.approx(built("elr_plus").loss(data, step(0.2)).item(), rel=1e-3)


def test_elr_plus_averages_start_at_the_networks():
    method = create("elr_plus")
    method.build(make_spec(blobs(n=24), BACKBONE, RECIPE))
    for net, average in ((method.net, method.average), (method.peer, method.peer_average)):
        for fast, slow in zip(net.parameters(), average.parameters(), strict=True):
            assert torch.equal(fast, slow) and not slow.requires_grad


# ---- SOP -----------------------------------------------------------------------------------------


def test_sop_step_is_plain_sgd_at_the_papers_setting():
    """Batches of 128, 120 epochs: as torch's SGD would move parameters u and v on the mean loss."""
    n, rows = 128, 200
    method = built("sop", rows=rows, init=0.3, lr_u=2.0, lr_v=5.0)
    data = batch(rows=n, ignored=False)._replace(
        index=torch.randperm(rows, generator=seeded(5))[:n]
    )
    method.u, method.v = method.u.double(), method.v.double()
    u, v = (nn.Parameter(b.clone()) for b in (method.u, method.v))
    p = torch.tensor(probs(method.net, data.x), dtype=torch.float64)
    terms = []
    for b in range(n):
        i, y = int(data.index[b]), int(data.y[b])
        hot = torch.eye(K, dtype=torch.float64)
        over = (u[i] ** 2 * hot[y]).clamp(0, 1)
        under = (v[i] ** 2 * (1 - hot[y])).clamp(0, 1)
        moved = (p[b] + over - under.detach()).clamp(min=1e-4)
        first = -(moved[y] / moved.sum()).log()
        second = ((hot[p[b].argmax()] + over - under - hot[y]) ** 2).sum()
        terms.append((first, second))
    optimizer = torch.optim.SGD([{"params": [u], "lr": 2.0}, {"params": [v], "lr": 5.0}])
    (sum(a + b for a, b in terms) / n).backward()
    optimizer.step()
    value = method.loss(data, step(epochs=120))
    assert value.item() == pytest.approx(sum(a.item() for a, _ in terms) / n, abs=1e-9)
    assert torch.allclose(method.u, u, atol=1e-12)
    assert torch.allclose(method.v, v, atol=1e-12)


@pytest.mark.parametrize("init", [1e-8, 0.3])
def test_sop_errors_start_small_as_told(init):
    method = built("sop", rows=2000, init=init)
    for start in (method.u, method.v):
        assert start.std().item() == pytest.approx(init, rel=0.1)
        assert start.mean().abs().item() < 0.1 * init


def test_sop_rates_make_short_runs_reach_as_far():
    """Four times fewer epochs, four times the step; the batch size does not count."""
    moves = []
    for epochs, rows in ((100, B), (25, B), (100, 2)):
        method = built("sop", init=0.1)
        before = method.v.clone()
        data = batch(ignored=False)
        data = Batch(*(part[:rows] for part in data[:3]))
        method.loss(data, step(epochs=epochs))
        moves.append((method.v - before)[0])
    assert torch.allclose(moves[1], 4 * moves[0], rtol=1e-3)
    assert torch.allclose(moves[2], moves[0], rtol=1e-3)
    assert moves[0].abs().max() > 0


def test_sop_learns_which_labels_are_wrong():
    data = blobs(n=600, rate=0.3)
    method = fitted(lambda: create("sop"), data, epochs=20, val=0.0).method
    wrong = data.y != data.clean
    error = method.u.square().clamp(0, 1).squeeze(1)
    assert error[wrong].mean() > 0.5
    assert error[~wrong].mean() < 0.1
    missing = method.v.square()[wrong]
    assert (missing.argmax(1) == data.clean[wrong]).float().mean() > 0.9


def test_sop_plus_adds_consistency_and_balance():
    generator = seeded(9)
    shift = torch.randn(2 * B, D, generator=generator, dtype=torch.float64)
    data = batch()
    method, plain = built("sop_plus"), built("sop")
    value = method.loss(data, step(augment=lambda x: x + shift)).item()
    base = plain.loss(data._replace(x=data.x + shift[:B]), step()).item()
    first, second = (probs(method.net, data.x + s) for s in shift.split(B))
    divergence = sum(
        sum(a[c] * (math.log(a[c]) - math.log(b[c])) for c in range(K))
        for a, b in zip(first, second, strict=True)
    )
    means = [sum(p[c] for p in first) / B for c in range(K)]
    balance = -sum(math.log(m) / K for m in means)
    assert value == pytest.approx(base + 0.9 * divergence / B + 0.1 * balance, abs=1e-6)


def test_sop_plus_holds_the_first_view_fixed_in_the_consistency():
    method, data = built("sop_plus", balance=0.0, consistency=1.0), batch()
    shift = torch.zeros(2 * B, D, dtype=torch.float64)
    shift[:B] = 1.0
    x = (data.x + shift[:B]).requires_grad_()
    views = torch.cat([x, data.x])
    loss = method.loss(data, step(augment=lambda _: views))
    plain = built("sop").loss(data._replace(x=x), step())
    one, other = (torch.autograd.grad(value, x, retain_graph=True)[0] for value in (loss, plain))
    assert torch.allclose(one, other)


def images(rows=40):
    x = torch.rand(rows, 3, 16, 16, generator=seeded(5))
    return Data(x, torch.arange(rows) % K, K)


@pytest.mark.parametrize("second_view", ["strong", "autoaugment+crop+flip+cutout4"])
def test_sop_plus_takes_a_second_view_of_its_own(second_view):
    data, views = images(), []
    method = create("sop_plus", second_view=second_view)
    method.build(make_spec(data, "lenet5", RECIPE))
    method.net.register_forward_pre_hook(lambda net, inputs: views.append(inputs[0]))
    method.loss(Batch(data.x, data.y, torch.arange(len(data))), step(seed=1))
    first, second = views[0].chunk(2)
    assert torch.equal(first, data.x)  # the recipe's view: here as it is
    assert torch.equal(second, method.second_augment()(data.x, generator=seeded(1)))
    assert (second != first).flatten(1).any(1).float().mean() > 0.8


def test_sop_plus_jitters_features_by_their_spread():
    spread = torch.tensor([1.0, 10.0, 100.0])
    x = spread * torch.randn(400, D, generator=seeded(1))
    method = create("sop_plus", second_view="strong")
    method.build(make_spec(Data(x, torch.arange(400) % K, K), BACKBONE, RECIPE))
    moved = method.views(x, step())[1] - x
    assert (moved.std(0) / (0.6 * spread) - 1).abs().max() < 0.15
    with pytest.raises(BadInput, match="does not work on features"):
        fitted(lambda: create("sop_plus", second_view="autoaugment"), blobs())


# ---- shared --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["elr", "elr_plus", "sop", "sop_plus", "truncated_gce"])
def test_state_a_row_refuses_pixel_labels(name):
    data = Data(torch.rand(4, 3, 8, 8), torch.zeros(4, 8, 8, dtype=torch.long), K)
    with pytest.raises(BadInput, match=f"{name} needs one label per row"):
        fit_method(create(name), data, RECIPE)


@pytest.mark.parametrize("name", ["elr", "elr_plus", "sop", "truncated_gce"])
def test_state_goes_through_save_and_resume(name, tmp_path):
    """Two epochs, then a checkpoint, then two more: the same bits as four in a row."""
    data, recipe = blobs(n=90, rate=0.2), replace(RECIPE, epochs=4, val=0.0)

    def run(folder, stop=None, resume=False):
        method = create(name)

        def watch(record):
            if stop and record["epoch"] == stop:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            fit_method(
                method,
                data,
                recipe,
                backbone=BACKBONE,
                folder=folder,
                resume=resume,
                on_record=watch,
            )
        return method.state_dict()

    whole = run(tmp_path / "a")
    run(tmp_path / "b", stop=3)
    again = run(tmp_path / "b", resume=True)
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_elr_plus_leaves_ignored_rows_out():
    """Whatever an ignored row shows: the loss, and so the networks, stay the same."""
    data = batch()
    other = data._replace(x=torch.where((data.y == -1)[:, None], -data.x, data.x))
    values = [built("elr_plus", alpha=1e-3).loss(d, step()).item() for d in (data, other)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)
