"""ONNX files answer as the classifier does, on inputs it never saw and for any batch size."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from ytilde import BadInput, Classifier, cli, create
from ytilde.cli.summary import say_summary
from ytilde.datasets import load, shapes

onnxruntime = pytest.importorskip("onnxruntime", reason='pip install "ytilde[onnx]"')
pytest.importorskip("onnxscript", reason='pip install "ytilde[onnx]"')

from ytilde.export import to_onnx  # noqa: E402


def run(clf, x, path):
    to_onnx(clf, path)
    session = onnxruntime.InferenceSession(path)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    assert classes == clf.classes_.tolist()
    return session.run(["log_probs"], {"x": x})[0]


@pytest.mark.parametrize(
    "method",
    [create("ce"), create("ln"), create("het_tau_full", eval_samples=150), create("lra", k=3)],
    ids=("ce", "ln", "het", "lra"),
)
def test_same_answers_on_1000_inputs(method, tmp_path):
    data = load("digits")
    names = np.array([f"digit {k}" for k in data.y.tolist()])
    clf = Classifier(method, "mlp:width=32", epochs=2).fit(data.x.numpy(), names)
    x = torch.rand(1000, 64, generator=torch.Generator().manual_seed(0)).numpy()
    before, found = clf.predict_proba(x), run(clf, x, tmp_path / "model.onnx")
    assert (found.argmax(-1) == before.argmax(-1)).all()
    assert np.abs(np.exp(found) - before).max() < 1e-5
    assert (clf.predict_proba(x) == before).all()  # the classifier itself is as it was


def test_pixels(tmp_path):
    data = shapes(6, torch.Generator().manual_seed(0), side=30)
    method = create("het", train_samples=2, eval_samples=20)
    clf = Classifier(method, "unet:width=4,depth=1", epochs=1)
    clf.fit(data.x.numpy(), data.y.numpy())
    x = (data.x[:3].float() / 255).numpy()
    found = run(clf, x, tmp_path / "model.onnx")
    assert found.shape == (3, 30, 30, 4)
    assert np.abs(np.exp(found) - clf.predict_proba(data.x[:3])).max() < 1e-5


def test_the_file_tells_how_a_table_becomes_its_input(tmp_path):
    """docs/onnx.md's program, which knows the file alone, answers as the classifier does."""
    text = (Path(__file__).parents[1] / "docs" / "onnx.md").read_text()
    program: dict = {}
    exec(re.search(r"<!-- test: onnx -->\n```python\n(.*?)```", text, re.S)[1], program)
    rng = np.random.default_rng(0)
    colours = np.array(["blue", "red", "sea green"])
    X = pd.DataFrame(
        {"colour": colours[rng.integers(0, 3, 200)], "size": 1e3 * rng.normal(5, 1, 200)}
    )
    y = np.where((X["colour"] == "red") ^ (X["size"] > 5e3), "yes", "no")
    clf = Classifier("ce", "mlp:width=32", epochs=40).fit(X, y)
    path = str(tmp_path / "model.onnx")
    to_onnx(clf, path)
    assert program["predict"](path, X.to_dict("records")) == clf.predict(X).tolist()
    about = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert [column["kind"] for column in json.loads(about["columns"])] == ["category", "number"]
    assert json.loads(about["input"])["mean"][-1] == pytest.approx(X["size"].mean(), rel=1e-4)


def test_command(tmp_path, monkeypatch, capsys):
    """`ytilde export RUN` writes a file that answers as the run does."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((200, 6)), y=rng.integers(0, 3, 200))
    run, out = str(tmp_path / "run"), str(tmp_path / "m.onnx")
    fit = ["fit", str(tmp_path / "d.npz"), "--method", "ce", "--epochs", "2", "--out", run]
    for words in (fit, ["export", run, "--out", out]):
        monkeypatch.setattr(sys, "argv", ["ytilde", *words])
        cli.main()
    assert "(x [N, 6] float32 -> log_probs)" in " ".join(capsys.readouterr().out.split())
    x = rng.random((1000, 6)).astype(np.float32)
    found = onnxruntime.InferenceSession(out).run(["log_probs"], {"x": x})[0]
    clf = Classifier.load(tmp_path / "run" / "model.safetensors")
    assert (clf.classes_[found.argmax(-1)] == clf.predict(x)).all()
    assert len(set(found.argmax(-1))) > 1


def test_a_fit_names_only_files_that_it_writes(tmp_path, capsys):
    data = shapes(2, torch.Generator().manual_seed(0), side=8)
    for given, there in ((data, False), (load("digits"), True)):
        shown = {"backbone": "mlp", "epochs": 1, "seconds": 0}
        say_summary("ce", shown, given, {}, tmp_path)
        assert ("predictions.csv" in capsys.readouterr().out) is there


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            torch.onnx.errors.OnnxExporterError("no\nlong story"),
            r"method ce has no ONNX form \(no\)",
        ),
        (ImportError("no module onnxscript"), r"ytilde\[onnx\]"),
    ],
)
def test_what_cannot_be_exported_says_so(error, text, tmp_path, monkeypatch):
    data = load("digits")
    clf = Classifier("ce", "identity", epochs=1).fit(data.x.numpy(), data.y.numpy())

    def export(*args, **options):
        raise error

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(BadInput, match=text):
        to_onnx(clf, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
