"""The loop: agreement with a bare PyTorch loop, resuming, selection, sampling, randomness."""

import inspect
import math
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from ytilde import Classifier
from ytilde.data import BadInput, Data
from ytilde.engine import (
    REFIT_FIELDS,
    Diverged,
    Recipe,
    Trainer,
    best_epoch,
    choices,
    default_recipe,
    learning_rate,
)
from ytilde.engine.graph import why_not_compile
from ytilde.fitting import fit_method, make_spec
from ytilde.method import create
from ytilde.testing import blobs

RECIPE = Recipe(epochs=3, batch_size=40, lr=0.05, val=0.0, schedule="constant", device="cpu")


class Linear(nn.Module):
    """The smallest thing a Trainer can train."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(data.shape[0], data.num_classes)

    def loss(self, batch, step):
        return nn.functional.cross_entropy(self.layer(batch.x), batch.y)

    def predict_proba(self, x):
        return self.layer(x).softmax(-1)

    noisy_proba = predict_proba


@pytest.fixture
def model():
    with torch.random.fork_rng():
        return Linear(blobs())


def train(model, data, recipe, **options):
    trainer = Trainer(model, recipe, **options)
    trainer.data = data
    trainer.train("main", model.loss, model.parameters(), data)
    return trainer


@pytest.mark.parametrize("optimizer", ["sgd", "plain sgd", "adam", "adamw"])
def test_equals_a_bare_loop(model, optimizer):
    data = blobs()
    with torch.random.fork_rng():
        twin = Linear(data)
    own = {"nesterov": False} if optimizer == "plain sgd" else {"eps": 0.1}
    recipe = replace(RECIPE, optimizer=optimizer.removeprefix("plain "), **own)
    train(model, data, recipe)
    order = recipe.generator("order", "main")
    make = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=5e-4, nesterov=True),
        "plain sgd": lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=5e-4),
        "adam": lambda p: torch.optim.Adam(p, 0.05, weight_decay=5e-4, eps=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=5e-4, eps=0.1),
    }
    bare = make[optimizer](twin.parameters())
    for _ in range(3):
        for index in torch.randperm(len(data), generator=order).split(40):
            bare.zero_grad()
            nn.functional.cross_entropy(twin.layer(data.x[index]), data.y[index]).backward()
            bare.step()
    assert torch.allclose(model.layer.weight, twin.layer.weight, atol=1e-6)


def test_inputs_are_standardised_unless_they_shall_stay_as_they_are():
    x = torch.rand(40, 1, 14, 14, generator=torch.Generator().manual_seed(0)) / 2
    data = Data(x, torch.arange(40) % 2, 2)
    for standardise in (True, False):
        recipe = replace(RECIPE, epochs=1, standardise=standardise, val=0.0)
        method = create("ce")
        fit_method(method, data, recipe, backbone="lenet5")
        got = torch.stack([method.net.mean.squeeze(), method.net.std.squeeze()])
        want = torch.stack([x.mean(), x.std()]) if standardise else torch.tensor([0.0, 1.0])
        assert torch.allclose(got, want, atol=1e-3)


def test_networks_start_as_in_keras_if_asked_to():
    """Weights uniform in +-sqrt(6 / (fan in + fan out)), biases 0; of every network."""
    data = Data(torch.rand(40, 1, 28, 28), torch.arange(40) % 2, 2)
    for init in ("own", "keras"):
        method = create("second_opinion")
        recipe = replace(RECIPE, init=init)
        method.build(make_spec(data, "lenet5", recipe))
        for net in (method.net, method.peer, method.peer_average):
            conv = [m for m in net.backbone.modules() if isinstance(m, nn.Conv2d)][1]
            dense = net.head.mean
            found = [w.detach() for w in (conv.weight, dense.weight)]
            bounds = [(6 / ((6 + 16) * 25)) ** 0.5, (6 / (84 + 2)) ** 0.5]
            sizes = [float(w.abs().max()) / bound for w, bound in zip(found, bounds, strict=True)]
            assert all(0.97 < size <= 1 for size in sizes) == (init == "keras")
            assert (conv.bias == 0).all() == (dense.bias == 0).all() == (init == "keras")
            if init == "keras":
                spread = [w.std() / bound for w, bound in zip(found, bounds, strict=True)]
                assert spread == pytest.approx([3**-0.5] * 2, rel=0.1)
        assert not torch.equal(method.net.head.mean.weight, method.peer.head.mean.weight)


def test_weights_that_were_trained_before_stay_as_they_are():
    mine = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    method = create("ce")
    method.build(make_spec(blobs(), mine, replace(RECIPE, init="keras")))
    weights = dict(method.net.backbone.named_parameters())
    assert any(torch.equal(mine[0].weight, w) for w in weights.values())
    assert (method.net.head.mean.bias == 0).all()


def test_schedules_are_fractions_of_training():
    def factors(schedule, n):
        return [learning_rate(schedule, e, n)[0] for e in range(n)]

    assert factors("constant", 4) == [1, 1, 1, 1]
    assert factors("step:0.5", 4) == pytest.approx([1, 1, 0.1, 0.1])
    assert factors("cosine", 2) == pytest.approx([1, 0.5])
    assert factors("linear:0.5", 4) == pytest.approx([1, 1, 1, 0.5])
    assert [learning_rate("linear_beta:0.5", e, 4)[1] for e in range(4)] == [0.9, 0.9, 0.1, 0.1]
    assert factors("trapezoid:0.4,0.6", 5) == pytest.approx([1 / 3, 2 / 3, 1, 1, 0.5])
    assert factors("trapezoid:0,1", 3) == [1, 1, 1]
    with pytest.raises(BadInput, match="unknown schedule"):
        learning_rate("sometimes", 0, 1)
    for times in ("0.5", "0.5,0.2", "-1,0.5", "0.1,2", "0.1,0.2,0.3"):
        with pytest.raises(BadInput, match="trapezoid"):
            learning_rate(f"trapezoid:{times}", 0, 1)


def test_groups_have_their_own_optimiser_and_rate(model):
    data = blobs()
    extra = nn.Parameter(torch.ones(3))
    model.extra = extra
    group = {"params": [extra], "optimizer": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0}
    trainer = Trainer(model, replace(RECIPE, epochs=1, optimizer="adam"))
    list(
        trainer.epochs(
            "main", lambda b, s: model.loss(b, s) + extra.sum(), [*model.layer.parameters(), group],
            data,
        )
    )  # fmt: skip
    assert torch.allclose(extra, torch.full((3,), 1.0 - 6))  # 6 plain steps of gradient 1, rate 1


def test_clipping_is_per_group(model):
    data = blobs(40)
    model.extra = nn.Parameter(torch.zeros(1))
    group = {"params": [model.extra], "lr": 1.0, "momentum": 0.0, "weight_decay": 0}
    trainer = Trainer(model, replace(RECIPE, epochs=1, clip=0.5))
    loss = lambda b, s: model.loss(b, s) + 100 * model.extra.sum()  # noqa: E731
    trainer.train("main", loss, [*model.layer.parameters(), group], data)
    assert torch.allclose(model.extra, torch.tensor([-0.5]), atol=1e-5)


def rows_seen(model, data, recipe=RECIPE, **options):
    """The row numbers that the loss was given: a list of batches for each epoch."""
    seen = [[] for _ in range(recipe.epochs)]

    def loss(batch, step):
        assert torch.equal(batch.x, data.x[batch.index])
        assert torch.equal(batch.y, data.y[batch.index])
        seen[int(step.epoch)].append(batch.index)
        return 0 * model.layer.weight.sum()

    trainer = Trainer(model, recipe, **options)
    trainer.train("main", loss, model.parameters(), data)
    return seen


def test_weights_set_how_often_a_row_is_drawn(model):
    data = blobs(100)
    weights = torch.ones(100)
    weights[:10], weights[10:20] = 0, 3
    recipe = replace(RECIPE, batch_size=20)
    expected = 100 * weights / weights.sum()
    for batches in rows_seen(model, data, recipe, weights=weights):
        counts = torch.bincount(torch.cat(batches), minlength=100)
        assert counts[:10].sum() == 0
        assert counts.sum() == 100
        assert ((counts - expected).abs() < 1).all()


def test_balance_draws_classes_equally(model):
    data = blobs(300)
    y = torch.where(torch.arange(300) < 240, 0, torch.where(torch.arange(300) < 270, 1, 2))
    data = replace(data, y=y)
    recipe = replace(RECIPE, balance=True, batch_size=30)
    for batches in rows_seen(model, data, recipe):
        counts = torch.bincount(y[torch.cat(batches)], minlength=3)
        assert counts.sum() == 300
        assert (counts - 100).abs().max() <= 10  # unbalanced: 240, 30, 30


def test_balance_leaves_ignored_rows_out(model):
    y = torch.arange(60) % 3
    y[:15] = -1
    data, recipe = replace(blobs(60), y=y), replace(RECIPE, balance=True, batch_size=20)
    for batches in rows_seen(model, data, recipe):
        drawn = torch.bincount(y[torch.cat(batches)] + 1)
        assert drawn[0] == 0 and (drawn[1:] - 20).abs().max() <= 4


def test_balance_of_pixels_is_refused(model):
    data = replace(blobs(60), y=torch.zeros(60, 2, 2, dtype=torch.int64))
    with pytest.raises(BadInput, match="one label per row"):
        train(model, data, replace(RECIPE, balance=True))


def test_unit_weights_are_a_plain_shuffle(model):
    data = blobs(64)
    recipe = replace(RECIPE, batch_size=16)
    epochs = [torch.cat(b) for b in rows_seen(model, data, recipe, weights=torch.ones(64))]
    assert all(torch.equal(rows.sort().values, torch.arange(64)) for rows in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], torch.arange(64))


@pytest.mark.parametrize(
    ("n", "size"), [(1000, 128), (130, 128), (100, 128), (257, 128), (5000, 128)]
)
def test_batches_have_one_size_and_lose_few_rows(model, n, size):
    data = blobs(n)
    missed = []
    for batches in rows_seen(model, data, replace(RECIPE, epochs=2, batch_size=size)):
        assert len({len(b) for b in batches}) == 1
        assert len(batches[0]) <= size
        rows = torch.cat(batches)
        assert len(rows) >= 0.95 * n
        assert len(rows.unique()) == len(rows)
        missed.append(set(range(n)) - set(rows.tolist()))
    assert missed[0] != missed[1] or not missed[0]  # other rows sit out each time


def test_a_stage_over_some_rows_keeps_their_numbers(model):
    data, rows = blobs(100), torch.arange(60, 100)
    seen = []

    def loss(batch, step):
        seen.append(batch.index)
        return model.loss(batch, step)

    recipe = replace(RECIPE, epochs=1, batch_size=10)
    Trainer(model, recipe).train("main", loss, model.parameters(), data, rows=rows)
    assert torch.equal(torch.cat(seen).sort().values, rows)


def test_a_function_is_asked_for_the_rows_of_every_epoch(model):
    data = blobs(100)
    asked = []

    def rows():
        asked.append(len(asked))
        return torch.arange(20) + 20 * asked[-1]

    seen = []

    def loss(batch, step):
        seen.append(batch.index)
        return model.loss(batch, step)

    recipe = replace(RECIPE, epochs=3, batch_size=20)
    Trainer(model, recipe).train("main", loss, model.parameters(), data, rows=rows)
    assert [int(index.min()) for index in seen] == [0, 20, 40]


def test_keeps_the_best_by_noisy_validation_and_stops_early(model):
    data, val = blobs(), blobs()
    accuracies = iter([0.5, 0.9, 0.6, 0.7, 0.8, 0.1])
    states = []

    class Scored(Trainer):
        def score(self, data, noisy=False):
            states.append(self.method.layer.weight.clone())
            return {"accuracy": next(accuracies), "nll": 1.0}

    trainer = Scored(model, replace(RECIPE, epochs=6, keep="best", patience=3), val=val)
    history = trainer.train("main", model.loss, model.parameters(), data)
    assert len(history) == 5  # three epochs without a better one
    assert torch.equal(model.layer.weight, states[1])


def test_average_of_weights(model):
    data = blobs()
    seen = []

    def loss(batch, step):
        seen.append(model.layer.weight.detach().clone())
        return model.loss(batch, step)

    with torch.random.fork_rng():
        twin = Linear(data)
    recipe = replace(RECIPE, epochs=1)
    train(twin, data, recipe)  # its weights are what averaging ends with
    trainer = Trainer(model, replace(recipe, ema=0.8))
    trainer.train("main", loss, model.parameters(), data)
    average = seen[0]
    for weight in (*seen[1:], twin.layer.weight.detach()):
        average = 0.8 * average + 0.2 * weight
    assert torch.allclose(model.layer.weight, average, atol=1e-6)
    assert not torch.allclose(twin.layer.weight, average, atol=1e-3)


def test_divergence_names_the_place_and_keeps_the_last_epoch(model):
    data = blobs()
    steps = []

    def loss(batch, step):
        steps.append(model.layer.weight.detach().clone())
        bad = step.epoch >= 1
        return model.loss(batch, step) * torch.where(bad & (len(steps) == 9), math.nan, 1.0)

    trainer = Trainer(model, RECIPE)
    with pytest.raises(Diverged, match="epoch 2, batch 3"):
        trainer.train("main", loss, model.parameters(), data)
    assert torch.equal(model.layer.weight, steps[6])  # as at the end of epoch 1


def test_interrupt_keeps_the_last_epoch(model):
    data = blobs()
    steps = []

    def loss(batch, step):
        steps.append(model.layer.weight.detach().clone())
        if len(steps) == 9:
            raise KeyboardInterrupt
        return model.loss(batch, step)

    with pytest.raises(KeyboardInterrupt):
        Trainer(model, RECIPE).train("main", loss, model.parameters(), data)
    assert torch.equal(model.layer.weight, steps[6])


class Killed(Exception):
    pass


@pytest.mark.parametrize("stop_at", [1, 2, 4, 5])
def test_resumes_to_the_same_bits(tmp_path, stop_at):
    """A two-stage pipeline stopped after some epoch equals one that never stopped."""
    data = blobs(rate=0.2)
    recipe = Recipe(
        epochs=3, batch_size=32, optimizer="adam", lr=0.01, ema=0.9, keep="best", device="cpu"
    )

    def run(folder, resume=False, stop=None):
        method = create("ce")
        seen = []

        def fit(data, trainer):
            trainer.train("first", method.loss, method.param_groups(), data, epochs=2)
            with torch.no_grad():
                method.net.head.mean.bias.add_(0.1)  # what a pipeline does between stages
            trainer.train("second", method.loss, method.param_groups(), data)

        def on_record(record):
            seen.append(record)
            if len(seen) == stop:
                raise Killed

        method.fit = fit
        trainer = fit_method(
            method, data, recipe, backbone="mlp:width=16,depth=1,dropout=0.2", folder=folder,
            resume=resume, on_record=on_record,
        )  # fmt: skip
        return method.state_dict(), trainer.history

    whole, history = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "cut", stop=stop_at)
    resumed, again = run(tmp_path / "cut", resume=True)
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    strip = lambda h: [{k: v for k, v in r.items() if "seconds" not in k} for r in h]  # noqa: E731
    assert strip(history) == strip(again)


def test_streams_of_rows(model):
    data = blobs(100)
    seen = []

    def loss(batches, step):
        seen.append({name: batch.index for name, batch in batches.items()})
        return sum(model.loss(batch, step) for batch in batches.values())

    recipe = replace(RECIPE, epochs=1, batch_size=10)
    rows = {"labelled": torch.arange(40), "rest": torch.arange(40, 60)}
    Trainer(model, recipe).train("main", loss, model.parameters(), data, rows=rows)
    assert len(seen) == 4
    assert all((s["labelled"] < 40).all() and (s["rest"] >= 40).all() for s in seen)


def test_lazy_data_trains_like_data_in_memory(model):
    data = blobs()

    class Lazy:
        shape = data.x.shape

        def __len__(self):
            return len(data)

        def __getitem__(self, index):
            return data.x[index]

    with torch.random.fork_rng():
        twin = Linear(data)
    train(model, data, RECIPE)
    train(twin, replace(data, x=Lazy()), replace(RECIPE, workers=1))
    assert torch.equal(model.layer.weight, twin.layer.weight)


def test_seeds_are_separate_streams():
    recipe = Recipe(seed=1)
    seeds = {recipe.seed_of(stream) for stream in ("noise", "split", "init", "order")}
    assert len(seeds) == 4
    assert replace(recipe, order_seed=5).seed_of("init") == recipe.seed_of("init")
    assert replace(recipe, order_seed=5).seed_of("order") != recipe.seed_of("order")


def test_default_recipes_fit_the_kind_of_data():
    assert default_recipe((20,), 1000).optimizer == "adamw"
    assert default_recipe((3, 32, 32), 50_000).augment == "crop+flip"
    assert default_recipe((3, 32, 32), 50_000, epochs=7).epochs == 7


def test_a_tenth_is_held_out_from_a_thousand_rows_on():
    for unsaid in ({}, {"val": None}, {"val": "auto"}):
        assert default_recipe((20,), 1000, **unsaid).val == 0.1
        assert default_recipe((3, 32, 32), 50_000, **unsaid).val == 0.1
        assert default_recipe((20,), 999, **unsaid).val == 0.0
        assert default_recipe((20,), 1000, **unsaid).keep == "best"
        assert default_recipe((20,), 999, **unsaid).keep == "last"
    assert default_recipe((20,), 999, val=0.3).val == 0.3
    for asked in ({"keep": "best"}, {"keep": "best_nll"}, {"patience": 3}):  # of what, else?
        assert default_recipe((20,), 100, **asked).val == 0.1
        assert default_recipe((20,), 100, val=0.0, **asked).val == 0.0
    assert default_recipe((20,), 100, keep="last", patience=0).val == 0.0
    with pytest.raises(BadInput, match="val must be a number"):
        default_recipe((20,), 1000, val="some")


def test_a_hundred_held_out_labels_choose_the_epoch():
    assert default_recipe((20,), 1000, val=0.1).keep == "best"
    assert default_recipe((20,), 990, val=0.1).keep == "last"
    assert default_recipe((20,), 1000, val=0.0).keep == "last"
    assert default_recipe((20,), 1000, val=0.1, keep="last").keep == "last"
    assert default_recipe((20,), 100, val=0.1, keep="best_nll").keep == "best_nll"


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"val": 1.5},
        {"optimizer": "sdg"},
        {"keep": "x"},
        {"schedule": "y"},
        {"lr": -math.inf},
        {"lr": math.nan},
        {"momentum": 1.0},
        {"weight_decay": -1},
        {"workers": -1},
        {"batch_size": 0},
        {"epochs": "many"},
        {"epochs": True},
        {"lr": None},
        {"seed": 1.5},
        {"graph": 1},
        {"precision": "float16"},
        {"keep": None},
        {"optimizer": ["sgd"]},
    ],
)
def test_bad_recipes_are_refused(wrong):
    with pytest.raises(BadInput):
        Recipe(**wrong)
    if None not in wrong.values():  # None: the default
        with pytest.raises(BadInput):
            default_recipe((3, 32, 32), 100, **wrong)


def test_a_wrong_word_is_answered_with_the_known_ones():
    for name, words in choices(Recipe).items():
        for word in words:
            assert getattr(Recipe(**{name: word}), name) == word
        with pytest.raises(BadInput, match=f"unknown {name} 'x'; known: {', '.join(words)}"):
            Recipe(**{name: "x"})
    assert set(choices(Recipe)) == {"optimizer", "init", "precision", "keep"}


def test_a_refit_carries_every_field_of_the_recipe():
    """A new field of Recipe that Classifier does not take would be lost in an audit's folds."""
    named = {"seed": "random_state", "noise_seed": None}  # None: the noise is made before the fit
    params = set(inspect.signature(Classifier).parameters)
    for field in fields(Recipe):
        name = named.get(field.name, field.name)
        assert name is None or name in params, field.name
        assert (field.name in REFIT_FIELDS) == (field.name not in named)


