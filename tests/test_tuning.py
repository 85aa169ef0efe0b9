"""The search behind every "auto": what it costs, what it finds, that it repeats and goes on."""

import json
import math

import pytest
import torch

from ytilde import BadInput, Classifier, Data, Recipe, create, noise
from ytilde.data.splits import folds
from ytilde.datasets import load
from ytilde.engine import Diverged
from ytilde.fitting import fit_method
from ytilde.methods.het import TAUS
from ytilde.tuning import PIXEL_LIST, RIVALS, choose_method, race, resolve_auto_fields, rungs


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    made = noise.corrupt(
        "symmetric", data.x, data.y, 10, rate=0.3, generator=torch.Generator().manual_seed(0)
    )
    return Data(data.x[:300], made.y[:300], 10, clean=data.y[:300])


def figures(value):
    return {"accuracy": value, "nll": -value}


@pytest.mark.parametrize(("n", "fits"), [(18, 6.0), (9, 4.0), (3, 7 / 3), (2, 2.0), (1, 0.0)])
def test_cost(n, fits):
    asked = []

    def score(candidate, epochs):
        asked.append(epochs)
        return figures(candidate["tau"])

    best, seen = race([{"tau": k} for k in range(n)], score, 90, "nll")
    assert best == {"tau": n - 1}
    assert sum(asked) / 90 == pytest.approx(fits)
    assert [line["epochs"] for line in seen] == asked


def test_it_follows_a_slow_version():
    """A third goes on, a value that improves with training can win, ties go to the earlier."""
    value = {(k, e): math.sin(7 * k + e) for k in range(18) for e in (10, 30, 90)}
    value[4, 30] = value[11, 30]
    best, seen = race(
        [{"tau": k} for k in range(18)],
        lambda c, e: figures(value[c["tau"], e]),
        90,
        "accuracy",
    )
    first = sorted(range(18), key=lambda k: -value[k, 10])[:6]
    second = sorted(sorted(first), key=lambda k: -value[k, 30])[:2]
    assert {line["tau"] for line in seen if line["epochs"] == 30} == set(first)
    assert {line["tau"] for line in seen if line["epochs"] == 90} == set(second)
    assert best["tau"] == max(second, key=lambda k: value[k, 90])


def test_rungs_are_at_least_an_epoch():
    assert rungs(90) == [10, 30, 90] and rungs(2) == [1, 2] and rungs(1) == [1]


def test_what_cannot_be_trained_loses():
    def score(candidate, epochs):
        return figures({1: math.nan, 2: 0.1}[candidate["k"]]) if candidate["k"] else {}

    assert race([{"k": k} for k in range(3)], score, 9, "accuracy")[0] == {"k": 2}
    with pytest.raises(Diverged, match="none of the 2"):
        race([{"k": 0}, {"k": 0}], score, 9, "accuracy")
    with pytest.raises(BadInput, match="accuracy or nll"):
        race([{"k": 0}], score, 9, "f1")


