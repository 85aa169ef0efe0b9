"""Round trips: suspects go to Label Studio or Argilla, their exports come back by `relabel`."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from test_cli import refused, ytilde
from ytilde import audit

NAMES = ["cat", "dog, big", "=SUM(1)"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A table of 60 rows, six of them mislabelled, and its suspects as both tools take them."""
    monkeypatch.chdir(tmp_path)
    clean = np.arange(60) % 3
    y = clean.copy()
    y[:6] = (clean[:6] + 1) % 3
    frame = pd.DataFrame({"x": np.arange(60), "label": np.array(NAMES)[y], "key": [
        f"k{row}" for row in range(60)]})  # fmt: skip
    frame.to_csv("data.csv", index=False)
    probs, T = np.full((60, 3), 0.01) + 0.97 * np.eye(3)[clean], 0.05 + 0.85 * np.eye(3)
    found = audit(probs, y, names=NAMES, transition=T)
    found.context.ids = frame.key.tolist()
    found.to_label_studio("tasks.json")
    found.to_argilla("records.json")
    return np.array(NAMES)[clean], frame


def annotated(task, number, *labels, **more):
    """A task of Label Studio as its JSON export has it."""
    annotations = [
        {
            "id": 1000 + 10 * number + k, "completed_by": k + 1, "was_cancelled": False,
            "ground_truth": False, "created_at": "2026-01-01T10:00:00.000000Z", "lead_time": 4.2,
            "result": [{
                "id": "aB3", "from_name": "label", "to_name": "item", "type": "choices",
                "origin": "manual", "value": {"choices": [label]},
            }],
        } | more
        for k, label in enumerate(labels)
    ]  # fmt: skip
    return {"id": number, "annotations": annotations, "project": 3, "total_annotations": 1, **task}


def label_studio(clean):
    """Every task answered rightly; of the last two, one skipped and one in dispute."""
    tasks = json.loads(Path("tasks.json").read_text())
    assert len(tasks) == 6
    done = [annotated(t, 71 + k, clean[t["data"]["index"]]) for k, t in enumerate(tasks[:4])]
    done.append(annotated(tasks[4], 75, "cat", was_cancelled=True))
    done.append(annotated(tasks[5], 76, "cat", "dog, big"))
    return done, [t["data"]["index"] for t in tasks[:4]]


def check(fixed, changed, clean, frame):
    table = pd.read_csv(fixed)
    wanted = frame.label.to_numpy(copy=True)
    wanted[changed] = clean[changed]
    assert table.label.tolist() == wanted.tolist() and (wanted != frame.label).sum() == 4
    assert table.drop(columns="label").equals(frame.drop(columns="label"))


def test_label_studio_json_comes_back(files):
    done, changed = label_studio(files[0])
    Path("export.json").write_text(json.dumps(done))
    said = ytilde("relabel", "data.csv", "export.json", "--out", "fixed.csv").stdout
    assert "annotators disagree on 1 row" in said and "4 of 60 labels changed" in said
    check("fixed.csv", changed, *files)
    frame = files[1].sample(frac=1, random_state=0)  # rows are found by their ids
    frame.to_csv("shuffled.csv", index=False)
    ytilde("relabel", "shuffled.csv", "export.json", "--out", "fixed2.csv")
    again = pd.read_csv("fixed2.csv").set_index("key").loc[files[1].key].reset_index()
    check_same = pd.read_csv("fixed.csv")
    assert again[check_same.columns].equals(check_same)


def flat(done):
    """The same as JSON-MIN and csv have them: a record an annotation, the task's id over ours."""
    return [
        task["data"] | {
            "id": task["id"], "label": each["result"][0]["value"]["choices"][0],
            "annotator": each["completed_by"], "annotation_id": each["id"],
            "created_at": each["created_at"], "lead_time": each["lead_time"],
        }
        for task in done for each in task["annotations"] if not each["was_cancelled"]
    ]  # fmt: skip


def test_label_studio_json_min_and_csv_come_back(files):
    done, changed = label_studio(files[0])
    Path("min.json").write_text(json.dumps(flat(done)))
    ytilde("relabel", "data.csv", "min.json", "--out", "fixed.csv")
    check("fixed.csv", changed, *files)
    with open("export.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(flat(done)[0]))
        writer.writeheader()
        writer.writerows(flat(done))
    ytilde("relabel", "data.csv", "export.csv", "--out", "fixed2.csv")
    check("fixed2.csv", changed, *files)


def test_argilla_records_come_back(files):
    clean = files[0]
    records = json.loads(Path("records.json").read_text())
    for number, record in enumerate(records):
        said = [{"value": str(clean[record["metadata"]["index"]]), "user_id": "7f3a"}]
        record["responses"] = {"label": said} if number < 4 else {}
        record["_server_id"], record["status"] = f"s{number}", "completed"
    records[5]["responses"] = {"label": [{"value": "cat", "user_id": "1", "status": "draft"}]}
    Path("export.json").write_text(json.dumps(records))
    ytilde("relabel", "data.csv", "export.json", "--out", "fixed.csv")
    check("fixed.csv", [r["metadata"]["index"] for r in records[:4]], *files)


def test_a_foreign_export_is_one_sentence(files):
    def export(content):
        with open("export.json", "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return "relabel", "data.csv", "export.json", "--out", "fixed.csv"

    done, _ = label_studio(files[0])
    foreign = "no export of tasks that ytilde wrote"
    refused(*export("[{"), match="cannot be read")
    refused(*export([]), match="holds no task")
    refused(*export({"a": 1}), match=foreign)
    refused(*export([{"data": {"text": "x"}, "annotations": []}]), match=foreign)
    refused(*export([{"a": 1}]), match=foreign)
    other = json.loads(json.dumps(done))
    other[0]["data"]["given_label"] = "cow"
    refused(*export(other), match="was made of other labels")
    strange = json.loads(json.dumps(done))
    strange[0]["annotations"][0]["result"][0]["value"]["choices"] = ["cow"]
    refused(*export(strange), match="asks for the label 'cow'")
    far = json.loads(json.dumps(done))
    far[0]["data"]["index"] = 999
    refused(*export(far), match="is not about the 60 rows")
