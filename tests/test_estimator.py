"""Classifier keeps scikit-learn's contract."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits, make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from ytilde import BadInput, Classifier, Data, checkpoint, create, readers
from ytilde.backbones import create_backbone
from ytilde.encoder import Encoder
from ytilde.fitting import fit_method

# Weighted rows are drawn more often (docs/decisions/0003), so weighting and repeating agree in
# expectation and not bit for bit.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "weights are draws: equal in expectation",
    "check_sample_weight_equivalence_on_sparse_data": "weights are draws: equal in expectation",
}
SMALL = {"backbone": "mlp:width=32,depth=1", "device": "cpu"}


@parametrize_with_checks(
    [Classifier("ce", epochs=40, batch_size=16, lr=0.01, **SMALL)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_expected_failures_are_few():
    assert len(EXPECTED_FAILURES) <= 3


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:600].astype(np.float32), y[:600]


def test_strings_pipeline_and_grid_search(digits):
    x, y = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "sev", "eight", "nine"])
    clf = Classifier(create("ln"), epochs=60, **SMALL)
    pipe = make_pipeline(StandardScaler(), clf).fit(x, names[y])
    assert set(pipe.predict(x)) <= set(names)
    assert pipe.score(x, names[y]) > 0.8
    search = GridSearchCV(clf, {"method__tau": [0.5, 1.0]}, cv=2).fit(x[:200], y[:200])
    assert search.best_params_["method__tau"] in (0.5, 1.0)
    assert clf.method.tau == create("ln").tau  # the search worked on clones


def test_images_and_own_network(digits):
    x, y = digits
    images = (x.reshape(-1, 8, 8) / 16).astype(np.float32)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
    clf = Classifier("ce", backbone=own, epochs=60).fit(images, y)
    assert clf.score(images, y) > 0.85
    assert all(p.grad is None for p in own.parameters())  # the user's own network is not touched
    with pytest.raises(BadInput, match="divide yours by 255"):
        clf.predict(images * 255)
    with pytest.raises(BadInput, match="shape"):
        clf.predict(images[:, :4])


def test_save_and_load(tmp_path, digits):
    x, y = digits
    clf = Classifier("ce", epochs=3, **SMALL).fit(x, y.astype(str))
    clf.save(tmp_path / "m.safetensors")
    again = Classifier.load(tmp_path / "m.safetensors")
    assert (again.predict(x) == clf.predict(x)).all()
    assert (again.predict_proba(x) == clf.predict_proba(x)).all()
    (tmp_path / "n.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:-9])
    with pytest.raises(BadInput, match="damaged"):
        Classifier.load(tmp_path / "n.safetensors")


def test_sample_weights_move_the_decision():
    x = np.zeros((200, 2), np.float32)
    y = np.repeat([0, 1], 100)
    weights = np.where(y == 1, 3.0, 1.0)
    p = Classifier("ce", epochs=60, **SMALL).fit(x, y, sample_weight=weights).predict_proba(x[:1])
    assert p[0, 1] == pytest.approx(0.75, abs=0.05)


def test_transition_and_uncertainty_have_the_promised_shapes(digits):
    x, y = digits
    for method in ("ce", "ln", "het"):
        clf = Classifier(method, epochs=3, **SMALL).fit(x, y)
        T = clf.transition_matrix(x[:7])
        assert T.shape == (7, 10, 10)
        assert np.allclose(T.sum(-1), 1, atol=1e-5)
        u = clf.uncertainty(x[:7])
        assert u.shape == (7,)
        assert (u >= 0).all()


def test_interrupt_keeps_the_model(monkeypatch):
    x, y = make_blobs(200, random_state=0)
    calls = []
    original = type(create("ce")).loss

    def loss(self, batch, step):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return original(self, batch, step)

    monkeypatch.setattr(type(create("ce")), "loss", loss)
    with pytest.warns(UserWarning, match="interrupted"):
        clf = Classifier("ce", epochs=50, batch_size=50, **SMALL).fit(x, y)
    assert len(clf.history_) == 3
    assert clf.predict(x).shape == (200,)


def test_an_interrupt_before_a_classifier_keeps_nothing(monkeypatch):
    """DTM's first stages learn matrices; its classifier is then as it was drawn."""
    x, y = make_blobs(200, random_state=0)

    def common_loss(self, batch, step):
        if step.epoch >= 2:
            raise KeyboardInterrupt
        return original(self, batch, step)

    original = type(create("dtm")).common_loss
    monkeypatch.setattr(type(create("dtm")), "common_loss", common_loss)
    clf = Classifier("dtm", epochs=50, batch_size=50, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(x, y)
    assert {line["stage"] for line in clf.history_} == {"common"}


def test_a_model_needs_no_file_of_weights(tmp_path):
    x, y = make_blobs(90, random_state=0)
    first = Classifier("ce", "mlp:width=8,depth=1", epochs=1, device="cpu").fit(x, y)
    weights = tmp_path / "start.safetensors"
    save_file(first.method_.net.backbone.state_dict(), weights)
    spec = f"mlp:width=8,weights={weights},depth=1"
    clf = Classifier("ce", spec, epochs=2, device="cpu").fit(x, y)
    clf.save(tmp_path / "model")
    weights.unlink()
    found = Classifier.load(tmp_path / "model")
    assert (found.predict_proba(x) == clf.predict_proba(x)).all()


def test_pixels():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 1, 16, 16, generator=generator)
    y = (x[:, 0] > 0.5).long()
    y[:, 0] = -1
    clf = Classifier("ce", backbone="unet:width=8,depth=2", epochs=60, lr=0.01, batch_size=4)
    clf.fit(x.numpy(), y.numpy())
    assert clf.predict(x.numpy()).shape == (12, 16, 16)
    known = y.numpy() >= 0
    assert (clf.predict(x.numpy()) == y.numpy())[known].mean() > 0.9


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((4, 2)), [0, 0, 0, 0], "one class"),
        (np.array([[np.nan, 1.0]] * 4), [0, 1, 0, 1], "NaN"),
        (np.zeros((4, 1, 8, 8), np.float32), [0, 1], "one label"),
    ],
)
def test_bad_input_is_one_sentence(x, y, message):
    with pytest.raises(ValueError, match=message):
        Classifier("ce", epochs=1).fit(x, y)


