"""Deprecated: the old place of `ytilde.cli.flags`."""

import warnings

from .cli.flags import convert, field_comments, parse_flags, read_flags

__all__ = ["convert", "field_comments", "parse_flags", "read_flags"]

warnings.warn("ytilde.flags is now ytilde.cli.flags", DeprecationWarning, stacklevel=2)
