"""Deprecated: the old place of `ytilde.auditing.relabel`."""

import warnings

from .auditing.relabel import relabel

__all__ = ["relabel"]

warnings.warn("ytilde.relabel is now ytilde.auditing.relabel", DeprecationWarning, stacklevel=2)