def test_bad_parameters_are_one_sentence():
    x, y = make_blobs(30, centers=2, random_state=0)
    for own, message in (
        ({"random_state": "x"}, "random_state must be"),
        ({"method": 3}, "method must be a name"),
        ({"method": type(create("ce"))}, "method must be a name"),
    ):
        with pytest.raises(BadInput, match=message):
            Classifier(**({"method": "ce", "epochs": 1} | SMALL | own)).fit(x, y)
    with pytest.raises(BadInput, match="sample_weight must hold numbers"):
        Classifier("ce", epochs=1, **SMALL).fit(x, y, sample_weight=["a"] * 30)


@pytest.mark.parametrize("own", [{"keep": "best"}, {"keep": "best_nll"}, {"patience": 2}])
def test_to_go_by_held_out_rows_some_must_be_held_out(own):
    """Without any, all of these were passed over in silence."""
    x, y = make_blobs(30, centers=2, random_state=0)
    clf = Classifier("ce", epochs=1, val=0, **own, **SMALL)
    for method in (clf.fit, clf.audit):
        with pytest.raises(BadInput, match="goes by held-out rows, and val=0 holds none out"):
            method(x, y)
    assert clf.set_params(val="auto").fit(x, y).recipe_.val == 0.1


def test_images_are_checked_as_tables_are():
    x, y = np.zeros((4, 1, 8, 8)), np.array([0, 1, 0, 1])
    for images, labels, message in (
        (x.astype(object), y, "instead of numbers"),
        (x + np.nan, y, "missing or infinite"),
        (x, [0, 1, np.nan, 1], "missing labels"),
    ):
        with pytest.raises(BadInput, match=message):
            Classifier("ce", epochs=1).fit(images, labels)
    Classifier("ce", epochs=1).fit((255 * x).astype(np.int64), y)


def test_an_audit_of_the_wrong_shape_is_one_sentence():
    x, y = make_blobs(30, centers=2, random_state=0)
    clf = Classifier("ce", epochs=1, **SMALL).fit(x, y)
    with pytest.raises(BadInput, match="30 labels for 5 rows"):
        clf.audit(x[:5], y, folds=0)
    maps = np.zeros((4, 8, 8), int)
    with pytest.raises(BadInput, match="one label per row"):
        clf.audit(np.zeros((4, 1, 8, 8)), maps)


