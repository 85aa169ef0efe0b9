"""The suspects of an audit as files for labelling tools: Label Studio and Argilla.

Formats: labelstud.io/guide/predictions (tasks with predictions) and Argilla 2's Record.from_dict.
Both files are complete: pictures are inside, as data: addresses, because neither tool can read the
paths of another machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pandas as pd

from ..data.ids import own_text
from ..errors import BadInput
from ..files import write_text
from ..outputs import check_outputs
from .issues import worst_first
from .items import data_address, encode, picture_of
from .result import Audit

AGENT = "ytilde"
LOSSLESS = 128  # side of a picture up to which it is a PNG


def label_studio_outputs(path: Path) -> list[tuple[Path, str]]:
    """The two files that `write_label_studio` makes, and their kinds."""
    if not path.name:
        raise BadInput(f"cannot write {path}: it is a folder")
    return [(path, "label studio"), (path.with_suffix(".xml"), "labelling config")]


def write_label_studio(audit: Audit, path: Path, force: bool = False) -> None:
    """A list of tasks; the labelling config that they fit goes beside it, with the ending .xml."""
    check_outputs(label_studio_outputs(path), force=force)
    tag = {"image": "Image", "row": "Table", "text": "Text"}[_kind(audit)]
    tasks = [
        {
            "data": {"item": shown} | facts,
            "predictions": [
                {
                    "model_version": AGENT,
                    "score": facts["predicted_prob"],
                    "result": [
                        {
                            "id": f"row-{facts['index']}",
                            "from_name": "label",
                            "to_name": "item",
                            "type": "choices",
                            "value": {"choices": [facts["predicted_label"]]},
                        }
                    ],
                }
            ],
        }
        for shown, facts in _suspects(audit)
    ]
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in _names(audit))
    named = '  <Header value="id: $id"/>\n' if audit.context.ids is not None else ""
    config = (
        f'<View>\n  <{tag} name="item" value="$item"/>\n{named}'
        '  <Header value="given: $given_label"/>\n'
        '  <Choices name="label" toName="item" choice="single">\n'
        f"{choices}\n  </Choices>\n</View>\n"
    )
    _write(path, audit, tasks)
    write_text(path.with_suffix(".xml"), config)


def write_argilla(audit: Audit, path: Path, force: bool = False) -> None:
    """A list of records with one suggestion each, for a LabelQuestion called "label"."""
    check_outputs([(path, "argilla")], force=force)
    kind = _kind(audit)
    records = []
    for shown, facts in _suspects(audit):
        if kind == "row":
            shown = "\n".join(f"{name}: {value}" for name, value in shown.items())
        suggestion = {
            "value": facts.pop("predicted_label"),
            "score": facts.pop("predicted_prob"),
            "agent": AGENT,
        }
        records.append(
            {
                "id": str(facts["index"]),
                "fields": {"image" if kind == "image" else "item": shown},
                "metadata": facts,
                "suggestions": {"label": suggestion},
                "responses": {},
                "vectors": {},
            }
        )
    _write(path, audit, records)


def _write(path: Path, audit: Audit, rows: list[dict[str, Any]]) -> None:
    if audit.at_chance:
        audit.notes.append(f"{path} holds no suspects: a model at chance level has none.")
    write_text(path, json.dumps(rows, allow_nan=False, indent=1))


def _names(audit: Audit) -> list[str]:
    return [str(label) for label in audit.per_class.label]


def _kind(audit: Audit) -> str:
    """What a person is shown of a row."""
    if audit.context.images is not None:
        return "image"
    known = audit.context.rows is not None or audit.context.texts is not None
    return "row" if known else "text"


def _suspects(audit: Audit) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What is shown of each flagged row, and what the audit says of it; the worst first.

    A model at chance level suspects none.
    """
    flagged = worst_first(audit.issues[audit.issues.is_label_issue & (not audit.at_chance)])
    kind, paths, ids = _kind(audit), audit.context.paths, audit.context.ids
    frame = audit.context.shown(flagged["index"].tolist()) if kind == "row" else None
    for issue in flagged.to_dict("records"):
        row = int(issue["index"])
        facts: dict[str, Any] = {
            "index": row,
            "given_label": str(issue["given_label"]),
            "predicted_label": str(issue["predicted_label"]),
            "runner_up_label": str(issue["runner_up_label"]),
        }
        for name in ("predicted_prob", "p_wrong", "ambiguity"):
            facts[name] = round(float(issue[name]), 6)
        if ids is not None:
            facts["id"] = own_text(ids[row])
        if paths is not None:
            facts["path"] = str(paths[row])
        yield _shown(kind, audit, frame, row), facts


def _shown(kind: str, audit: Audit, frame: pd.DataFrame | None, row: int) -> Any:
    if kind == "image":
        return _picture(audit.context.images, row)
    if frame is not None:
        return {str(name): value for name, value in frame.loc[row].items()}
    return f"row {row}"


def _picture(images: Any, row: int) -> str:
    picture = picture_of(images, row)
    if max(picture.size) <= LOSSLESS:
        return data_address(encode(picture, "png", optimize=True), "png")
    return data_address(encode(picture, "jpeg", quality=90), "jpeg")
