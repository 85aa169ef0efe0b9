"""Deprecated: the old place of `ytilde.cli.runs`."""

import warnings

from .cli.runs import Follower, Run

__all__ = ["Follower", "Run"]

warnings.warn("ytilde.runs is now ytilde.cli.runs", DeprecationWarning, stacklevel=2)