def test_the_best_epoch_is_the_first_of_equals():
    records = [
        {"epoch": 1, "val_accuracy": 0.5, "val_nll": 0.9},
        {"epoch": 2, "val_accuracy": 0.8, "val_nll": 0.7},
        {"epoch": 3, "val_accuracy": 0.8, "val_nll": 0.6},
        {"epoch": 4, "val_accuracy": 0.7, "val_nll": 0.6},
    ]
    assert best_epoch(records)["epoch"] == 2
    assert best_epoch(records, "nll")["epoch"] == 3


def test_compiled_networks_are_for_training_alone(monkeypatch):
    """What torch.compile made runs in the steps, not in validation, and is gone afterwards."""
    calls = []

    def compiled(forward, **options):
        def run(*inputs):
            calls.append(torch.is_grad_enabled())
            return forward(*inputs)

        return run

    recipe = replace(RECIPE, val=0.2, batch_size=32)
    states = []
    for compile in (False, True):
        monkeypatch.setattr(torch, "compile", compiled)
        monkeypatch.setattr("ytilde.engine.graph.why_not_compile", lambda device: "")
        method = create("ce")
        fit_method(method, blobs(), replace(recipe, compile=compile), backbone="mlp")
        states.append(method.state_dict())
        assert "forward" not in method.net.backbone.__dict__
    steps = recipe.epochs * 192 // 32
    assert calls == [True] * steps
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def test_without_a_compiler_training_goes_on_and_says_so(monkeypatch):
    def missing(*args, **options):
        raise RuntimeError("no C++ compiler\nmore of it")

    monkeypatch.setattr(torch, "compile", missing)
    why_not_compile.cache_clear()
    trainer = fit_method(create("ce"), blobs(), replace(RECIPE, compile=True), backbone="mlp")
    why_not_compile.cache_clear()
    assert len(trainer.history) == RECIPE.epochs
    expected = "the networks run as they are: torch.compile does not work here (no C++ compiler)"
    assert trainer.notes == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ce", "co_teaching", "causal_nl"])
