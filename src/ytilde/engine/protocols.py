"""Which epoch of a training is reported: the last, the one noisy validation chooses, ten at once.

The papers differ in it, so every figure says which it is. A record is what an epoch leaves behind:
`stage`, `epoch`, `val_accuracy`, `val_nll` (of noisy labels) and the test figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .validate import KEEP, SIGN, Record, best_epoch, validation_score

__all__ = ["KEEP", "PROTOCOLS", "SIGN", "best_epoch", "protocols", "validation_score"]

PROTOCOLS = {
    "last": "last epoch",
    "chosen": "chosen by noisy validation",
    "mean_of_last_ten": "mean of the last ten epochs",
}


def protocols(history: Sequence[Record]) -> dict[str, Any]:
    """Every test figure by each protocol: last epoch, chosen by noisy validation, mean of ten.

    Epochs of an earlier stage are not chosen, and count only where the last stage has fewer than
    ten.
    """
    measured = [record for record in history if "test_accuracy" in record]
    last = measured[-1]
    keys = [key for key in last if "test_" in key]
    ten = measured[-10:]
    found: dict[str, Any] = {
        "epochs": len(history),
        "last": {key: last[key] for key in keys},
        "mean_of_last_ten": {key: float(np.mean([r[key] for r in ten])) for key in keys},
    }
    if chosen := best_epoch(measured):
        found |= {"chosen": {key: chosen[key] for key in keys}, "chosen_epoch": chosen["epoch"]}
        for name, record in (("val_last", last), ("val_chosen", chosen)):
            found[name] = {key: record[key] for key in ("val_accuracy", "val_nll")}
    return found
