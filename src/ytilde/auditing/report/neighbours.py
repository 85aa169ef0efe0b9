"""The report's sections on rows that are nearly the same, and on rows that are like no other."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..neighbourhood import conflicts
from ..pages import text_of
from ..result import Audit
from .cards import THUMBNAILS, Pictures, Source

SETS, IN_SET, OUTLIERS = 20, 6, 24  # that are shown
QUOTA = 12_000  # characters of a picture


def sections(audit: Audit, room: int) -> dict[str, Any]:
    """Sets of near-duplicates with different labels, and the outliers, the strangest first."""
    issues = audit.issues
    sets = conflicts(issues)
    far = issues.iloc[:0]
    if "is_outlier" in issues:
        far = issues[issues.is_outlier].sort_values("outlier_score", ascending=False, kind="stable")
    shown = [part.head(IN_SET) for part in sets[:SETS]]
    rows = [row for part in (*shown, far.head(OUTLIERS)) for row in part["index"].tolist()]
    context = audit.context
    source = Source(context.shown(rows) if rows else None, context.paths, context.ids)
    pictures = Pictures(context.images, room)

    def entries(part: pd.DataFrame) -> list[dict[str, Any]]:
        return [_entry(issue, source, pictures) for issue in part.itertuples()]

    return {
        "copies": [
            {"size": len(part), "rows": entries(few)}
            for part, few in zip(sets[:SETS], shown, strict=True)
        ],
        "copy_sets": len(sets),
        "outliers": entries(far.head(OUTLIERS)),
        "outlier_rows": len(far),
    }


def _entry(issue: Any, source: Source, pictures: Pictures) -> dict[str, Any]:
    row = int(issue.index)
    own_id, path, values = source.look(row)
    return {
        "row": row,
        "given": text_of(issue.given_label),
        "p_wrong": float(issue.p_wrong),
        "score": float(getattr(issue, "outlier_score", 0.0)),
        "id": own_id,
        "path": path,
        "values": list(zip(source.columns, values or (), strict=True)),
        "image": pictures.take(row, QUOTA, THUMBNAILS),
    }
