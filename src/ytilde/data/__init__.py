"""Data: the types that flow through ytilde, pictures, splits, and `readers` of files and objects.

This page needs torch alone; `ytilde.data.readers` and `ytilde.data.images` are imported apart.
"""

from ..errors import (
    BadInput,
    check_ranges,
    plural,
    shorten_list,
    unknown_name_message,
    which_rows,
)
from .types import IGNORE, Batch, Data, Rows, Spec, Step, StepInfo, Subset

few, unknown = shorten_list, unknown_name_message  # deprecated: their old names

__all__ = [
    "IGNORE",
    "BadInput",
    "Batch",
    "Data",
    "Rows",
    "Spec",
    "Step",
    "StepInfo",
    "Subset",
    "check_ranges",
    "few",
    "plural",
    "shorten_list",
    "unknown",
    "unknown_name_message",
    "which_rows",
]
