"""The old place of `ytilde.data.readers`."""

from .data.readers import (
    CATEGORIES,
    TABLES,
    Items,
    Schema,
    Source,
    as_inputs,
    class_name,
    encode,
    file_texts,
    fingerprint,
    label_column,
    read,
    read_features,
    split,
)

__all__ = [
    "CATEGORIES",
    "TABLES",
    "Items",
    "Schema",
    "Source",
    "as_inputs",
    "class_name",
    "encode",
    "file_texts",
    "fingerprint",
    "label_column",
    "read",
    "read_features",
    "split",
]
