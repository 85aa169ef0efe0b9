"""Deprecated: the old place of `ytilde.cli.demo`."""

import warnings

from .cli.demo import run_demo

__all__ = ["run_demo"]

warnings.warn("ytilde.demo is now ytilde.cli.demo", DeprecationWarning, stacklevel=2)
