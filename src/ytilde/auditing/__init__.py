"""Auditing: which labels are wrong, how sure that is, and what to do about them."""

from .audit import audit, overlap
from .baselines import (
    BASELINES,
    aum,
    confident_learning,
    knn_vote,
    margin,
    self_confidence,
    small_loss,
)
from .context import ReportContext
from .estimate import Estimate
from .multilabel import MultiLabelAudit, audit_multilabel
from .notes import NOTE_OUT_OF_FOLD, NOTE_WEAK, unlabelled, weakness
from .pixels import PixelAudit, audit_pixels
from .result import Audit

__all__ = [
    "BASELINES",
    "NOTE_OUT_OF_FOLD",
    "NOTE_WEAK",
    "Audit",
    "Estimate",
    "MultiLabelAudit",
    "PixelAudit",
    "ReportContext",
    "audit",
    "audit_multilabel",
    "audit_pixels",
    "aum",
    "confident_learning",
    "knn_vote",
    "margin",
    "overlap",
    "self_confidence",
    "small_loss",
    "unlabelled",
    "weakness",
]
