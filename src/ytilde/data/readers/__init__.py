"""`read`: a user's files, folders and objects become `Data`."""

from ..fingerprint import fingerprint
from ..splits import split
from .arrays import as_inputs
from .convert import as_array
from .dispatch import read
from .labels import class_name, encode
from .objects import Items
from .source import Schema, Source
from .tables import CATEGORIES, TABLES, label_column, read_features

__all__ = [
    "CATEGORIES",
    "TABLES",
    "Items",
    "Schema",
    "Source",
    "as_array",
    "as_inputs",
    "class_name",
    "encode",
    "fingerprint",
    "label_column",
    "read",
    "read_features",
    "split",
]
