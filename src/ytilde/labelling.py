"""Deprecated: the old place of `ytilde.auditing.exporters`."""

import warnings

from .auditing.exporters import write_argilla, write_label_studio

__all__ = ["write_argilla", "write_label_studio"]

warnings.warn("ytilde.labelling is now ytilde.auditing.exporters", DeprecationWarning, stacklevel=2)
