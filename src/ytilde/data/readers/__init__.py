"""`read`: a user's files, folders and objects become `Data`."""

from ..fingerprint import fingerprint
from ..splits import split
from .arrays import as_inputs, as_tensor
from .convert import as_array, plain_tensor
from .dispatch import read
from .embeddings import holds_vectors
from .feature_files import read_vectors, relative_name
from .labels import class_name, encode, label_array
from .multilabel import is_multilabel, read_multilabel
from .objects import Items
from .probabilities import read_probabilities
from .source import Schema, Source
from .tables import CATEGORIES, TABLES, label_column, read_features
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
    "encode",
    "file_texts",
    "fingerprint",
    "holds_vectors",
    "is_multilabel",
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
]