def make_table(n=240, seed=0):
    """Two blobs told apart by a number and a category together."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    colour = np.where(rng.random(n) < 0.1, "green", np.where(y == 1, "red", "blue"))
    return pd.DataFrame({"size": rng.normal(y, 0.5), "colour": colour}), np.array(["no", "yes"])[y]


def test_text_columns_of_a_frame_are_categories(tmp_path):
    X, y = make_table()
    clf = Classifier("ce", epochs=30, **SMALL).fit(X, y)
    assert clf.shape_ == (4,) and clf.n_features_in_ == 2
    assert clf.feature_names_in_.tolist() == ["size", "colour"]
    assert clf.schema_.columns == {"size": None, "colour": ["blue", "green", "red"]}
    new, truth = make_table(seed=1)
    assert clf.score(new, truth) > 0.9
    clf.save(tmp_path / "model")
    again = Classifier.load(tmp_path / "model")
    assert (again.predict_proba(new) == clf.predict_proba(new)).all()
    found = clf.audit(X, y, folds=2)
    assert found.context.rows is X and not found.at_chance
    with pytest.warns(UserWarning, match="'purple'"):
        clf.predict(new.assign(colour="purple"))
    with pytest.raises(BadInput, match="no feature column 'colour'"):
        clf.predict(new[["size"]])
    many = X.assign(colour=[f"colour {k}" for k in range(len(X))])
    with pytest.warns(UserWarning, match=r"left out .*'colour' \(240 different short texts"):
        assert list(clf.fit(many, y).schema_.columns) == ["size"]


@pytest.mark.parametrize("names", [["size"], ["size", "colour"]], ids=["numbers", "mixed"])
def test_columns_of_a_frame_are_found_by_name(names, tmp_path):
    """A table of plain numbers was refused where its columns were in another order, or more."""
    X, y = make_table()
    X = X[names].assign(weight=np.arange(len(X)))
    clf = Classifier("ce", epochs=1, **SMALL).fit(X, y)
    clf.save(tmp_path / "model")
    other = X[X.columns[::-1]].assign(more=1.0)
    for each in (clf, Classifier.load(tmp_path / "model")):
        assert (each.predict_proba(other) == clf.predict_proba(X)).all()
    with pytest.raises(BadInput, match="no feature column 'weight' in the table; its columns:"):
        clf.predict(X[names])


def test_every_column_of_a_frame_is_a_feature():
    """Columns called y or label were taken for the labels, and left out without a word."""
    X, labels = make_table()
    X = X.rename(columns={"size": "y"}).assign(label=1.0, clean=2.0)
    clf = Classifier("ce", epochs=1, **SMALL).fit(X, labels)
    assert list(clf.schema_.columns) == ["y", "colour", "label", "clean"] and clf.shape_ == (6,)
    assert len(clf.predict(X)) == len(X)


def test_numbers_in_a_frame_of_objects_stay_numbers():
    X, y = make_table()
    X = X[["size"]].astype(object)
    clf = Classifier("ce", epochs=1, **SMALL).fit(X, y)
    assert clf.schema_.columns == {"size": None} and clf.shape_ == (1,)


def test_an_audit_of_the_same_trains_nothing_again(digits, tmp_path):
    x, y = digits[0][:120], torch.from_numpy(digits[1][:120])
    data = Data(torch.from_numpy(x), y, 10)
    for method, field in (("ce", {}), ("volminnet", {"lam": 1e-3})):  # without and with a T(x)
        clf = Classifier(method, epochs=2, **SMALL)
        keep, fits = tmp_path / f"{method}.safetensors", []
        ask = {"folds": 2, "keep": keep, "on_record": fits.append}
        first = clf.audit_data(data, **ask)
        assert first.context.method == method
        trained = len(fits)
        again = clf.audit_data(data, **ask)
        assert len(fits) == trained > 0 and again.issues.equals(first.issues)
        assert (again.transition == first.transition).all()
        assert any("Nothing was trained again" in note for note in again.notes)
        others = [Data(data.x, y.flip(0), 10), Data(data.x[:100], y[:100], 10)]
        for other in others:  # other labels, other rows
            clf.audit_data(other, **ask)
        Classifier(create(method, **field), epochs=3, **SMALL).audit_data(data, **ask)
        assert len(fits) == trained * 3 + 6
        keep.write_bytes(b"damaged")
        assert clf.audit_data(data, **ask).issues.equals(first.issues)


def test_the_folds_of_an_audit_are_trained_by_the_whole_recipe(tmp_path, monkeypatch):
    """Workers, graph, compile and the streams' seeds were lost, and the folds had other seeds."""
    x, y = make_blobs(60, centers=2, random_state=0)
    data = Data(torch.from_numpy(x).float(), torch.from_numpy(y), 2)
    own = {"epochs": 2, "val": 0.2, "keep": "best", "workers": 0, "graph": False, "clip": 1.0}
    own |= {"split_seed": 2, "init_seed": 3, "order_seed": 4, "balance": True, "device": "cpu"}
    used = []

    def fit(method, data, recipe, **options):
        used.append(recipe)
        return fit_method(method, data, recipe, **options)

    monkeypatch.setattr("ytilde.estimator.training.fit_method", fit)
    clf = Classifier("ce", "mlp:width=8", random_state=5, **own)
    clf.fit_data(data)
    assert all(getattr(used[0], name) == value for name, value in own.items())
    first = clf.audit_data(data, folds=2, keep=tmp_path / "kept")
    clf.save(tmp_path / "model")
    second = Classifier.load(tmp_path / "model").audit_data(data, folds=2)
    assert used == [used[0]] * 5
    assert second.issues.equals(first.issues)
    clf.set_params(init_seed=8).audit_data(data, folds=2, keep=tmp_path / "kept")
    assert used[5:] == [replace(used[0], init_seed=8)] * 2  # what others said does not serve


