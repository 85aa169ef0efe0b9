"""The tables of the report: T, the pairs of classes, the classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..pages import text_of
from ..result import Audit

PAIRS, CLASSES = 40, 300  # rows of the two tables


def matrix(audit: Audit) -> dict[str, Any]:
    """T with a shade a cell: the square root, so that rare flips show beside the diagonal."""
    names = [text_of(label) for label in audit.per_class.label]
    cells = [
        [{"p": float(p), "shade": round(float(np.sqrt(p)), 3), "text": _cell(p)} for p in row]
        for row in audit.transition
    ]
    return {"names": names, "rows": list(zip(names, cells, strict=True))}


def _cell(p: float) -> str:
    return "" if p < 0.005 else "1" if p > 0.995 else f"{p:.2f}".lstrip("0")


def pairs(table: pd.DataFrame) -> list[dict[str, Any]]:
    top = table.head(PAIRS)
    most = max(float(top.expected_errors.max()), 1e-9) if len(top) else 1.0
    return [
        {
            "given": text_of(pair.given_label),
            "true": text_of(pair.predicted_label),
            "expected": float(pair.expected_errors),
            "issues": int(pair.issues),
            "width": round(100 * float(pair.expected_errors) / most, 1),
        }
        for pair in top.itertuples()
    ]


def classes(per_class: pd.DataFrame) -> dict[str, Any]:
    top = per_class.sort_values("expected_errors", ascending=False, kind="stable").head(CLASSES)
    rows = [
        {
            "label": text_of(c.label),
            "given": int(c.given),
            "issues": int(c.issues),
            "noise_rate": float(c.noise_rate),
            "expected_true": float(c.expected_true),
            "lost_rate": float(c.lost_rate),
        }
        for c in top.itertuples()
    ]
    return {"rows": rows, "left_out": len(per_class) - len(rows)}
