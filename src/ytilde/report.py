"""Deprecated: `ytilde.auditing.report` holds this."""

import warnings

from .auditing.report import write

__all__ = ["write"]

warnings.warn("ytilde.report is now ytilde.auditing.report", DeprecationWarning, stacklevel=2)
