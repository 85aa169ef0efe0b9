"""The report of an audit: what is put together for its page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...files import write_text
from ...runfolder import CONFIG
from ..consensus import annotator_rows
from ..issues import worst_first
from ..notes import doubts
from ..pages import data_block, digest, own_parts, template, text_of
from ..result import Audit
from . import cards, charts, listing, neighbours, tables
from .advice import advice, looks_right

PICTURES = 8_000_000  # characters that all pictures of a page may take together, as base64
FIRST = 3_000_000  # of these, for the cards that are shown at once
BESIDE = 1_500_000  # for copies and outliers
LARGEST = 60_000  # characters of one of their pictures
FULL_MATRIX = 20  # classes up to which T is drawn whole


def write(audit: Audit, path: str | os.PathLike[str], **own: Any) -> None:
    """Write the report of an audit; `own` are fields of ReportContext in the place of the audit's.

    The row `index` of its issues is a row of the context's images and rows.
    """
    audit = replace(audit, context=replace(audit.context, **own)) if own else audit
    context, target, doubted = audit.context, Path(path), doubts(audit.notes)
    page = {
        "title": _title(context.title, target.parent),
        "at_chance": audit.at_chance,
        "looks_right": looks_right(audit),
        "figures": _figures(audit),
        "table": text_of(context.table),
        "measured": {text_of(k): text_of(v) for k, v in (context.measured or {}).items()},
        **_galleries(audit),
        **neighbours.sections(audit, BESIDE),
        "matrix": tables.matrix(audit) if len(audit.transition) <= FULL_MATRIX else None,
        "pairs": tables.pairs(audit.pairs),
        "classes": tables.classes(audit.per_class),
        "histograms": charts.histograms(audit.totals),
        "curves": charts.curves(context.history),
        "reliability": charts.reliability(context.reliability),
        "advice": advice(audit, target, context.method),
        "annotators": None if audit.annotators is None else annotator_rows(audit.annotators),
        "doubts": [text_of(note, 600) for note in doubted],
        "notes": [text_of(note, 600) for note in audit.notes if note not in doubted],
    }
    # A file name may hold bytes that are no text: they become "?" instead of an error.
    write_text(target, _render(page).encode("utf-8", "replace").decode())


def _galleries(audit: Audit) -> dict[str, Any]:
    """The cards that are shown at once, and the data of all suspects; at chance there are none."""
    if audit.at_chance:
        return {"wrong": [], "unclear": [], "listed": 0, "texts": False, "data": data_block({})}
    context = audit.context
    wrong, unclear = cards.choose(audit.issues, context.examples)
    flagged = worst_first(audit.issues[audit.issues.is_label_issue]).head(listing.LISTED)
    shown = set(wrong["index"])
    similar = {row: audit.similar[row] for row in shown if row in audit.similar}
    near = [row for each in similar.values() for rows in each for row in rows]
    rows = dict.fromkeys([*wrong["index"], *flagged["index"], *unclear["index"], *near])
    to_read = context.text_column is not None
    source = cards.Source(context.shown(list(rows)), context.paths, context.ids, to_read)
    pictures = cards.Pictures(context.images, PICTURES, context.paths)
    quota = min(LARGEST, FIRST // max(1, len(wrong) + len(unclear)))
    galleries = {
        name: [
            cards.card(issue, source, pictures.take(int(issue.index), quota))
            for issue in table.itertuples()
        ]
        for name, table in (("wrong", wrong), ("unclear", unclear))
    }
    data = listing.beside(similar, source, pictures)
    data |= listing.suspects(flagged, source, pictures, shown)
    told = {"listed": len(data["suspects"]), "texts": source.has_texts, "data": data_block(data)}
    return galleries | told


def _title(title: str | None, folder: Path) -> str:
    """With the name of the data, where the report goes to the folder of a run."""
    config = folder / CONFIG
    source = json.loads(config.read_text("utf-8")).get("source") if config.exists() else None
    shown = text_of(title or "Which labels are wrong?")
    return (
        f"{text_of(Path(source).name or Path(source).resolve().name)}: {shown}" if source else shown
    )


def _render(context: Mapping[str, Any]) -> str:
    own = own_parts("report")
    return template("report/report.html.j2").render(
        context, style=own.style, script=own.script, digest=digest(own.script)
    )


def _figures(audit: Audit) -> dict[str, Any]:
    flagged = int(audit.totals.flagged[0])
    return {
        "rows": int(audit.totals.rows[0]),
        "unjudged": audit.unjudged,
        "classes": len(audit.transition),
        "errors": audit.num_errors,
        "checked": audit.checked.drawn if audit.checked else 0,
        "rate": audit.noise_rate,
        "flagged": flagged,
        "likely": int(audit.totals.likely[0]),
        "differ": round(audit.num_errors) != flagged,
        "ambiguous": int(audit.totals.ambiguous[0]),
    }
