"""What the report says of all rows together, so that it need not hold them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

AMBIGUOUS = 0.5  # above this an item counts as hard
SURE = (0.95, 0.9, 0.8)  # p_wrong above which labels may be fixed unseen: the first that has any
BARS = 20  # of a histogram


class Totals(NamedTuple):
    """Of the rows that were judged; `blocks.add` adds those of two parts."""

    rows: NDArray[np.int64]  # [1]
    flagged: NDArray[np.int64]  # [1] more likely wrong than right
    ambiguous: NDArray[np.int64]  # [1] of the others
    p_wrong: NDArray[np.int64]  # [BARS]
    ambiguity: NDArray[np.int64]  # [BARS]
    sure: NDArray[np.float64]  # [SURE, 3] rows above, what fixing them gains, and its variance

    @staticmethod
    def of(issues: Any) -> Totals:
        """issues: has the columns of `Audit.issues`."""
        p_wrong, ambiguity = (np.asarray(issues[c], float) for c in ("p_wrong", "ambiguity"))
        prob, flagged = np.asarray(issues["predicted_prob"], float), issues["is_label_issue"]
        flagged = np.asarray(flagged, bool)
        sure = []
        for above in SURE:
            rows = p_wrong > above
            better, worse = prob[rows], 1 - p_wrong[rows]
            gain = better - worse
            sure.append([rows.sum(), gain.sum(), (better + worse - gain**2).sum()])
        return Totals(
            np.array([len(p_wrong)]),
            np.array([flagged.sum()]),
            np.array([(~flagged & (ambiguity > AMBIGUOUS)).sum()]),
            np.histogram(p_wrong, BARS, (0, 1))[0],
            np.histogram(ambiguity, BARS, (0, 1))[0],
            np.array(sure, float),
        )
