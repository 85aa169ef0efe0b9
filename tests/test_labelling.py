"""Files for labelling tools: the formats that Label Studio and Argilla document, nothing lost."""

import base64
import io
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from ytilde import audit
from ytilde.auditing import ReportContext

NAMES = ("<b>cat</b>", 'd"og', "قطة", "👩‍🚀")


def found(**context):
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 4, 300)
    y = np.where(rng.random(300) < 0.2, (clean + 1) % 4, clean)
    logits = rng.normal(size=(300, 4)) + 5 * np.eye(4)[clean]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    result = audit(p, y, names=NAMES)
    return replace(result, context=ReportContext(**context))


def images(side):
    shade = (torch.arange(300) % 256).to(torch.uint8)
    return shade[:, None, None, None].expand(300, 3, side, side)


def pixels(address):
    kind, _, content = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def flagged(result):
    issues = result.issues[result.issues.is_label_issue]
    return issues.sort_values(["label_quality", "index"])


@pytest.mark.parametrize("side", [12, 200])
def test_label_studio_tasks_with_pictures(tmp_path, side):
    result = found(images=images(side), paths=[f"{k}.png" for k in range(300)])
    result.to_label_studio(tmp_path / "tasks.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    issues = flagged(result)
    assert [task["data"]["index"] for task in tasks] == issues["index"].tolist() and len(tasks) > 40
    for task, issue in zip(tasks, issues.itertuples(), strict=True):
        assert task["data"]["given_label"] == issue.given_label
        assert task["data"]["path"] == f"{issue.index}.png"
        picture = pixels(task["data"]["item"])
        assert picture.shape == (side, side, 3)
        assert abs(int(picture[0, 0, 0]) - issue.index % 256) <= 1
        (prediction,) = task["predictions"]
        assert prediction["score"] == pytest.approx(issue.predicted_prob, abs=1e-6)
        (choice,) = prediction["result"]
        assert choice["type"] == "choices"
        assert choice["value"] == {"choices": [issue.predicted_label]}
    ids = [task["predictions"][0]["result"][0]["id"] for task in tasks]
    assert len(set(ids)) == len(ids)


def test_label_studio_config_fits_the_tasks(tmp_path):
    """Names, kinds of tags and choices agree between the two files."""
    shown = {
        "Image": {"images": images(8).numpy()},
        "Table": {"rows": pd.DataFrame({"a": np.arange(300.0), "b": ["x"] * 300})},
        "Text": {},
    }
    for tag, context in shown.items():
        found(**context).to_label_studio(tmp_path / "t.json")
        view = ElementTree.parse(tmp_path / "t.xml").getroot()
        (item,), (choices,) = view.findall(tag), view.findall("Choices")
        task = json.loads((tmp_path / "t.json").read_text())[0]
        result = task["predictions"][0]["result"][0]
        assert result["from_name"] == choices.get("name")
        assert result["to_name"] == item.get("name") == choices.get("toName")
        assert item.get("value").removeprefix("$") in task["data"]
        assert [c.get("value") for c in choices] == list(NAMES)
    assert task["data"]["item"] == f"row {task['data']['index']}"


def test_argilla_records(tmp_path):
    rows = pd.DataFrame({"weight": np.arange(300) / 4, "colour": ["red", None] * 150})
    result = found(rows=rows)
    result.to_argilla(tmp_path / "records.json")
    records = json.loads((tmp_path / "records.json").read_text())
    issues = flagged(result)
    assert [record["id"] for record in records] == [str(row) for row in issues["index"]]
    for record, issue in zip(records, issues.itertuples(), strict=True):
        assert set(record) == {"id", "fields", "metadata", "suggestions", "responses", "vectors"}
        assert record["fields"]["item"].startswith(f"weight: {issue.index / 4:g}")
        assert record["suggestions"]["label"] == {
            "value": issue.predicted_label,
            "score": pytest.approx(issue.predicted_prob, abs=1e-6),
            "agent": "ytilde",
        }
        assert record["metadata"]["given_label"] == issue.given_label
        assert record["metadata"]["p_wrong"] == pytest.approx(issue.p_wrong, abs=1e-6)
    result = found(images=images(6))
    result.to_argilla(tmp_path / "records.json")
    record = json.loads((tmp_path / "records.json").read_text())[0]
    assert pixels(record["fields"]["image"])[0, 0, 0] == int(record["id"]) % 256


def test_runner_up_is_the_third_choice():
    """Beside the given and the suggested class the likeliest; of two classes, the other one."""
    p = np.array([[0.9, 0.08, 0.02], [0.04, 0.06, 0.9], [0.2, 0.7, 0.1]] * 100)
    issues = audit(p, np.array([2, 2, 1] * 100), transition=np.eye(3) * 0.7 + 0.1).issues
    assert issues.predicted_label[:3].tolist() == [0, 2, 1]
    assert issues.runner_up_label[:3].tolist() == [1, 1, 0]
    joint = np.array([0.9 * 0.1, 0.08 * 0.1, 0.02 * 0.8])  # f_i T_i2, card J
    assert issues.runner_up_prob[0] == pytest.approx(joint[1] / joint.sum())
    two = audit(p[:, :2] / p[:, :2].sum(1, keepdims=True), np.array([1, 1, 1] * 100)).issues
    assert ((two.runner_up_label + two.predicted_label) == 1).all()
    assert (two.runner_up_prob + two.predicted_prob).to_numpy() == pytest.approx(1)


@pytest.mark.parametrize("tool", ["label_studio", "argilla"])
def test_a_model_at_chance_level_sends_nobody_to_label_again(tmp_path, tool):
    rng = np.random.default_rng(0)
    result = audit(rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500))
    assert result.at_chance and result.issues.is_label_issue.any()
    getattr(result, f"to_{tool}")(tmp_path / "tasks.json")
    assert json.loads((tmp_path / "tasks.json").read_text()) == []
    assert any("tasks.json holds no suspects" in note for note in result.notes)
