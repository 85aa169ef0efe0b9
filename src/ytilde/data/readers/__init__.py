"""`read`: a user's files, folders and objects become `Data`."""

from ..columns import CATEGORIES
from ..fingerprint import fingerprint
from ..splits import split
from .arrays import as_inputs, as_tensor
from .convert import as_array, dense, plain_tensor
from .dispatch import read
from .embeddings import holds_vectors
from .feature_files import read_vectors, relative_name
from .labels import class_name, encode, label_array
from .multilabel import is_multilabel, read_multilabel
from .objects import Items
from .probabilities import read_probabilities
from .separators import TABLES, is_packed, table_kind, table_stem
from .source import Schema, Source
from .tables import label_column, read_features
from .texts import array_texts, file_texts, table_columns
from .votes import read_votes

__all__ = [
    "CATEGORIES",
    "TABLES",
    "Items",
    "Schema",
    "Source",
    "array_texts",
    "as_array",
    "as_inputs",
    "as_tensor",
    "class_name",
    "dense",
    "encode",
    "file_texts",
    "fingerprint",
    "holds_vectors",
    "is_multilabel",
    "is_packed",
    "label_array",
    "label_column",
    "plain_tensor",
    "read",
    "read_features",
    "read_multilabel",
    "read_probabilities",
    "read_vectors",
    "read_votes",
    "relative_name",
    "split",
    "table_columns",
    "table_kind",
    "table_stem",
]
