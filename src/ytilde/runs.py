"""Deprecated: `ytilde.cli.runs` holds this."""

import warnings

from .cli.runs import Follower, Run

__all__ = ["Follower", "Run"]

warnings.warn("ytilde.runs is now ytilde.cli.runs", DeprecationWarning, stacklevel=2)
