"""Similar rows: the nearest of both classes, from what an audit of any data has at hand."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from ytilde import Classifier
from ytilde.auditing import similar
from ytilde.data import Data


def issues(n, classes=3, suspects=20):
    given = np.arange(n) % classes
    return pd.DataFrame({
        "index": np.arange(n), "given_label": given, "predicted_label": (given + 1) % classes,
        "is_label_issue": np.arange(n) < suspects,
    })  # fmt: skip


def nearest(frame, features, row, label):
    own = frame[~frame.is_label_issue & (frame.given_label == label)]["index"].to_numpy()
    return own[np.linalg.norm(features[own] - features[row], axis=1).argsort()[:3]].tolist()


@pytest.mark.parametrize("far", [0, 1e4])
def test_they_are_the_nearest_by_a_slow_search(far, monkeypatch):
    monkeypatch.setattr("ytilde.auditing.inputs.CHUNK", 500)  # several parts
    frame = issues(300)
    features = np.random.default_rng(0).normal(size=(300, 5)) + far
    found = similar.similar_rows(frame, frame[frame.is_label_issue], features)
    assert list(found) == list(range(20))
    for row, near in found.items():
        assert near.given == nearest(frame, features, row, row % 3)
        assert near.predicted == nearest(frame, features, row, (row + 1) % 3)


def test_classes_of_few_rows_and_of_suspects_alone():
    frame = issues(30)
    frame.loc[(frame.given_label == 2) & (frame["index"] < 28), "is_label_issue"] = True
    frame.loc[frame.given_label == 1, "is_label_issue"] = True
    found = similar.similar_rows(frame, frame[frame.is_label_issue], np.arange(30.0)[:, None])
    assert found[1] == ([], [29]) and found[2] == ([29], [21, 24, 27])
    assert similar.similar_rows(frame, frame[:0], np.zeros((30, 1))) == {}


def test_of_many_rows_a_part_of_every_class_is_looked_at(monkeypatch):
    monkeypatch.setattr(similar, "WITNESSES", 100)
    monkeypatch.setattr(similar, "SUSPECTS", 8)
    frame, asked = issues(3000), []

    def features(rows):
        asked.extend(rows)
        return torch.arange(3000.0)[rows, None]

    found = similar.similar_rows(frame, frame[frame.is_label_issue], features)
    assert len(found) == 8 and 90 <= len(asked) <= 110
    assert all(len(near.given) == len(near.predicted) == 3 for near in found.values())


def labelled(x, truth):
    """Every tenth label wrong."""
    return np.where(np.arange(len(x)) % 10 == 0, 1 - truth, truth)


def test_a_table_is_compared_by_its_own_values(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 200)
    x = np.stack([truth * 4 + rng.normal(size=200), 1000 * rng.normal(size=200)], 1)
    found = Classifier("ce", "mlp:width=8", epochs=20, device="cpu").audit(x, labelled(x, truth), 2)
    assert found.similar.keys() == set(found.issues[found.issues.is_label_issue]["index"])
    scaled = (x - x.mean(0)) / x.std(0)
    for row, near in found.similar.items():  # no column is louder than another
        given = found.issues.given_label[row]
        expected = nearest(found.issues, scaled, row, given)
        far = np.linalg.norm(scaled[near.given] - scaled[row], axis=1).max()
        assert far < 1.2 * np.linalg.norm(scaled[expected] - scaled[row], axis=1).max()
    assert pickle.loads(pickle.dumps(found)).similar == found.similar
    found.to_json(tmp_path / "audit.json")
    told = json.loads((tmp_path / "audit.json").read_text())["issues"]
    assert {issue["index"]: issue["similar"]["given"] for issue in told} == {
        row: near.given for row, near in found.similar.items()}  # fmt: skip


def test_pictures_are_compared_by_the_network():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 120)
    x = rng.integers(0, 90, (120, 1, 12, 12)).astype(np.uint8)
    x[truth == 1, :, 3:9, 3:9] += 150
    clf = Classifier("ce", "lenet5", epochs=12, lr=0.01, device="cpu", random_state=0)
    y = labelled(x, truth)
    assert clf.audit(x, y, folds=2).context.features is None  # no network could compare them yet
    found = clf.fit(x, y).audit(x, y, folds=0)
    assert len(found.similar) >= 8
    assert pickle.loads(pickle.dumps(found)).similar == found.similar
    data = Data(torch.from_numpy(x), torch.from_numpy(y), 2)
    with torch.no_grad():
        h = clf.method_.eval().net.features(data.x.float() / 255)
    h = torch.nn.functional.normalize(h).numpy()
    for row, near in found.similar.items():
        assert near.predicted == nearest(found.issues, h, row, found.issues.predicted_label[row])
