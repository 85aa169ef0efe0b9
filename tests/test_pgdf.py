"""PGDF: its division of rows, its judge of histories and its targets, against loops."""

from dataclasses import replace

import pytest
import torch

from test_selection_methods import batch_of, built, step_at
from ytilde.augment import make_augment, strong_view
from ytilde.data import BadInput, Data
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.methods import pgdf
from ytilde.methods.dividemix import DivideMix
from ytilde.testing import BACKBONE, RECIPE, blobs


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_easy_and_noisy_rows_are_the_ends_of_the_order():
    score = torch.rand(50, generator=gen())
    among = torch.arange(50) % 5 != 0
    easy, noisy = pgdf.parted(score, among, 0.3)
    order = sorted((i for i in range(50) if among[i]), key=lambda i: float(score[i]))
    assert easy.nonzero().flatten().tolist() == sorted(order[-14:])  # (1 - .3) / 2 of 40
    assert noisy.nonzero().flatten().tolist() == sorted(order[:6])  # .3 / 2 of 40
    easy, noisy = pgdf.parted(score, among, 0.0)
    assert int(easy.sum()) == 20 and not noisy.any()


def made_histories(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hard labels are learnt late, wrong ones never; their means overlap."""
    time, g = torch.linspace(0, 1, pgdf.POINTS), gen(1)
    wrong = torch.rand(n, generator=g) < 0.5
    level = torch.rand(n, 1, generator=g) * 0.5
    hard = level * 2 * time
    flat = level * torch.ones_like(time)
    noise = 0.05 * torch.randn(n, pgdf.POINTS, generator=g)
    return torch.where(wrong[:, None], flat, hard) + noise, wrong


def test_the_judge_tells_hard_histories_from_noisy_ones():
    seen, wrong = made_histories(1200)
    state = torch.get_rng_state()
    right = pgdf.judged(seen[:900], wrong[:900], seen[900:], seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert float(((right > 0.5) == ~wrong[900:]).float().mean()) > 0.9
    mean = seen[900:].mean(1)
    by_mean = max(
        float(((mean > cut) == ~wrong[900:]).float().mean()) for cut in mean.sort().values
    )
    assert by_mean < 0.7, "the mean history tells it as well: the test is too easy"
    assert torch.equal(right, pgdf.judged(seen[:900], wrong[:900], seen[900:], seed=0))
    few = pgdf.judged(seen[:15], wrong[:15], seen[:3], seed=0)
    assert torch.allclose(few, seen[:3].mean(1))


def test_the_inverse_undoes_the_confusion_of_easy_rows():
    C = torch.tensor([[0.8, 0.2, 0.0], [0.1, 0.9, 0.0], [0.0, 0.3, 0.7]])
    y = torch.arange(3).repeat_interleave(4000)
    p = C[y]
    rows = torch.ones(len(y), dtype=torch.bool)
    p[::7], rows[::7] = 1 / 3, False  # rows that are not easy do not count
    inverse = pgdf.inverse_confusion(p, y, rows)
    want = torch.linalg.inv(0.95 * C + 0.05 * torch.eye(3))
    torch.testing.assert_close(inverse, want, atol=2e-3, rtol=0)
    nothing = torch.zeros(len(y), dtype=torch.bool)
    torch.testing.assert_close(pgdf.inverse_confusion(p, y, nothing), torch.eye(3))


def test_guesses_are_corrected_in_the_second_half():
    method, _ = built("pgdf")
    k = method.spec.num_classes
    method.inverse.copy_(torch.eye(k).roll(1, 0))
    p = torch.rand(6, k, generator=gen()).double().softmax(-1)
    for epoch in (3, 8):  # of 20 that follow a warm-up of a tenth: 8.9 is the half
        torch.testing.assert_close(method.guessed(p, step_at(epoch)), p)
    for epoch in (9, 15):
        torch.testing.assert_close(method.guessed(p, step_at(epoch)), p @ method.inverse)


@pytest.mark.parametrize(("epoch", "power"), [(2, 0), (15, 2)])
def test_hard_rows_count_more_after_a_third(epoch, power):
    """The labelled targets sum to 1 / P(right)^2, the guessed ones to 1."""
    method, data = built("pgdf")
    right = 0.5 + 0.5 * torch.rand(24, generator=gen())
    batch, other = batch_of(data, range(12)), batch_of(data, range(12, 24))
    _, targets = method.mixmatch(method.net, method.peer, batch, other, right, step_at(epoch))
    want = (right[:12] ** -power).to(targets)
    sums = targets.sum(1)
    torch.testing.assert_close(sums[:24], torch.cat([want, want]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sums[24:], torch.ones(24).to(sums), atol=1e-5, rtol=1e-5)


def test_the_prior_finds_wrong_labels():
    data = blobs(n=900, rate=0.3)
    method = create("pgdf", rate=0.3)
    recipe = replace(RECIPE, epochs=20)
    trainer = fit_method(method, data, recipe, backbone=BACKBONE)
    stages = list(dict.fromkeys(record["stage"] for record in trainer.history))
    assert stages == ["history", "made_noise", "warm_up", "main"]
    trained = trainer.data
    x = data.x.tolist()
    where = [x.index(row) for row in trained.x.tolist()]
    right = data.y[where] == data.clean[where]
    assert float(method.prior[right].mean() - method.prior[~right].mean()) > 0.5
    assert (method.prior[method.easy] == 1).all()
    assert method.prior.min() == 0 and float((method.prior == 0).float().mean()) >= 0.14  # rate / 2
    shares = [float(method.easy[rows].float().mean()) for rows in (right, ~right)]
    assert shares[0] > 0.3 and shares[1] < 0.05
    assert (method.made[~method.easy] == -1).all()
    changed = method.made[method.easy] != trained.y[method.easy]
    assert 0.15 < float(changed.float().mean()) < 0.45


def test_histories_alone_divide_until_the_mean_with_the_mixture_does():
    """20 epochs, 2 of them warm-up: after 12 of the 18 others, two thirds, mixtures have a say."""
    data = blobs(n=120, rate=0.2)
    method = create("pgdf", rate=0.2)
    trainer = fit_method(method, data, replace(RECIPE, epochs=20, val=0.0), backbone=BACKBONE)
    whole = trainer.history
    main = [place for place, record in enumerate(whole) if record["stage"] == "main"]
    method.prior.uniform_(generator=gen())
    mixture = DivideMix.divide(method, method.net, data, trainer)
    for done, want in ((0, method.prior), (11, method.prior), (12, (method.prior + mixture) / 2)):
        trainer.history = whole[: main[0] + done]
        torch.testing.assert_close(method.divide(method.net, data, trainer), want)
    assert float((mixture - method.prior).abs().max()) > 0.1


def test_a_history_has_every_epoch_equally_long(monkeypatch):
    """4 epochs are 4 points each of the 16; of 20 epochs all points are written."""
    data = blobs(n=60)
    for epochs, same in ((4, 4), (20, 1)):
        method = create("pgdf", rate=0.2, history=1.0)
        recipe = replace(RECIPE, epochs=epochs, val=0.0)
        fit_method(method, data, recipe, backbone=BACKBONE)
        known = method.histories[0]
        assert float(known.min()) > 0
        parts = known.view(60, pgdf.POINTS // same, same)
        assert torch.equal(parts, parts[..., :1].expand_as(parts))
        assert (parts[:, 1:, 0] != parts[:, :-1, 0]).any(0).all()


@pytest.mark.parametrize(
    ("shape", "policy"),
    [((3, 16, 16), True), ((3, 16, 12), False), ((1, 16, 16), False), ((6,), False)],
)
def test_colour_pictures_of_some_size_are_learnt_from_autoaugments_views(shape, policy):
    data = Data(torch.rand(12, *shape, generator=gen()), torch.arange(12) % 3, 3)
    method, _ = built("pgdf", data)
    x = data.x.double()
    fitting = make_augment("autoaugment+crop+flip", shape) if policy else None
    fitting = fitting or strong_view(shape, method.net.std)
    for seed in range(3):
        got = method.strong_augment()(x, generator=gen(seed))
        torch.testing.assert_close(got, fitting(x, generator=gen(seed)))


def test_a_strong_view_that_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="does not work on features"):
        built("pgdf", strong="autoaugment")