def test_auto_of_a_classifier(digits):
    """Only what is "auto" is chosen; the search repeats and leaves no trace in the fit."""
    X, y = digits.x.numpy(), digits.y.numpy()
    state = torch.random.get_rng_state()
    auto = create("ln", tau="auto", lam=0.5)
    fits = [Classifier(auto, "identity", epochs=6, random_state=3).fit(X, y) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    method = fits[0].method_
    assert method.tau in (0.1, 0.5, 1) and method.lam == 0.5 and fits[0].method.tau == "auto"
    assert method.race_ == fits[1].method_.race_
    assert [line["epochs"] for line in method.race_] == [1, 1, 1, 6, 6]
    best = max(method.race_[-2:], key=lambda line: line["accuracy"])
    assert best["tau"] == method.tau
    same = create("ln", tau=method.tau, lam=0.5)
    plain = Classifier(same, "identity", epochs=6, random_state=3).fit(X, y)
    assert (plain.predict_proba(X) == fits[0].predict_proba(X)).all()


def test_both_fields_of_ln_and_the_note(digits, tmp_path):
    method = create("ln", tau="auto", lam="auto")
    recipe = Recipe(epochs=2, val=0.2, optimizer="adam", lr=1e-3)
    trainer = fit_method(method, digits, recipe, folder=tmp_path)
    assert len(method.race_) == 9 + 3 and (tmp_path / "race.json").exists()
    note = f"tau={method.tau:g}, lam={method.lam:g} chosen from 9 settings by noisy validation"
    assert trainer.notes == [f"{note} accuracy"]

    def unused(method, recipe, name):
        raise AssertionError("the search was done before")

    again = create("ln", tau="auto", lam="auto")
    resolve_auto_fields(again, recipe, unused, tmp_path, resume=True)
    assert again.get_params() == method.get_params() and again.race_ == method.race_
    with pytest.raises(AssertionError, match="done before"):
        resolve_auto_fields(create("ln", tau="auto"), recipe, unused, tmp_path)


def test_het_goes_by_likelihood_and_never_sees_clean_labels(digits):
    recipe = Recipe(epochs=1, optimizer="adam", lr=1e-3, batch_size=32, val=0)
    chosen = []
    for clean in (digits.clean, torch.zeros_like(digits.clean)):
        data = Data(digits.x, digits.y, 10, clean=clean)
        method = create("het_tau", tau="auto", train_samples=5, eval_samples=50)
        assert "log-likelihood" in fit_method(method, data, recipe).notes[0]
        chosen.append(method.race_)
    assert chosen[0] == chosen[1] and len(chosen[0]) == len(TAUS)
    assert method.tau == min(chosen[0], key=lambda line: line["nll"])["tau"]


@pytest.fixture
def two(monkeypatch):
    """A short list of two."""
    monkeypatch.setattr("ytilde.estimator.training.RIVALS", ("ce",))


def answers(**rows):
    """right(name, fold) of methods whose rows are these, cut into folds of 100."""
    return lambda name, fold: rows[name][100 * fold : 100 * (fold + 1)]


def test_the_first_method_is_left_only_for_one_that_is_clearly_ahead():
    first = [1.0] * 60 + [0.0] * 40
    little, much = [1.0] * 63 + [0.0] * 37, [1.0] * 70 + [0.0] * 30
    assert choose_method(["a", "b"], answers(a=first, b=little), 1)[0] == "a"  # 1.7 errors
    assert choose_method(["a", "b"], answers(a=first, b=much), 1)[0] == "b"  # 3.2
    names = ["a", "b", "c"]
    assert choose_method(names, answers(a=first, b=much[::-1], c=much), 1)[0] == "c"
    several = {"a": 4 * first, "b": 4 * little}
    assert choose_method(["a", "b"], answers(**several), 3)[0] == "a"  # 3 errors: not more
    chosen, seen = choose_method(["a", "b"], answers(**several), 4)
    assert chosen == "b" and [line["fold"] for line in seen] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert seen[-1]["ahead"] == pytest.approx(12 / math.sqrt(12))
    assert [line["accuracy"] for line in seen] == 4 * [0.6, 0.63]


def test_a_method_that_is_far_behind_or_diverges_is_not_tried_again():
    rows = {"a": [1.0] * 200, "b": [0.0] * 10 + [1.0] * 190, "c": [], "d": [1.0] * 200}
    chosen, seen = choose_method(list("abcd"), answers(**rows), 2)
    assert chosen == "a" and "".join(line["method"] for line in seen) == "abcdad"
    chosen, _ = choose_method(["c", "a"], answers(**rows), 1)
    assert chosen == "a"
    with pytest.raises(Diverged, match="none of the 1 methods"):
        choose_method(["c"], answers(**rows), 1)


def test_folds_hold_every_class_and_keep_groups():
    y = torch.tensor([0] * 30 + [1] * 12 + [2] * 3)
    fold = folds(y, 3, torch.Generator().manual_seed(0))
    table = torch.stack([torch.bincount(fold[y == c], minlength=3) for c in range(3)])
    assert table.tolist() == [[10] * 3, [4] * 3, [1] * 3]
    groups = torch.arange(45) // 3
    fold = folds(y, 3, torch.Generator().manual_seed(0), groups)
    assert all(len(fold[groups == g].unique()) == 1 for g in range(15))
    assert set(fold.tolist()) == {0, 1, 2}
    assert len(folds(torch.zeros(7, 2, 2), 3, torch.Generator())) == 7


def test_auto_is_the_method_by_its_name(digits, two):
    """The winner learns as it would by its own name: from all rows, where it stops at none."""
    big = Data(digits.x.repeat(8, 1)[:1200], digits.y.repeat(8)[:1200], 10)
    how = {"backbone": "mlp:width=16", "epochs": 2, "random_state": 0}
    auto = Classifier("auto", **how)
    auto.fit_data(big)
    name = auto.method_.name
    named = Classifier(name, **how)
    named.fit_data(big)
    assert auto.recipe_ == named.recipe_ and (auto.recipe_.val == 0) == (name == "second_opinion")
    x = digits.x.numpy()
    assert (auto.predict_proba(x) == named.predict_proba(x)).all()
    assert {line["fold"] for line in auto.race_} == {1, 2, 3}
    asked = Classifier("auto", **how, val=0.2)
    asked.fit_data(big)
    assert asked.recipe_.val == 0.2


@pytest.mark.parametrize("own", [False, True])
def test_auto_trains_networks_of_two_sizes_unless_one_was_chosen(own, digits, two, tmp_path):
    """What it trains, it saves and audits with."""
    backbone = "mlp:width=8,depth=1" if own else "auto"
    clf = Classifier("auto", backbone, epochs=3, random_state=0)
    clf.fit_data(Data(digits.x, digits.y, 10))
    first = "second_opinion" if own else "ensemble"
    names = [line["method"] for line in clf.race_ if line["fold"] == 1]
    assert names == [first, "ce"] and clf.method_.name == first
    named = Classifier(first, backbone, epochs=3, random_state=0)
    named.fit_data(Data(digits.x, digits.y, 10))
    x = digits.x.numpy()
    assert (clf.predict_proba(x) == named.predict_proba(x)).all()
    clf.save(tmp_path / "m.safetensors")
    back = Classifier.load(tmp_path / "m.safetensors")
    assert (back.predict_proba(x) == clf.predict_proba(x)).all()
    assert len(clf.audit(x, digits.y.numpy(), folds=2).issues) == len(x)


def test_names_of_the_short_list_are_methods():
    for name in ("ensemble", "second_opinion", *RIVALS, *PIXEL_LIST):
        assert create(name).name == name


def test_auto_sees_no_clean_labels(digits, two):
    clf = Classifier("auto", "mlp:width=16", epochs=9, random_state=0)
    clf.fit_data(digits)
    assert {line["method"] for line in clf.race_} == {"second_opinion", "ce"}
    again = Classifier("auto", "mlp:width=16", epochs=9, random_state=0)
    garbage = torch.zeros_like(digits.y)
    again.fit_data(Data(digits.x, digits.y, 10, clean=garbage))
    assert again.race_ == clf.race_


def test_auto_method_is_saved_as_what_it_chose(digits, tmp_path, two):
    clf = Classifier("auto", "mlp:width=8", epochs=3).fit(digits.x.numpy(), digits.y.numpy())
    clf.save(tmp_path / "m.safetensors")
    back = Classifier.load(tmp_path / "m.safetensors")
    assert back.method_.name == clf.method_.name
    x = digits.x.numpy()
    assert (back.predict_proba(x) == clf.predict_proba(x)).all()


def test_auto_method_goes_on_with_its_race(digits, tmp_path, two):
    clf = Classifier("auto", "mlp:width=8", epochs=3)
    clf.fit_data(digits, folder=tmp_path)
    known = (tmp_path / "methods.json").read_bytes()
    again = Classifier("auto", "mlp:width=8", epochs=3)
    again.fit_data(digits, folder=tmp_path, resume=True)
    assert again.race_ == clf.race_ and (tmp_path / "methods.json").read_bytes() == known


def test_a_damaged_race_of_methods_is_run_again(digits, tmp_path, two):
    """Its figures turned round would choose the worst method."""
    data = Data(digits.x[:90], digits.y[:90], 10)
    clf = Classifier("auto", "mlp:width=8", epochs=3)
    clf.fit_data(data, folder=tmp_path)
    known = (tmp_path / "methods.json").read_text()
    turned = known.translate(str.maketrans({"0": "1", "1": "0"}))
    assert turned != known
    for text in (turned, known[:-20]):
        (tmp_path / "methods.json").write_text(text)
        again = Classifier("auto", "mlp:width=8", epochs=3)
        again.fit_data(data, folder=tmp_path, resume=True)
        assert again.race_ == clf.race_ and (tmp_path / "methods.json").read_text() == known


@pytest.mark.parametrize("old", [False, True])
def test_a_damaged_race_is_run_again(tmp_path, old):
    """A flipped digit would choose another setting; of version 0.1 there is no digest to tell."""
    asked = []

    class Trial:
        val = ()

        def __init__(self, tau):
            self.tau = tau

        def score(self, *_, **__):
            return {"accuracy": self.tau, "nll": 1.0}

    def fit(method, recipe, name):
        asked.append(name)
        return Trial(method.tau)

    recipe = Recipe(epochs=9, val=0.2)
    resolve_auto_fields(create("ln", tau="auto", lam=0.5), recipe, fit, tmp_path)
    first, path = list(asked), tmp_path / "race.json"
    if old:
        path.write_text(json.dumps(json.loads(path.read_text())["answers"]))
    content = path.read_bytes()
    chosen = set()
    for at in range(0, len(content), 3):
        asked.clear()
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        method = create("ln", tau="auto", lam=0.5)
        resolve_auto_fields(method, recipe, fit, tmp_path, resume=True)
        chosen.add(method.tau)
        assert old or asked in (first, [])
    assert old or chosen == {1}
    for text in ("", "[", "{}", "null", "[1]", "[[1, 2, 3]]", '{"answers": [], "digest": 1}'):
        asked.clear()
        path.write_text(text)
        resolve_auto_fields(create("ln", tau="auto", lam=0.5), recipe, fit, tmp_path, resume=True)
        assert asked == first
    path.write_bytes(content)
    asked.clear()
    resolve_auto_fields(create("ln", tau="auto", lam=0.5), recipe, fit, tmp_path, resume=True)
    assert not asked
