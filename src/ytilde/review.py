"""Deprecated: the old place of `ytilde.auditing.review`."""

import warnings

from .auditing.review import LOG, Conflict, Decision, Log, Review, application, export, serve

__all__ = ["LOG", "Conflict", "Decision", "Log", "Review", "application", "export", "serve"]

warnings.warn("ytilde.review is now ytilde.auditing.review", DeprecationWarning, stacklevel=2)
