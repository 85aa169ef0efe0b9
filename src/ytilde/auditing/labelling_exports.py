"""What labelling tools give back: exports of Label Studio and Argilla as tables of labels.

Label Studio: JSON (tasks with annotations), JSON-MIN, csv and tsv. Argilla 2: the records of
`dataset.records.to_json`. The tasks and records are those that `exporters` wrote: they carry the
number of their row and the label that was given to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..errors import BadInput
from ..files import check_no_stream, spreadsheet_safe

WRITTEN_BY_TOOL = "annotation_id"  # a column of Label Studio's tables, and of no file of ours


class Answer(NamedTuple):
    """What one annotator said of a task; None: no label."""

    index: Any
    given: Any
    own_id: Any
    label: str | None


class Exported(NamedTuple):
    """Labels as in labels.csv, and tasks on which the annotators disagree: these keep theirs."""

    labels: pd.DataFrame
    disagreed: int


def read_export(path: Path) -> Exported | None:
    """The labels of an export; None where it is none."""
    check_no_stream(path)
    if path.suffix.lower() == ".json":
        return _gathered(_from_json(path), path)
    if path.suffix.lower() in (".csv", ".tsv") and path.is_file():
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        try:
            frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
        except ValueError:  # what is wrong with it is said where it is read as labels.csv
            return None
        if WRITTEN_BY_TOOL in frame.columns:
            return _gathered(_flat(frame.to_dict("records")), path)
    return None


def _from_json(path: Path) -> Iterator[Answer]:
    try:
        items = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error}).") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _foreign(path)
    if not items:
        raise BadInput(f"{path} holds no task.")
    try:
        if all("data" in item for item in items):
            return iter([answer for item in items for answer in _task(item)])
        if all("fields" in item and "responses" in item for item in items):
            return iter([answer for item in items for answer in _record(item)])
        if all("given_label" in item for item in items):
            return iter(list(_flat(items)))
    except (KeyError, TypeError, AttributeError) as error:
        raise _foreign(path) from error
    raise _foreign(path)


def _task(item: dict[str, Any]) -> Iterator[Answer]:
    """Of Label Studio's JSON; a task without an answer still counts as one that was seen."""
    data, answered = item["data"], False
    about = (data["index"], data["given_label"], data.get("id"))
    for annotation in item.get("annotations") or item.get("completions") or ():
        if annotation.get("was_cancelled"):
            continue
        for result in annotation["result"]:
            if result.get("type") == "choices" and result.get("from_name") == "label":
                answered = True
                yield Answer(*about, _one(result["value"]["choices"]))
    if not answered:
        yield Answer(*about, None)


def _record(item: dict[str, Any]) -> Iterator[Answer]:
    """Of Argilla's records."""
    data = item["metadata"]
    about = (data["index"], data["given_label"], data.get("id"))
    said = [
        answer
        for answer in (item["responses"] or {}).get("label") or ()
        if answer.get("status", "submitted") == "submitted"
    ]
    for answer in said:
        yield Answer(*about, _one(answer["value"]))
    if not said:
        yield Answer(*about, None)


def _flat(items: Iterable[dict[str, Any]]) -> Iterator[Answer]:
    """Of JSON-MIN and of tables; their `id` is the task's number, not the row's own id."""
    for item in items:
        label = item.get("label") or None
        if isinstance(label, str) and label.startswith('{"choices"'):
            label = json.loads(label)["choices"]
        if isinstance(label, dict):
            label = label["choices"]
        yield Answer(item["index"], item["given_label"], None, _one(label))


def _one(label: Any) -> str | None:
    """One label; several choices at once are no answer."""
    if isinstance(label, list):
        return str(label[0]) if len(label) == 1 else None
    return None if label is None else str(label)


def _gathered(answers: Iterable[Answer], path: Path) -> Exported:
    try:
        said = pd.DataFrame(list(answers), columns=list(Answer._fields))
    except (KeyError, TypeError, ValueError) as error:
        raise _foreign(path) from error
    found, disagreed = [], 0
    for index, part in said.groupby("index", sort=False):
        if part["given"].nunique() > 1:
            raise BadInput(f"{path} holds row {index} twice, with different given labels.")
        labels = part["label"].dropna().unique()
        disagreed += len(labels) > 1
        given, own_id = part["given"].iloc[0], part["own_id"].iloc[0]
        found.append((index, own_id, labels[0] if len(labels) == 1 else given, given))
    frame = pd.DataFrame(found, columns=["index", "id", "label", "given_label"])
    if frame["id"].isna().any():
        frame = frame.drop(columns="id")
    texts = [name for name in frame.columns if name != "index"]
    safe = {name: [spreadsheet_safe(str(value)) for value in frame[name]] for name in texts}
    return Exported(frame.assign(**safe), disagreed)


def _foreign(path: Path) -> BadInput:
    return BadInput(
        f"{path} is no export of tasks that ytilde wrote (`audit --label-studio` or `--argilla`): "
        "tasks carry the number of their row and the given label."
    )
