"""Texts as features: TF-IDF of words and of pieces of words, each reduced to components.

Learnt from the texts of the training data alone, without their labels, and kept as arrays. Pieces
match "walked" with "walking", and work for scripts that put no space between words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..errors import BadInput, which_rows

COMPONENTS = 100  # of words, and as many of pieces
TEXTS = 5  # texts per component at least, so few texts have fewer components
TERMS = 10_000  # words and pairs of words, and as many pieces: the most frequent
LONGEST = 500_000  # characters of a text; longer ones are mostly an unclosed quote
KINDS: dict[str, dict[str, Any]] = {
    "words": {"ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"},
    "pieces": {"ngram_range": (2, 4), "analyzer": "char_wb"},
}


@dataclass(frozen=True, eq=False)
class Terms:
    """Words or pieces, how rare each is [terms], and their components [components, terms]."""

    names: list[str]
    idf: np.ndarray
    components: np.ndarray


@dataclass(frozen=True, eq=False)
class TfIdf:
    """Turns texts into components; `terms` has an entry for each of KINDS.

    Example:
        >>> texts = pd.Series(["a red rose", "a red house", "the blue sea", "a blue house"] * 3)
        >>> made = TfIdf.learn(texts, "the texts")
        >>> made.transform(texts, "the texts", []).shape == (12, made.width)
        True
    """

    terms: dict[str, Terms]

    @property
    def width(self) -> int:
        return sum(len(part.components) for part in self.terms.values())

    @classmethod
    def learn(cls, texts: pd.Series, what: str) -> TfIdf:
        """Learn from texts, some of which may be empty."""
        length = texts.str.len()
        if (long := np.flatnonzero(length > LONGEST)).size:
            raise BadInput(
                f"There is a text of {length.iloc[long[0]]:,} characters in {which_rows(long)} of "
                f"{what}; is a quote not closed? Cut it to {LONGEST:,}, or leave the row out."
            )
        found = {kind: _learn(texts, kind) for kind in KINDS}
        if not (terms := {kind: part for kind, part in found.items() if part}):
            raise BadInput(f"There is no text in {what}; name another column with --text.")
        return cls(terms)

    def transform(self, texts: pd.Series, what: str, notes: list[str]) -> np.ndarray:
        """[N, components]; an empty text has 0 everywhere."""
        if (long := np.flatnonzero(texts.str.len() > LONGEST)).size:
            notes.append(f"{which_rows(long)} of {what}: read up to {LONGEST:,} characters")
            texts = texts.str.slice(0, LONGEST)
        parts = [
            _weights(_counts(texts, kind, part.names), part.idf) @ part.components.T
            for kind, part in self.terms.items()
        ]
        return np.concatenate(parts, axis=1)

    def tensors(self) -> dict[str, Tensor]:
        """As tensors, to be written to a file."""
        arrays = {}
        for kind, part in self.terms.items():
            text = "\n".join(part.names).encode()
            arrays[f"{kind}.names"] = np.frombuffer(text, np.uint8).copy()
            arrays[f"{kind}.idf"] = part.idf
            arrays[f"{kind}.components"] = part.components
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TfIdf:
        terms = {}
        for kind in KINDS:
            if f"{kind}.idf" not in tensors:
                continue
            text, idf, components = (
                tensors[f"{kind}.{part}"].numpy() for part in ("names", "idf", "components")
            )
            names = text.tobytes().decode().split("\n")
            if components.ndim != 2 or not len(idf) == components.shape[1] == len(names):
                raise KeyError(f"its {kind} and their components differ in number")
            terms[kind] = Terms(names, idf, components)
        return cls(terms)


def _learn(texts: pd.Series, kind: str) -> Terms | None:
    """The most frequent terms that occur in two texts or more, or if there are none, in one."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import CountVectorizer

    names: list[str] = []
    for fewest in (2, 1):
        try:
            made = CountVectorizer(min_df=fewest, max_features=TERMS, **KINDS[kind]).fit(texts)
        except ValueError:  # there is none
            continue
        names = sorted(made.vocabulary_)
        break
    if not names:
        return None
    counts = _counts(texts, kind, names)
    seen = np.bincount(counts.indices, minlength=len(names))
    idf = (np.log((1 + len(texts)) / (1 + seen)) + 1).astype(np.float32)
    most = min(COMPONENTS, max(1, len(texts) // TEXTS), len(names) - 1)
    if most < 1:  # one term
        return Terms(names, idf, np.ones((1, 1), np.float32))
    svd = TruncatedSVD(most, random_state=0).fit(_weights(counts, idf))
    return Terms(names, idf, svd.components_.astype(np.float32))


def _counts(texts: pd.Series, kind: str, names: list[str]) -> Any:
    """[N, terms], sparse."""
    from sklearn.feature_extraction.text import CountVectorizer

    made = CountVectorizer(vocabulary=names, **KINDS[kind])
    return made.transform(texts).astype(np.float32)


def _weights(counts: Any, idf: np.ndarray) -> Any:
    """TF-IDF with logarithmic counts, scaled to unit length."""
    from sklearn.preprocessing import normalize

    counts = counts.copy()
    counts.data = 1 + np.log(counts.data)
    return normalize(counts.multiply(idf[None]).tocsr().astype(np.float32))