def test_an_audit_is_made_again_where_a_file_that_it_starts_from_has_changed(tmp_path):
    x, y = make_blobs(60, centers=2, random_state=0)
    data = Data(torch.from_numpy(x).float(), torch.from_numpy(y), 2)
    np.save(tmp_path / "T.npy", [[0.9, 0.1], [0.1, 0.9]])
    backbone = torch.nn.Linear(2, 4)
    made = Encoder("mlp:width=8", (2,), torch.zeros(2), torch.ones(2), {})
    made = replace(made, weights=create_backbone("mlp:width=8", (2,)).state_dict())
    made.save(tmp_path / "encoder")
    change = {
        "T": lambda: np.save(tmp_path / "T.npy", [[0.8, 0.2], [0.1, 0.9]]),
        "encoder": lambda: replace(made, weights={k: v + 1 for k, v in made.weights.items()}).save(
            tmp_path / "encoder"
        ),
        "backbone": lambda: backbone.weight.data.add_(1),
    }
    own = {
        "T": {"method": create("forward", T=str(tmp_path / "T.npy"))},
        "encoder": {"method": "ce", "encoder": tmp_path / "encoder"},
        "backbone": {"method": "ce", "backbone": backbone},
    }
    for name, settings in own.items():
        clf, fits = Classifier(**settings, epochs=1), []
        ask = {"folds": 2, "keep": tmp_path / f"{name}.kept", "on_record": fits.append}
        clf.audit_data(data, **ask)
        count = len(fits)
        clf.audit_data(data, **ask)
        assert len(fits) == count, name
        change[name]()
        clf.audit_data(data, **ask)
        assert len(fits) == 2 * count, name


def test_an_audit_that_is_interrupted_ends_and_keeps_nothing(tmp_path):
    """It went on with the next fold, and kept what a model of one epoch had said."""
    x, y = make_blobs(60, centers=2, random_state=0)
    data = Data(torch.from_numpy(x).float(), torch.from_numpy(y), 2)
    heard = []

    def stop(record):
        heard.append(record)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="interrupted"):
        Classifier("ce", epochs=5).audit_data(data, 2, stop, tmp_path / "kept")
    assert len(heard) == 2 and not list(tmp_path.iterdir())


def test_rare_and_missing_labels_do_not_stop_an_audit():
    x, y = make_blobs(60, centers=2, random_state=0)
    y[0] = 2
    clf = Classifier("ce", epochs=1, **SMALL)
    found = clf.audit(x, y, folds=5)
    assert len(found.issues) == 60
    assert any(note.startswith("Of 1 class (2) there is a single row") for note in found.notes)
    labels = torch.from_numpy(np.where(np.arange(60) % 3 == 1, -1, y))
    data = Data(torch.from_numpy(x).float(), labels, 3)
    assert found.issues["index"].size > clf.audit_data(data, folds=2).issues["index"].size == 40


