"""Deprecated: the old place of `ytilde.auditing.report`."""

import warnings

from .auditing.report import write

__all__ = ["write"]

warnings.warn("ytilde.report is now ytilde.auditing.report", DeprecationWarning, stacklevel=2)
