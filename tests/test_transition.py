"""Every formula of `transition.py` against loops in float64, its limits and its gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ytilde import plotting
from ytilde import transition as tr
from ytilde.data import BadInput


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(k: int = 5, n: int = 7, seed: int = 0, keep: float = 0.5):
    """log p [n, k], T [k, k], T(x) [n, k, k], y [n], all float64."""
    g = gen(seed)

    def rand(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    eye = torch.eye(k, dtype=torch.float64)
    T = keep * eye + (1 - keep) * rand(k, k).softmax(-1)
    Tx = keep * eye + (1 - keep) * rand(n, k, k).softmax(-1)
    return (2 * rand(n, k)).log_softmax(-1), T, Tx, torch.randint(k, (n,), generator=g)


# --- parametrisations ---------------------------------------------------------------------------


@pytest.mark.parametrize("diagonal", ["volmin", "dtm"])
def test_sigmoid_rows_by_loops(diagonal):
    W = torch.randn(2, 4, 4, generator=gen(), dtype=torch.float64)
    want = torch.zeros_like(W)
    for g in range(2):
        for i in range(4):
            A = [1 / (1 + math.exp(-float(W[g, i, j]))) for j in range(4)]
            A[i] = 1.0 if diagonal == "volmin" else 1 + A[i]
            for j in range(4):
                want[g, i, j] = A[j] / sum(A)
    torch.testing.assert_close(tr.sigmoid_rows(W, diagonal), want)
    torch.testing.assert_close(tr.log_sigmoid_rows(W, diagonal), want.log())
    assert (want.diagonal(dim1=-2, dim2=-1) >= want.amax(-1)).all()


def test_unknown_diagonal_is_refused():
    with pytest.raises(BadInput, match="volmin"):
        tr.sigmoid_rows(torch.zeros(3, 3), "softplus")


def test_volmin_diagonal_is_fixed_and_dtm_diagonal_learns():
    W = torch.zeros(4, 4, requires_grad=True)
    tr.sigmoid_rows(W, "volmin")[0, 1].backward()
    assert W.grad.diagonal().eq(0).all() and W.grad[0, 1] > 0
    W.grad = None
    tr.sigmoid_rows(W, "dtm")[0, 0].backward()
    assert W.grad[0, 0] > 0


def modules(k: int, groups: int | None):
    yield tr.SigmoidT(k, groups=groups)
    yield tr.SigmoidT(k, "dtm", groups=groups)
    yield tr.SoftmaxT(k, groups=groups)
    yield tr.LowRankT(k, 3, gen(), groups=groups)


@pytest.mark.parametrize("k", [3, 10, 100])
@pytest.mark.parametrize("groups", [None, 2])
def test_modules_start_with_half_on_the_diagonal(k, groups):
    for module in modules(k, groups):
        T = module.T()
        assert T.shape == ((k, k) if groups is None else (groups, k, k))
        diagonal = T.diagonal(dim1=-2, dim2=-1)
        assert ((diagonal > 0.45) & (diagonal < 0.7)).all(), module
        torch.testing.assert_close(module.log_T().exp(), T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 10, 1000])
def test_rows_sum_to_one_also_under_autocast(dtype, k):
    for module in modules(k, None):
        module.to(dtype)
        with torch.no_grad():
            for w in module.parameters():
                w.add_(torch.randn(w.shape, generator=gen(), dtype=dtype), alpha=3)
        plain = module.T()
        with torch.autocast("cpu", torch.bfloat16):
            T = module.T()
        assert T.dtype == dtype
        assert torch.equal(T, plain)
        assert (T.sum(-1) - 1).abs().max() < 1e-6
        assert (T >= 0).all()


def test_low_rank_by_loops():
    module = tr.LowRankT(6, 2, gen()).double().requires_grad_(False)
    module.keep.copy_(torch.linspace(-1, 1, 6))
    A, B = module.A.softmax(-1), module.B.softmax(-1)
    for i in range(6):
        d = 1 / (1 + math.exp(-float(module.keep[i])))
        for j in range(6):
            mix = sum(float(A[i, r] * B[r, j]) for r in range(2))
            want = d * (i == j) + (1 - d) * mix
            assert float(module.T()[i, j]) == pytest.approx(want, abs=1e-12)


def test_low_rank_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    tr.LowRankT(6, 2, gen())
    assert torch.equal(before, torch.random.get_rng_state())


def test_residual_rows_do_not_depend_on_autocast():
    module = tr.ResidualT(32, 5)
    torch.nn.init.normal_(module.residual.weight, std=0.3, generator=gen())
    h = torch.randn(40, 32, generator=gen(1))
    with torch.autocast("cpu", torch.bfloat16):
        T = module(h)
    assert torch.equal(T, module(h))


# --- estimation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("percentile", [97.0, 90.0, None])
def test_anchor_by_loops_leaves_its_input_alone(percentile):
    p = torch.randn(200, 4, generator=gen(1), dtype=torch.float64).softmax(-1)
    before = p.clone()
    T = tr.anchor(p, percentile)
    assert torch.equal(p, before)
    for i in range(4):
        column = sorted(float(v) for v in p[:, i])
        if percentile is None:
            value = column[-1]
        else:  # the largest one strictly below the percentile (of the kind "higher")
            threshold = np.percentile(column, percentile, method="higher")
            value = max(v for v in column if v < threshold)
        row = [n for n in range(200) if float(p[n, i]) == value]
        assert len(row) == 1
        torch.testing.assert_close(T[i], p[row[0]])


def many_classes(k=100, n=9000):
    """Noisy posteriors of a good network for k equally frequent classes, and the true T."""
    T = 0.6 * torch.eye(k, dtype=torch.float64) + 0.4 * torch.eye(k).roll(1, 1).double()
    z = torch.randn(n, k, generator=gen(3), dtype=torch.float64)
    z[torch.arange(n), torch.arange(n) % k] += 9
    return z.softmax(-1) @ T, T


def test_anchors_of_many_classes_are_rows_of_their_class():
    # the 97th percentile of 9,000 rows is the 270th from above, but a class has 90 rows
    p, T = many_classes()
    assert float(tr.relative_l1(tr.anchor(p), T)) < 0.1
    assert float(tr.relative_l1(tr.anchor(p, 97.0), T)) > 1.5
    rows = tr.anchor_sets(p, "auto", 10)
    assert rows.shape == (10, 100)
    assert (rows.sort(0).values.diff(dim=0) > 0).all()  # ten different ones
    assert float((p[rows] - T).abs().sum(-1).max()) < 0.1


def test_anchors_of_a_rare_class_are_rows_of_it():
    share = torch.tensor([0.5, 0.37, 0.12, 0.01])  # the last has 20 of 2,000 rows, 97 % is the 60th
    y = torch.arange(4).repeat_interleave((2000 * share).long())
    z = torch.randn(len(y), 4, generator=gen(4), dtype=torch.float64)
    z[torch.arange(len(y)), y] += 9
    _, T, _, _ = make(4)
    T = 0.3 * T + 0.7 * torch.eye(4)
    p = z.softmax(-1) @ T
    assert float((tr.anchor(p) - T).abs().sum(-1).max()) < 0.1
    assert float((tr.anchor(p, 97.0) - T).abs().sum(-1)[3]) > 0.5
    assert (y[tr.anchor_sets(p, "auto", 5)[:, 3]] == 3).all()


def test_anchor_sets_of_few_classes_are_the_published_percentiles():
    p = torch.randn(200, 4, generator=gen(1), dtype=torch.float64).softmax(-1)
    assert (p.argmax(-1).bincount() > 12).all()  # more than twice of the top 3 %: none is rare
    rows = tr.anchor_sets(p, "auto", 3)
    for a, level in enumerate((97.0, 98.0, 99.0)):
        assert torch.equal(rows[a], tr.anchor_rows(p, level))
    assert torch.equal(tr.anchor_rows(p), tr.anchor_rows(p, 97.0))
    assert tr.anchor_sets(p[:2].repeat(1, 5), "auto", 3).shape == (3, 20)  # fewer rows than sets


def test_anchor_renormalises_rows():
    T = tr.anchor(3 * torch.rand(50, 4, generator=gen()))
    torch.testing.assert_close(T.sum(-1), torch.ones(4))
    assert tr.anchor(torch.eye(3)[:1], 97).shape == (3, 3)  # one row only


def test_anchor_recovers_T_where_anchors_exist():
    _, T, _, _ = make(4)
    clean = torch.eye(4, dtype=torch.float64).repeat(50, 1) * 0.999 + 0.00025
    torch.testing.assert_close(tr.anchor(clean @ T), T, atol=2e-3, rtol=0)


def test_dual_by_loops_with_an_unpredicted_class():
    g = gen(2)
    p = torch.rand(300, 4, generator=g, dtype=torch.float64)
    p[:, 3] = 0
    p = p / p.sum(-1, keepdim=True)
    y = torch.randint(-1, 4, (300,), generator=g)
    _, club, _, _ = make(4)
    spade = [[0.0] * 4 for _ in range(4)]
    for row, label in zip(p.tolist(), y.tolist(), strict=True):
        if label >= 0:
            spade[row.index(max(row))][label] += 1
    for i, row in enumerate(spade):
        total = sum(row)
        spade[i] = [c / total for c in row] if total else [float(i == j) for j in range(4)]
    T = tr.dual(p, y, club)
    for i in range(4):
        for j in range(4):
            want = sum(float(club[i, m]) * spade[m][j] for m in range(4))
            assert float(T[i, j]) == pytest.approx(want, abs=1e-12)
    torch.testing.assert_close(T.sum(-1), torch.ones(4, dtype=torch.float64))


def noisy_problem(n: int = 4000, k: int = 4, rate: float = 0.3):
    g = gen(3)
    clean = torch.randint(k, (n,), generator=g)
    T = (1 - rate) * torch.eye(k) + rate / (k - 1) * (1 - torch.eye(k))
    y = torch.multinomial(T[clean], 1, generator=g).squeeze(1)
    logits = 6 * F.one_hot(clean, k) + torch.randn(n, k, generator=g)
    return tr.noisy_posterior(logits.softmax(-1), T), y, T, clean


def test_confident_joint_by_loops():
    p, y, _, _ = noisy_problem(n=300)
    y = y.clone()
    y[:10] = -1
    k, rows, labels = 4, p.double().tolist(), y.tolist()
    threshold = []
    for j in range(k):
        own = [row[j] for row, label in zip(rows, labels, strict=True) if label == j]
        threshold.append(sum(own) / len(own))
    counts = [[0.0] * k for _ in range(k)]  # [label][clean]
    for row, label in zip(rows, labels, strict=True):
        above = [j for j in range(k) if row[j] >= threshold[j] - 1e-6]
        if label >= 0 and above:
            counts[label][max(above, key=lambda j: row[j])] += 1
    joint = [[0.0] * k for _ in range(k)]
    for label in range(k):
        for i in range(k):
            share = counts[label][i] / sum(counts[label])
            joint[i][label] = share * labels.count(label) / (len(labels) - 10)
    found = tr.confident_joint(p.double(), y)
    want = torch.tensor(joint, dtype=torch.float64)
    torch.testing.assert_close(found.joint, want)
    torch.testing.assert_close(found.T, want / want.sum(1, keepdim=True))
    assert float(found.rate) == pytest.approx(1 - sum(joint[i][i] for i in range(k)))


def test_confident_joint_finds_the_noise():
    p, y, T, clean = noisy_problem()
    found = tr.confident_joint(p, y)
    assert float(tr.relative_l1(found.T, T)) < 0.1
    assert abs(float(found.rate) - float((y != clean).float().mean())) < 0.03


def test_confident_joint_with_a_class_that_nobody_carries():
    p, y, _, _ = noisy_problem(n=500)
    found = tr.confident_joint(F.pad(p, (0, 1)), y)
    assert found.T[4].tolist() == [0, 0, 0, 0, 1]
    torch.testing.assert_close(found.T.sum(-1), torch.ones(5))
    assert float(found.joint.sum()) == pytest.approx(1, abs=1e-6)


def test_confident_joint_agrees_with_cleanlab():
    count = pytest.importorskip("cleanlab.count")
    p, y, _, _ = noisy_problem(n=1000)
    theirs = count.estimate_joint(y.numpy(), p.double().numpy())
    ours = tr.confident_joint(p.double(), y).joint
    np.testing.assert_allclose(ours.T.numpy(), theirs, atol=1e-3)


# --- application --------------------------------------------------------------------------------


def test_forward_by_loops_class_level_and_per_instance():
    log_p, T, Tx, y = make()
    y[2] = -1
    for matrix in (T, Tx):
        got = tr.forward_nll(log_p, matrix, y)
        torch.testing.assert_close(got, tr.forward_nll_log(log_p, matrix.log(), y))
        for n in range(7):
            M = matrix if matrix.ndim == 2 else matrix[n]
            j = int(y[n])
            q = sum(math.exp(log_p[n, i]) * float(M[i, j]) for i in range(5))
            assert float(got[n]) == pytest.approx(0 if j < 0 else -math.log(q), abs=1e-12)


def test_pixels_share_the_matrix_of_their_image():
    g = gen(4)
    log_p = torch.randn(2, 3, 4, 5, generator=g, dtype=torch.float64).log_softmax(-1)
    y = torch.randint(-1, 5, (2, 3, 4), generator=g)
    _, T, Tx, _ = make(n=2)
    p = log_p.exp()
    for fn in (tr.forward_nll, tr.backward_loss, tr.reweight):
        for matrix in (T, Tx):
            got = fn(log_p, matrix, y)
            assert got.shape == y.shape
            for b in range(2):
                M = matrix if matrix.ndim == 2 else matrix[b]
                want = fn(log_p[b].reshape(-1, 5), M, y[b].reshape(-1))
                torch.testing.assert_close(got[b].reshape(-1), want)
    for b in range(2):
        torch.testing.assert_close(tr.noisy_posterior(p, Tx)[b], p[b] @ Tx[b])
        torch.testing.assert_close(tr.posterior(p, Tx, y)[b], tr.posterior(p[b], Tx[b], y[b]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_identity_is_cross_entropy_with_its_gradient(dtype, scale):
    logits = (scale * torch.randn(64, 10, generator=gen())).to(dtype).requires_grad_()
    y = torch.randint(10, (64,), generator=gen(1))
    full = logits if dtype == torch.float64 else logits.float()
    want = F.cross_entropy(full, y, reduction="none")
    got = tr.forward_nll(full.log_softmax(-1), torch.eye(10), y)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
    for nll in (got, tr.forward_nll(full.log_softmax(-1), torch.eye(10).expand(64, 10, 10), y)):
        (a,) = torch.autograd.grad(nll.sum(), full, retain_graph=True)
        (b,) = torch.autograd.grad(want.sum(), full, retain_graph=True)
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    back = tr.backward_loss(full.log_softmax(-1), torch.eye(10), y)
    torch.testing.assert_close(back, want, atol=1e-5, rtol=1e-5)
    weight = tr.reweight(full.log_softmax(-1), torch.eye(10), y)
    torch.testing.assert_close(weight, torch.ones_like(weight))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_forward_is_finite_for_zeros_many_classes_and_bf16(autocast, batched):
    k, n = 1000, 4
    logits = (30 * torch.randn(n, k, generator=gen())).bfloat16().requires_grad_()
    T = 0.7 * torch.eye(k) + 0.3 * torch.eye(k).roll(1, 1)
    T[:, 5] = 0  # nobody gives label 5 ...
    T = (T / T.sum(-1, keepdim=True)).requires_grad_()
    y = torch.tensor([0, 5, 999, -1])  # ... and yet one example carries it
    matrix = T.expand(n, k, k) if batched else T
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        nll = tr.forward_nll(logits.log_softmax(-1), matrix, y)
    assert nll.dtype == torch.float32
    assert nll.isfinite().all() and nll[3] == 0
    nll.sum().backward()
    assert logits.grad.isfinite().all() and T.grad.isfinite().all()
    assert logits.grad[0].abs().max() > 0 and logits.grad[3].abs().max() == 0
    assert T.grad[T.detach() == 0].abs().max() == 0


def test_bf16_inputs_are_computed_in_float32():
    log_p, T, _, y = make(10, 32)
    half = log_p.bfloat16()
    want = tr.forward_nll(half.float(), T.float(), y)
    assert torch.equal(tr.forward_nll(half, T.float(), y), want)
    for fn in (tr.backward_loss, tr.reweight, tr.posterior):
        with torch.autocast("cpu", torch.bfloat16):
            got = fn(half, T.float(), y)
        assert got.dtype == torch.float32
        assert torch.equal(got, fn(half.float(), T.float(), y))
    with torch.autocast("cpu", torch.bfloat16):
        noisy = tr.noisy_posterior(half.float().softmax(-1), T.float())
        assert (noisy.sum(-1) - 1).abs().max() < 1e-6
        assert torch.equal(tr.volume(T.float()), torch.linalg.slogdet(T.float()).logabsdet)


def test_gradients_by_finite_differences():
    log_p, T, Tx, y = make(4, 3)
    y[1] = -1
    log_p.requires_grad_()
    for matrix in (T.requires_grad_(), Tx.requires_grad_()):
        for fn in (tr.forward_nll, tr.backward_loss, tr.reweight):
            assert torch.autograd.gradcheck(fn, (log_p, matrix, y))
    assert torch.autograd.gradcheck(tr.volume, (T,))
    assert torch.autograd.gradcheck(lambda p, M: tr.posterior(p.exp(), M, y), (log_p, Tx))


@pytest.mark.parametrize("seed", range(3))
def test_backward_is_unbiased_for_every_clean_class(seed):
    log_p, T, Tx, _ = make(6, 5, seed)
    for matrix in (T, Tx):
        by_label = [
            tr.backward_loss(log_p, matrix, torch.full((5,), j)) for j in range(6)
        ]  # every label there is
        for n in range(5):
            M = matrix if matrix.ndim == 2 else matrix[n]
            for clean in range(6):
                mean = sum(float(M[clean, j] * by_label[j][n]) for j in range(6))
                assert mean == pytest.approx(-float(log_p[n, clean]), abs=1e-9)


def test_backward_ignores_and_matches_the_inverse():
    log_p, T, _, y = make()
    y[0] = -1
    got = tr.backward_loss(log_p, T, y)
    inverse = torch.linalg.inv(T)
    assert got[0] == 0
    for n in range(1, 7):
        want = sum(float(inverse[y[n], j] * -log_p[n, j]) for j in range(5))
        assert float(got[n]) == pytest.approx(want, abs=1e-10)


def test_singular_T_is_refused_in_one_sentence():
    tr.check_invertible(make()[1])
    uniform = torch.full((4, 4), 0.25)
    for bad in (uniform, torch.stack([torch.eye(4), uniform]), torch.zeros(4, 4)):
        with pytest.raises(BadInput, match="cannot be inverted") as error:
            tr.check_invertible(bad)
        assert str(error.value).count(".\n") == 0 and str(error.value).endswith("T.")


def test_reweight_by_loops_clips_and_carries_a_gradient_to_the_slack():
    log_p, T, Tx, y = make()
    y[3] = -1
    for matrix in (T, Tx):
        got = tr.reweight(log_p, matrix, y, clip=1.2)
        for n in range(7):
            M = matrix if matrix.ndim == 2 else matrix[n]
            j = int(y[n])
            q = sum(math.exp(log_p[n, i]) * float(M[i, j]) for i in range(5))
            want = 0 if j < 0 else min(math.exp(log_p[n, j]) / q, 1.2)
            assert float(got[n]) == pytest.approx(want, abs=1e-10)
    dT = torch.zeros_like(T, requires_grad=True)
    tr.reweight(log_p, tr.revised(T, dT, renormalise=False), y, clip=100).sum().backward()
    assert dT.grad.abs().max() > 0


def test_reweight_survives_negative_slack_and_impossible_labels():
    logits = torch.tensor([[0.0, 200.0], [0.0, -200.0], [0.0, 0.0]], requires_grad=True)
    T = torch.tensor([[1.1, -0.1], [-0.2, 1.2]], requires_grad=True)
    y = torch.tensor([0, 0, 1])
    beta = tr.reweight(logits.log_softmax(-1), T, y, clip=10)
    # p @ T is negative for the first label: the clamped denominator gives the largest weight
    torch.testing.assert_close(beta, torch.tensor([10.0, 1 / 1.1, 0.5 / 0.55]))
    beta.sum().backward()
    assert logits.grad.isfinite().all() and T.grad.isfinite().all()


def test_revised_adds_the_slack_once():
    _, T, Tx, _ = make()
    dT = 0.3 * torch.randn(5, 5, generator=gen(9), dtype=torch.float64)
    assert torch.equal(tr.revised(T, dT, renormalise=False), T + dT)
    got = tr.revised(Tx, dT)
    for n in range(7):
        for i in range(5):
            row = [abs(float(Tx[n, i, j] + dT[i, j])) for j in range(5)]
            torch.testing.assert_close(got[n, i], torch.tensor(row, dtype=torch.float64) / sum(row))


def test_a_row_that_the_slack_takes_away_is_the_identitys_and_learns_nothing():
    T = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    dT = torch.tensor([[0.1, 0.2], [-0.4, -0.6]], dtype=torch.float64, requires_grad=True)
    found = tr.revised(T, dT)
    torch.testing.assert_close(found.tolist(), [[0.8 / 1.3, 0.5 / 1.3], [0.0, 1.0]])
    (found * torch.tensor([1.0, 2.0])).sum().backward()
    assert dT.grad[0].abs().min() > 0.1 and dT.grad[1].tolist() == [0.0, 0.0]


def test_volume_and_its_gradient():
    module = tr.SigmoidT(6).double()
    T = module.T()
    sign, det = torch.linalg.det(T).sign(), torch.linalg.det(T)
    torch.testing.assert_close(tr.volume(T), (sign * det).log())
    (grad,) = torch.autograd.grad(tr.volume(T), T)
    torch.testing.assert_close(grad, torch.linalg.inv(T.detach()).T)
    assert tr.volume(torch.eye(6)) == 0
    tr.volume(module.T()).backward()  # less noise is more volume, so every flip weight goes down
    off = ~torch.eye(6, dtype=torch.bool)
    assert (module.W.grad[off] < 0).all()
    assert tr.volume(make()[2]).shape == (7,)


def test_posterior_is_bayes():
    log_p, T, Tx, y = make()
    y[4] = -1
    p = log_p.exp()
    for matrix in (T, Tx):
        got = tr.posterior(p, matrix, y)
        torch.testing.assert_close(got.sum(-1), torch.ones(7, dtype=torch.float64))
        for n in range(7):
            M = matrix if matrix.ndim == 2 else matrix[n]
            j = int(y[n])
            mass = [float(p[n, i]) * (float(M[i, j]) if j >= 0 else 1) for i in range(5)]
            want = torch.tensor(mass, dtype=torch.float64) / sum(mass)
            torch.testing.assert_close(got[n], want)


def test_posterior_with_zeros():
    p = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    sure = tr.posterior(p, torch.eye(3), torch.tensor([0, 2]))
    assert torch.equal(sure, torch.tensor([[1.0, 0, 0], [0, 0, 1]]))
    T = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0.5, 0]])
    told_nothing = tr.posterior(p[1:], T, torch.tensor([2]))  # T calls the label impossible
    torch.testing.assert_close(told_nothing, p[1:], atol=0.01, rtol=0)


def test_noisy_posterior_by_loops():
    log_p, T, Tx, _ = make()
    p = log_p.exp()
    for matrix in (T, Tx):
        got = tr.noisy_posterior(p, matrix)
        for n in range(7):
            M = matrix if matrix.ndim == 2 else matrix[n]
            for j in range(5):
                want = sum(float(p[n, i] * M[i, j]) for i in range(5))
                assert float(got[n, j]) == pytest.approx(want, abs=1e-12)


@settings(max_examples=30, deadline=None)
@examples(k=st.integers(2, 8), n=st.integers(0, 6), seed=st.integers(0, 10**6), each=st.booleans())
def test_relabelling_the_classes_commutes(k, n, seed, each):
    log_p, T, Tx, y = make(k, n, seed)
    y[:1] = -1
    matrix = Tx if each else T
    perm = torch.randperm(k, generator=gen(seed))
    new_y = torch.where(y < 0, y, perm.argsort()[y.clamp_min(0)])
    new_p, new_T = log_p[:, perm], matrix[..., perm, :][..., perm]
    for fn in (tr.forward_nll, tr.backward_loss, tr.reweight):
        torch.testing.assert_close(fn(new_p, new_T, new_y), fn(log_p, matrix, y))
    torch.testing.assert_close(
        tr.posterior(new_p.exp(), new_T, new_y), tr.posterior(log_p.exp(), matrix, y)[:, perm]
    )
    torch.testing.assert_close(tr.volume(new_T), tr.volume(matrix))


@settings(max_examples=30, deadline=None)
@examples(k=st.integers(2, 12), seed=st.integers(0, 10**6))
def test_label_probabilities_sum_to_one(k, seed):
    log_p, T, _, _ = make(k, 3, seed)
    nll = torch.stack([tr.forward_nll(log_p, T, torch.full((3,), j)) for j in range(k)], -1)
    torch.testing.assert_close(nll.neg().exp(), tr.noisy_posterior(log_p.exp(), T))
    torch.testing.assert_close(nll.neg().exp().sum(-1), torch.ones(3, dtype=torch.float64))


# --- errors of T --------------------------------------------------------------------------------


def test_relative_l1_and_row_error_by_loops():
    _, T, Tx, y = make()
    got = tr.relative_l1(Tx, T)
    for n in range(7):
        off = sum(abs(float(Tx[n, i, j] - T[i, j])) for i in range(5) for j in range(5))
        assert float(got[n]) == pytest.approx(off / 5)
    rows, true = Tx[torch.arange(7), y], T[y]
    want = (
        sum(
            sum(float(a - b) ** 2 for a, b in zip(r, t, strict=True))
            for r, t in zip(rows, true, strict=True)
        )
        / 7
    )
    assert float(tr.row_error(rows, true)) == pytest.approx(want)


def test_class_floor_is_the_least_class_level_error():
    g = gen(5)
    true = torch.randn(200, 4, generator=g, dtype=torch.float64).softmax(-1)
    clean = torch.randint(3, (200,), generator=g)  # class 3 does not occur
    floor = float(tr.class_floor(true, clean))
    want = 0.0
    for c in range(3):
        rows = [true[n] for n in range(200) if int(clean[n]) == c]
        mean = sum(rows) / len(rows)
        want += sum(float(((r - mean) ** 2).sum()) for r in rows)
    assert floor == pytest.approx(want / 200)
    for seed in range(5):
        T = torch.randn(4, 4, generator=gen(seed), dtype=torch.float64).softmax(-1)
        assert float(tr.row_error(T[clean], true)) > floor


# --- to and from the outside --------------------------------------------------------------------


def test_given_reads_every_form(tmp_path):
    T = make(3)[1]
    np.save(tmp_path / "T.npy", T.numpy())
    np.savetxt(tmp_path / "T.csv", T.numpy(), delimiter=",", fmt="%.6f")
    forms = (T, T.float(), T.numpy(), T.tolist(), tmp_path / "T.npy", str(tmp_path / "T.csv"))
    for form in forms:
        got = tr.given(form, 3)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, T.float(), atol=2e-6, rtol=0)
        assert (got.sum(-1) - 1).abs().max() < 1e-6


def test_given_renormalises_printed_digits():
    got = tr.given([[0.66666, 0.33333], [0, 1]], 2)
    assert float(got[0].sum()) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(
    ("T", "message"),
    [
        (np.eye(4), r"shape \(4, 4\), but 3 classes need \(3, 3\)"),
        (np.eye(3)[0], "shape"),
        ([[1.5, -0.5, 0], [0, 1, 0], [0, 0, 1]], "negative"),
        (np.full((3, 3), np.nan), "not finite"),
        (np.eye(3) * 2, "sums to 2"),
        (np.eye(3) * 1.00013, "sums to 1"),  # one in 10,000 may be lost in print, not more
        (np.array([[0.8, 0.3, 0], [0.2, 0.7, 0], [0, 0, 1]]), "give the transpose"),
        ([["a", "b"], ["c", "d"]], "matrix of numbers"),
        ([[1, 0], [0]], "matrix of numbers"),
        ("missing.npy", "missing.npy"),
        ("T.pt", ".npy or a .csv"),
    ],
)
def test_given_refuses_in_one_sentence(T, message):
    with pytest.raises(BadInput, match=message) as error:
        tr.given(T, 3)
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text


def test_given_never_unpickles(tmp_path):
    np.save(tmp_path / "T.npy", np.eye(2).astype(object), allow_pickle=True)
    with pytest.raises(BadInput, match="cannot be read"):
        tr.given(tmp_path / "T.npy", 2)


def test_cleanlab_is_the_transpose():
    T = make(4)[1]
    theirs = tr.to_cleanlab(T)
    np.testing.assert_allclose(theirs.sum(0), 1)
    assert theirs[1, 2] == float(T[2, 1])
    torch.testing.assert_close(tr.from_cleanlab(theirs), T.float())
    with pytest.raises(BadInput, match="transpose"):
        tr.from_cleanlab(T.numpy())


def test_cost_is_told():
    cost = tr.materialise_cost(50_000, 100)
    assert cost.bytes == 50_000 * 100 * 100 * 4
    assert "1.86 GiB" in cost.sentence and "50,000 rows" in cost.sentence
    assert "48 B" in tr.materialise_cost(3, 2).sentence
    assert "0 B" in tr.materialise_cost(0, 2).sentence


# --- pictures -----------------------------------------------------------------------------------


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def test_heat_map_shows_names_and_values(tmp_path):
    T = torch.tensor([[0.9, 0.1], [0.0, 1.0]])
    ax = plotting.plot_T(T, ["cat", "dog"], title="mine")
    assert texts(ax) == [".90", ".10", "0", "1.00"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["cat", "dog"]
    ax.figure.savefig(tmp_path / "T.png")
    assert (tmp_path / "T.png").stat().st_size > 1000


def test_many_classes_get_fewer_names_and_no_numbers():
    ax = plotting.plot_T(tr.SoftmaxT(100).T())
    assert texts(ax) == []
    assert len(ax.get_xticks()) == 25


def test_panels_for_instances_and_for_truth_against_estimate():
    Ts = make(3, 4)[2]
    figure = plotting.plot_instances(Ts, list("abc"), [f"row {i}" for i in range(4)])
    titled = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titled == ["row 0", "row 1", "row 2", "row 3"]
    figure = plotting.plot_comparison(Ts[0], Ts[1])
    titled = [ax.get_title() for ax in figure.axes if ax.get_title()]
    error = float(tr.relative_l1(Ts[1], Ts[0]))
    assert titled == ["true", f"estimated (relative L1 error {error:.3f})", "estimated − true"]


def test_pictures_do_not_import_pyplot():
    import subprocess
    import sys

    code = (
        "import sys, numpy as np; from ytilde import plotting; assert 'matplotlib' not in"
        " sys.modules; plotting.plot_T(np.eye(3)); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
