"""The page of a consensus: the annotators, whom to ask again, which items need one more vote."""

from .page import annotator_rows, write

__all__ = ["annotator_rows", "write"]