def test_compiled_training_equals_plain_training(name):
    if reason := why_not_compile(torch.device("cpu")):
        pytest.skip(reason)
    states = []
    for compile in (False, True):
        method = create(name)
        fit_method(method, blobs(), replace(RECIPE, compile=compile), backbone="mlp")
        states.append(method.state_dict())
    for key, value in states[0].items():
        assert torch.allclose(value, states[1][key], rtol=1e-4, atol=1e-5, equal_nan=True), key


def test_a_long_number_in_a_column_does_no_harm():
    """13 digits that differ in the last ones are one number in float32, and its mean another."""
    data = blobs(n=1000)
    number = 1234567890123 + torch.arange(len(data), dtype=torch.float64)[:, None]
    longer = Data(torch.cat([data.x, number.float()], 1), data.y, data.num_classes)
    spec = make_spec(longer, "mlp", RECIPE)
    assert ((longer.x - spec.mean) / spec.std)[:, -1].abs().max() < 1e-5
    assert torch.equal(spec.std[:-1], make_spec(data, "mlp", RECIPE).std)  # of others, as it was


@pytest.mark.parametrize(
    ("shape", "backbone", "expected"), [((4,), "mlp", 1), ((1, 28, 28), "lenet5", 2)]
)
def test_small_networks_train_in_one_thread(shape, backbone, expected, monkeypatch):
    """More threads wait for each other; convolutions have use for them. Both are left as found."""
    seen = set()
    ce = type(create("ce"))
    loss = ce.loss

    def spy(self, batch, step):
        seen.add(torch.get_num_threads())
        return loss(self, batch, step)

    monkeypatch.setattr(ce, "loss", spy)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        data = Data(torch.rand(16, *shape), torch.arange(16) % 2, 2)
        fit_method(create("ce"), data, Recipe(epochs=1, val=0.0, device="cpu"), backbone=backbone)
        assert seen == {expected}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
