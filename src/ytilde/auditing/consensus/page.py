"""What is put together for the page of a consensus; it has the report's style and script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ...annotators import Annotations
from ...files import write_text
from ...outputs import check_replaceable
from ..pages import digest, own_parts, template, text_of

ROWS = 200  # annotators, and items, that are shown


def write(found: Annotations, path: Path, title: str, force: bool = False) -> None:
    """Write the page.

    Args:
        found: the consensus.
        path: of the file.
        title: what the votes are called.
        force: replace a file that is no report of ytilde.
    """
    check_replaceable(path, "report", force)
    own = own_parts("report")
    text = template("consensus/consensus.html.j2").render(
        title=f"{text_of(title)}: what the annotators say together",
        summary=text_of(found.summary(), 600),
        annotators=annotator_rows(found.annotators),
        items=_items(found),
        notes=[text_of(note, 600) for note in found.notes],
        style=own.style,
        script=own.script,
        digest=digest(own.script),
    )
    write_text(path, text.encode("utf-8", "replace").decode())


def annotator_rows(table: pd.DataFrame) -> dict[str, Any]:
    """Of at most ROWS annotators, those with the most votes; the best first."""
    busiest = table.sort_values("votes", ascending=False, kind="stable")[:ROWS]
    best = busiest.sort_values("accuracy", ascending=False, kind="stable")
    rows = [row | {"annotator": text_of(row["annotator"])} for row in best.to_dict("records")]
    return {"rows": rows, "left_out": len(table) - len(rows)}


def _items(found: Annotations) -> dict[str, Any]:
    """Which items need one more vote: the least sure ones."""
    doubtful = found.items[found.items.consensus_prob < 0.9]
    least = doubtful.sort_values("consensus_prob", kind="stable")[:ROWS]
    texts = ("item", "consensus_label", "runner_up_label")
    rows = [row | {name: text_of(row[name]) for name in texts} for row in least.to_dict("records")]
    return {"rows": rows, "left_out": len(doubtful) - len(rows)}