def test_a_loaded_model_keeps_its_seed(tmp_path):
    x, y = make_blobs(60, centers=2, random_state=0)
    clf = Classifier("ce", epochs=2, random_state=7, **SMALL).fit(x, y)
    clf.save(tmp_path / "m.safetensors")
    again = Classifier.load(tmp_path / "m.safetensors")
    assert again.random_state == 7
    assert clf.audit(x, y, folds=2).issues.equals(again.audit(x, y, folds=2).issues)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, meta: meta.pop("classes"),
        lambda tensors, meta: meta["params"].update(unheard_of=1),
        lambda tensors, meta: tensors.pop("method.net.head.mean.weight"),
        lambda tensors, meta: tensors.update({"method.net.head.mean.bias": torch.zeros(7)}),
    ],
)
def test_a_model_of_another_version_is_one_sentence(change, tmp_path):
    x, y = make_blobs(30, centers=2, random_state=0)
    path = tmp_path / "m.safetensors"
    Classifier("ce", epochs=1, **SMALL).fit(x, y).save(path)
    tensors, meta = checkpoint.load(path)
    change(tensors, meta)
    checkpoint.save(path, tensors, meta)
    with pytest.raises(BadInput, match="does not fit this version of ytilde"):
        Classifier.load(path)


def test_fields_of_a_method_by_name_can_be_searched(digits):
    x, y = digits
    search = GridSearchCV(Classifier("ln", epochs=1, **SMALL), {"method__tau": [0.5, 1.0]}, cv=2)
    assert search.fit(x, y).best_params_["method__tau"] in (0.5, 1.0)
    clf = Classifier("ln").set_params(method__tau=0.3, epochs=7)
    assert clf.method.tau == 0.3 and clf.epochs == 7


@pytest.mark.parametrize("kind", ["array", "file"])
def test_a_known_transition_is_saved_with_the_model(kind, tmp_path):
    x, y = make_blobs(30, centers=2, random_state=0)
    T, path = np.array([[0.9, 0.1], [0.2, 0.8]]), tmp_path / "T.npy"
    np.save(path, T)
    method = create("forward", T=T if kind == "array" else str(path))
    clf = Classifier(method, epochs=1, **SMALL).fit(x, y)
    clf.save(tmp_path / "m.safetensors")
    path.unlink()
    again = Classifier.load(tmp_path / "m.safetensors")
    assert (again.transition_matrix(x) == clf.transition_matrix(x)).all()


def test_an_image_that_cannot_be_read_is_not_judged(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(40):
        folder = tmp_path / ("dark", "light")[k % 2]
        folder.mkdir(exist_ok=True)
        picture = rng.integers(0, 100, (8, 8)) + 150 * (k % 2)
        Image.fromarray(picture.astype(np.uint8)).save(folder / f"{k:02}.png")
    (tmp_path / "dark" / "08.png").write_text("no picture")
    data = readers.read(tmp_path).data
    clf = Classifier("ce", "mlp:width=16,depth=1", epochs=2, device="cpu")
    found = clf.audit_data(data, folds=2)
    lost = data.x.paths.index(str(tmp_path / "dark" / "08.png"))
    assert len(found.issues) == 39 and lost not in found.issues["index"].tolist()
    assert any("08.png" in note for note in found.notes)
    assert not any("did not train on the row" in note for note in found.notes)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_missing_label_is_refused_in_a_sentence(missing):
    X, y = np.random.default_rng(0).normal(size=(4, 2)), np.array(["a", "b", "a", missing], object)
    for method in (Classifier(**SMALL).fit, Classifier(**SMALL).audit):
        with pytest.raises(BadInput, match="missing labels"):
            method(X, y)


def test_a_model_of_one_training_row_is_loaded(tmp_path):
    """Of two rows one is for validation."""
    X = np.array([[1.0], [2.0]])
    clf = Classifier("ce", epochs=1, val=0.5, **SMALL).fit(X, ["a", "b"])
    clf.save(tmp_path / "m")
    assert clf.method_.spec.num_train == 1
    assert (Classifier.load(tmp_path / "m").predict_proba(X) == clf.predict_proba(X)).all()


def test_an_audit_speaks_in_the_classes_own_values(tmp_path):
    x, y = make_blobs(60, centers=3, random_state=0)
    given = 5 * y - 5
    found = Classifier("ce", "mlp", epochs=1).audit(x, given, folds=2)
    assert (found.issues.given_label.to_numpy() == given).all()
    assert set(found.issues.predicted_label) <= {-5, 0, 5}
    found.to_html(tmp_path / "report.html")
    found.to_csv(tmp_path / "issues.csv")
    again = pd.read_csv(tmp_path / "issues.csv").sort_values("index")
    assert (again.given_label.to_numpy() == given).all()
    assert set(found.fixed_labels(0.5).label) <= {-5, 0, 5}
