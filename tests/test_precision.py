"""Columns that float32 would lose are learnt, predicted and exported like any other."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from test_cli import FAST, ytilde
from ytilde import Classifier, noise
from ytilde.data import BadInput, Data
from ytilde.data.precision import needs_double
from ytilde.data.readers import read, read_features

RANDOM = np.random.default_rng(0)
K = RANDOM.permutation(400) % 100  # what tells the classes apart
Y = (K >= 50).astype(int)
COLUMNS = {
    "time": 1_700_000_000 + K.astype(np.float64),
    "large": (K - 50) / 50 * 3e38,
    "small": K * 1e-30,
    "tiny": K * 1e-9,
    "close": 1 + K * 1e-9,
}


def plain(y=Y) -> Classifier:
    return Classifier("ce", epochs=60, random_state=0)


@pytest.mark.parametrize("name", COLUMNS)
def test_the_estimator_learns_what_float32_would_lose(name, tmp_path):
    x = COLUMNS[name][:, None]
    model = plain().fit(x[:300], Y[:300])
    assert model.score(x[300:], Y[300:]) > 0.95
    alone = np.concatenate([model.predict_proba(row[None]) for row in x[300:340]])
    assert np.abs(alone - model.predict_proba(x[300:340])).max() < 1e-5  # one row has no spread
    model.save(tmp_path / "m")
    again = Classifier.load(tmp_path / "m")
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_times_in_all_kinds_of_data(kind, tmp_path):
    x = COLUMNS["time"].astype(kind)
    frame = pd.DataFrame({"t": x, "colour": np.where(K % 2, "red", "blue"), "label": Y})
    frame.to_csv(tmp_path / "d.csv", index=False)
    np.savez(tmp_path / "d.npz", x=x[:, None], y=Y)
    items = [(torch.tensor([value]), int(label)) for value, label in zip(x, Y, strict=True)]
    for source in (tmp_path / "d.csv", tmp_path / "d.npz", (x[:, None], Y), items):
        found = read(source)
        assert found.schema.double and len(found.data.x[:, 0].unique()) == 100
        first = read(source, schema=found.schema, labelled=False).data
        assert torch.equal(first.x, found.data.x)
    one = pd.DataFrame({"t": x[:1], "colour": ["red"]})
    again = read_features(one, read(tmp_path / "d.csv").schema)
    assert again.data.x[0, 0].item() == x[0]


def test_ordinary_features_stay_float32():
    ordinary = [
        RANDOM.normal(size=(50, 3)),
        RANDOM.integers(0, 256, (50, 4)),
        np.ones((5, 2)) * 1e9,
    ]
    ordinary += [1990 + RANDOM.integers(0, 30, (50, 1)), np.zeros((5, 1)), np.full((9, 1), 0.1) * 3]
    for x in ordinary:
        assert not needs_double(torch.from_numpy(np.asarray(x)))
        assert read((x, np.arange(len(x)) % 2)).data.x.dtype == torch.float32


def test_the_command_line_agrees(tmp_path):
    frame = pd.DataFrame({"t": COLUMNS["time"].astype(int), "label": Y})
    frame[:300].to_csv(tmp_path / "d.csv", index=False)
    frame[300:].to_csv(tmp_path / "new.csv", index=False)
    ytilde("fit", tmp_path / "d.csv", *FAST, "--epochs", "60", "--out", tmp_path / "r")
    ytilde("predict", tmp_path / "r", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert (predicted.predicted_label == frame.label[300:].to_numpy()).mean() > 0.95
    model = Classifier.load(tmp_path / "r" / "model.safetensors")
    assert model.score(frame[["t"]][300:], frame.label[300:].astype(str)) > 0.95


def test_an_onnx_file_takes_them_in_float64(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from ytilde.export import to_onnx

    x = COLUMNS["time"][:, None]
    model = plain().fit(x, Y)
    to_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["input"])
    assert about["type"] == "float64" and session.get_inputs()[0].type == "tensor(double)"
    log_probs = session.run(["log_probs"], {"x": x})[0]
    assert np.abs(np.exp(log_probs) - model.predict_proba(x)).max() < 1e-5


@pytest.mark.parametrize("name", ["causal_nl", "dtm", "lra", "mixup", "dividemix", "het"])
def test_every_kind_of_method_takes_them(name):
    """Those that look at x outside the network: reconstructions, neighbours, mixtures."""
    x = COLUMNS["time"][:, None]
    proba = Classifier(name, epochs=2, random_state=0).fit(x, Y).predict_proba(x)
    assert np.isfinite(proba).all() and len(np.unique(proba[:, 0])) > 50


def test_instance_noise_sees_them():
    x, y = torch.from_numpy(COLUMNS["time"][:, None]), torch.from_numpy(Y)
    alike = torch.from_numpy(K[:, None].astype(np.float32))
    made, expected = (
        noise.instance(part, y, 2, rate=0.3, generator=torch.Generator().manual_seed(0))
        for part in (x, alike)
    )
    assert torch.equal(made.y, expected.y)
    assert torch.allclose(made.rows, expected.rows, atol=1e-5)


def test_an_encoder_remembers_them(tmp_path):
    from ytilde.encoders import Encoder

    exact = torch.tensor([1_700_000_049.5], dtype=torch.float64)
    for mean in (exact, exact.float()):
        weights = {"w": torch.zeros(1)}
        Encoder("mlp", (1,), mean, torch.ones_like(mean), weights).save(tmp_path / "e")
        again = Encoder.load(tmp_path / "e")
        assert again.mean.dtype == mean.dtype and torch.equal(again.mean, mean)


def test_a_diagnosis_sees_them():
    from ytilde import diagnose

    wrong = np.where(RANDOM.random(400) < 0.2, 1 - Y, Y)
    extra = RANDOM.normal(size=400)
    told = [
        diagnose(np.stack([column, extra], 1), wrong, draws=5, heads=False).audit.noise_rate
        for column in (COLUMNS["time"], K.astype(np.float64))
    ]
    assert told[0].low == pytest.approx(told[1].low, abs=0.02)
    assert told[0].high == pytest.approx(told[1].high, abs=0.02)


def test_what_is_too_large_for_any_network_is_refused():
    with pytest.raises(BadInput, match="missing or infinite value in row 1"):
        read((np.array([[0.0], [1e39]]), [0, 1]))
    assert Data(torch.zeros(1, 1), torch.zeros(1), 1).x.dtype == torch.float32
