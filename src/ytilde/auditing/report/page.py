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
from ..audit import Audit
from ..consensus import annotator_rows
from ..notes import NOTE_WEAK
from ..pages import digest, own_parts, template, text_of
from . import charts, tables
from .advice import advice
from .cards import AMBIGUOUS, Source, card, choose

PICTURES = 1_500_000  # bytes that all pictures of a page may take together, as base64
FULL_MATRIX = 20  # classes up to which T is drawn whole


def write(audit: Audit, path: str | os.PathLike[str], **own: Any) -> None:
    """Write the report of an audit; `own` are fields of ReportContext in the place of the audit's.

    The row `index` of its issues is a row of the context's images and rows.
    """
    context = replace(audit.context, **own)
    target = Path(path)
    wrong, unclear = choose(audit.issues, context.examples)
    quota = PICTURES // max(1, len(wrong) + len(unclear))
    rows = context.shown([*wrong["index"], *unclear["index"]])
    source = Source(context.images, rows, context.paths, context.ids, quota)
    page = {
        "title": _title(context.title, target.parent),
        "at_chance": audit.at_chance,
        "figures": _figures(audit),
        "measured": {text_of(k): text_of(v) for k, v in (context.measured or {}).items()},
        "wrong": [card(issue, source) for issue in wrong.itertuples()],
        "unclear": [card(issue, source) for issue in unclear.itertuples()],
        "matrix": tables.matrix(audit) if len(audit.transition) <= FULL_MATRIX else None,
        "pairs": tables.pairs(audit.pairs),
        "classes": tables.classes(audit.per_class),
        "histograms": charts.histograms(audit.issues),
        "curves": charts.curves(context.history),
        "reliability": charts.reliability(context.reliability),
        "advice": advice(audit, target, context.method),
        "annotators": None if audit.annotators is None else annotator_rows(audit.annotators),
        "notes": [text_of(note, 600) for note in audit.notes],
        "weak": NOTE_WEAK.partition("{")[0],  # that note, or NOTE_CHANCE, stands at the top
    }
    # A file name may hold bytes that are no text: they become "?" instead of an error.
    write_text(target, _render(page).encode("utf-8", "replace").decode())


def _title(title: str | None, folder: Path) -> str:
    """With the name of the data, where the report goes to the folder of a run."""
    config = folder / CONFIG
    source = json.loads(config.read_text("utf-8")).get("source") if config.exists() else None
    shown = text_of(title or "Which labels are wrong?")
    return f"{text_of(Path(source).name)}: {shown}" if source else shown


def _render(context: Mapping[str, Any]) -> str:
    own = own_parts("report")
    return template("report/report.html.j2").render(
        context, style=own.style, script=own.script, digest=digest(own.script)
    )


def _figures(audit: Audit) -> dict[str, Any]:
    flagged = audit.issues.is_label_issue
    return {
        "rows": len(audit.issues),
        "unjudged": audit.unjudged,
        "classes": len(audit.transition),
        "errors": audit.num_errors,
        "checked": audit.checked.drawn if audit.checked else 0,
        "rate": audit.noise_rate,
        "flagged": int(flagged.sum()),
        "differ": round(audit.num_errors) != int(flagged.sum()),
        "ambiguous": int((~flagged & (audit.issues.ambiguity > AMBIGUOUS)).sum()),
    }
