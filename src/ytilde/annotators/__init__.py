"""Several annotators: the consensus of their votes, and how good each of them is."""

from .consensus import (
    METHODS,
    Consensus,
    choose,
    common_matrix,
    consensus,
    dawid_skene,
    expected_votes,
    majority,
    one_coin,
)
from .skills import Skills, skills
from .tables import Annotations, annotator_table, find_consensus, item_table, vote_table
from .with_model import MODEL, Joint, add_model, with_model

__all__ = [
    "METHODS",
    "MODEL",
    "Annotations",
    "Consensus",
    "Joint",
    "Skills",
    "add_model",
    "annotator_table",
    "choose",
    "common_matrix",
    "consensus",
    "dawid_skene",
    "expected_votes",
    "find_consensus",
    "item_table",
    "majority",
    "one_coin",
    "skills",
    "vote_table",
    "with_model",
]
