"""`ytilde fit` and `Classifier().fit`: the same labels, method and seed give the same model."""

import json

import numpy as np
import pandas as pd
import pytest

from test_cli import ytilde
from ytilde import Classifier, datasets, noise
from ytilde.engine import Recipe
from ytilde.estimator import training


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Real digits of which 40 % are labelled wrong, as files and as arrays."""
    folder = tmp_path_factory.mktemp("digits")
    train, test = (datasets.load("digits", split=part) for part in ("train", "test"))
    generator = Recipe(seed=0).generator("noise")
    y = noise.instance(train.x, train.y, 10, rate=0.4, generator=generator).y.numpy()
    x, new = train.x.numpy(), test.x.numpy()
    np.savez(folder / "train.npz", x=x, y=y)
    np.savez(folder / "test.npz", x=new, y=test.y.numpy())
    return folder, x, y, new, test.y.numpy()


@pytest.mark.parametrize("method", ["ce", "elr", "volminnet"])
@pytest.mark.parametrize("rows", ["many", "few"])
def test_both_give_the_same_model(digits, tmp_path, method, rows):
    folder, x, y, new, truth = digits
    assert len(x) >= 1000
    if rows == "few":
        x, y = x[:300], y[:300]
    np.savez(tmp_path / "train.npz", x=x, y=y)
    words = ["--method", method, "--epochs", "4", "--seed", "3", "--device", "cpu"]
    ytilde("fit", "train.npz", *words, "--test", folder / "test.npz", "--out", "run", cwd=tmp_path)
    ytilde("predict", "run", folder / "test.npz", "--out", "p.csv", cwd=tmp_path)
    clf = Classifier(method, epochs=4, random_state=3, device="cpu").fit(x, y)
    predicted = pd.read_csv(tmp_path / "p.csv").predicted_label.to_numpy()
    assert (predicted == truth).mean() == clf.score(new, truth)
    assert np.array_equal(predicted, clf.predict(new))
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert recipe["val"] == clf.recipe_.val == (0.1 if rows == "many" else 0.0)
    assert recipe["keep"] == clf.recipe_.keep == ("best" if rows == "many" else "last")


def watch_trainers(monkeypatch):
    """The trainers of all that is fitted from here on."""
    trainers, plain = [], training.fit_method

    def watched(method, data, recipe, **options):
        trainers.append(plain(method, data, recipe, **options))
        return trainers[-1]

    monkeypatch.setattr(training, "fit_method", watched)
    return trainers


def test_an_audit_trains_its_folds_as_the_run_was_trained(digits, tmp_path, monkeypatch):
    """Also by those settings that no search is about: workers, graph, compile and the seeds."""
    _, x, y, _, _ = digits
    np.savez(tmp_path / "train.npz", x=x[:150], y=y[:150])
    own = {"epochs": 2, "workers": 0, "graph": False, "split_seed": 5, "init_seed": 6, "val": 0.2}
    own |= {"order_seed": 7, "schedule": "constant", "clip": 1.0, "device": "cpu", "keep": "best"}
    words = [w for k, v in own.items() for w in (f"--{k.replace('_', '-')}", str(v).lower())]
    ytilde("fit", "train.npz", *words, "--method", "ce", "--out", "run", cwd=tmp_path)
    trainers = watch_trainers(monkeypatch)
    ytilde("audit", "run", "--folds", "2", cwd=tmp_path)
    made = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert own.items() <= made.items()
    assert len(trainers) == 2
    assert all(vars(trainer.recipe) == made for trainer in trainers)


def test_folds_of_just_enough_rows_hold_out_as_the_whole_does(monkeypatch):
    """1,000 rows hold out a tenth; their folds, of 500 rows, do so too."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(1000, 3)).astype("float32"), generator.integers(0, 2, 1000)
    x[:, 0] += 3 * y
    clf = Classifier("ce", "mlp:width=4,depth=1", epochs=1)
    trainers = watch_trainers(monkeypatch)
    clf.audit(x, y, folds=2)
    assert [len(trainer.val or ()) for trainer in trainers] == [50, 50]
