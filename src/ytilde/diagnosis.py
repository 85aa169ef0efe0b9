"""Deprecated: the old place of `ytilde.auditing.diagnosis`."""

import warnings

from .auditing.diagnosis import Dependence, Diagnosis, Paired, dependence, diagnose, diagnose_data

__all__ = ["Dependence", "Diagnosis", "Paired", "dependence", "diagnose", "diagnose_data"]

warnings.warn("ytilde.diagnosis is now ytilde.auditing.diagnosis", DeprecationWarning, stacklevel=2)
