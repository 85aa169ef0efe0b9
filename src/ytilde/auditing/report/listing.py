"""Every suspect in the page itself, as compact data that its script searches, filters and shows."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from ..pages import text_of
from ..similar import Similar
from .cards import THUMBNAILS, Pictures, Source

LISTED = 50_000  # suspects at most, the worst first
TEXTS = 8_000_000  # characters that they may take together
MORE_PICTURES = 1_000  # beside those of the cards that are shown at once
QUOTA = 12_000  # characters of one of these
WITNESS = 4_000, ((64, 70), (40, 50), (24, 40))  # characters and sizes of a similar row's picture


def suspects(
    flagged: pd.DataFrame, source: Source, pictures: Pictures, shown: set[int]
) -> dict[str, Any]:
    """flagged: the worst first; shown: those whose pictures stand in the page already.

    A suspect is [row, given, suggested, p_wrong, ambiguity, id, path, values, picture]; the two
    labels are numbers of `classes`.
    """
    labels = pd.unique(pd.concat([flagged.given_label, flagged.predicted_label]))
    place = {label: k for k, label in enumerate(labels)}
    found: list[list[Any]] = []
    room, more = TEXTS, MORE_PICTURES
    for issue in flagged.itertuples():
        row, image = int(issue.index), None
        labels_of = [place[issue.given_label], place[issue.predicted_label]]
        figures = [_short(issue.p_wrong), _short(issue.ambiguity)]
        entry = [row, *labels_of, *figures, *source.look(row)]
        room -= len(json.dumps(entry))
        if room < 0:
            break
        if row not in shown and more > 0:
            image = pictures.take(row, QUOTA, THUMBNAILS)
            more -= 1
        found.append([*entry, image])
    names = [text_of(label) for label in labels]
    about = {"columns": source.columns, "texts": source.has_texts}
    return {"classes": names, "suspects": found} | about


def beside(similar: dict[int, Similar], source: Source, pictures: Pictures) -> dict[str, Any]:
    """Rows to compare the suspects with that are shown at once: [id, path, values, picture]."""
    near = {}
    for row in dict.fromkeys(r for each in similar.values() for rows in each for r in rows):
        near[row] = [*source.look(row), pictures.take(row, *WITNESS)]
    return {"similar": similar, "near": near}


def _short(share: float) -> float:
    """In six digits; what is merely close to 0 or 1 stays so."""
    shown = round(float(share), 6)
    return min(max(shown, 1e-6), 1 - 1e-6) if 0 < share < 1 else shown
