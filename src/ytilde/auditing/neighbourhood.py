"""Near-duplicates and outliers among the audited rows, as columns of `issues`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..data import IGNORE
from ..errors import plural
from .duplicates import find_duplicates
from .inputs import Labels
from .nearest import nearest
from .outliers import find_outliers
from .panel import reduced

FEWEST = 20  # fewer rows than this have no meaningful neighbours
LEAST_NUMBERS = 3  # per row: in one or two dimensions the tails of any cloud look like outliers


class Neighbourhood(NamedTuple):
    """Columns for `issues`, one entry per judged row, and sentences on what was found."""

    columns: dict[str, np.ndarray]
    notes: list[str]


def neighbourhood(features: np.ndarray, y: Labels) -> Neighbourhood:
    """Near-duplicates and outliers among rows of features [N, ...] with labels y [N].

    Outliers are searched among vectors [N, D] with D >= 3. Not among pictures: pixels show copies,
    but not what is unusual (docs/more_audits.md).

    Columns: near_duplicate (the row that it nearly equals; -1: none), duplicate_set (a number that
    near-duplicates share; -1: none), is_duplicate_conflict (the labels of the set differ),
    outlier_score in [0, 1) and is_outlier.
    """
    rows = np.flatnonzero(y != IGNORE)
    if len(rows) < FEWEST:
        return Neighbourhood({}, [])
    x = np.asarray(features).reshape(len(y), -1)
    near = nearest(reduced(x))
    same = find_duplicates(x, y, near)
    columns: dict[str, np.ndarray] = {
        "near_duplicate": same.of[rows],
        "duplicate_set": same.group[rows],
        "is_duplicate_conflict": same.conflict[rows],
    }
    if np.ndim(features) == 2 and x.shape[1] >= LEAST_NUMBERS:
        far = find_outliers(near)
        columns |= {"outlier_score": far.score[rows], "is_outlier": far.flagged[rows]}
    notes = []
    if number := int(columns["is_duplicate_conflict"].sum()):
        sets = len(np.unique(columns["duplicate_set"][columns["is_duplicate_conflict"]]))
        notes.append(
            f"{plural(number, 'row')} in {plural(sets, 'set')} of near-duplicates have labels that "
            "differ: at most one label of a set is right, or the features do not tell its rows "
            "apart (is_duplicate_conflict in issues.csv)."
        )
    if number := int(columns.get("is_outlier", np.zeros(1)).sum()):
        notes.append(
            f"{plural(number, 'row')} {'is' if number == 1 else 'are'} unlike all others "
            "(is_outlier in issues.csv): a label there can hardly be judged."
        )
    if not near.whole:
        notes.append(
            "There are too many rows to search for near-duplicates: only exact copies are reported."
        )
    return Neighbourhood(columns, notes)


def conflicts(issues: pd.DataFrame) -> list[pd.DataFrame]:
    """The sets of near-duplicates whose labels differ, the likeliest errors first."""
    if "is_duplicate_conflict" not in issues:
        return []
    sets = issues[issues.is_duplicate_conflict].groupby("duplicate_set", sort=False)
    found = [part.sort_values("index") for _, part in sets]
    return sorted(found, key=lambda part: -float(part.p_wrong.max()))
