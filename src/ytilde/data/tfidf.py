"""Texts as features: TF-IDF of words and of characters, reduced to components.

Learnt from the texts of the training data alone, without their labels, and kept as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..errors import BadInput, which_rows

COMPONENTS = 200  # at most; of fewer texts or terms, as many as they allow
TERMS = 10_000  # words and pairs of words, and as many pieces of words: the most frequent
LONGEST = 500_000  # characters of a text; a longer one is mostly a quote that does not end
WORDS: dict[str, Any] = {"ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"}
PIECES: dict[str, Any] = {"ngram_range": (2, 4), "analyzer": "char_wb"}


@dataclass(frozen=True, eq=False)
class TfIdf:
    """What makes components of texts.

    Args:
        words: words and pairs of words.
        pieces: of words: two to four characters.
        idf: how rare each of them is, [terms].
        components: [components, terms].

    Example:
        >>> texts = pd.Series(["a red rose", "a red house", "the blue sea", "a blue house"] * 3)
        >>> made = TfIdf.learn(texts, "the texts")
        >>> made.transform(texts, "the texts", []).shape == (12, made.width)
        True
    """

    words: list[str]
    pieces: list[str]
    idf: np.ndarray
    components: np.ndarray

    @property
    def width(self) -> int:
        return len(self.components)

    @classmethod
    def learn(cls, texts: pd.Series, what: str) -> TfIdf:
        """By texts, of which one or the other may be empty."""
        from sklearn.decomposition import TruncatedSVD

        length = texts.str.len()
        if (long := np.flatnonzero(length > LONGEST)).size:
            raise BadInput(
                f"There is a text of {length.iloc[long[0]]:,} characters in {which_rows(long)} of "
                f"{what}; is a quote not closed? Cut it to {LONGEST:,}, or leave the row out."
            )
        words, pieces = (_terms(texts, how) for how in (WORDS, PIECES))
        if not words and not pieces:
            raise BadInput(f"There is no text in {what}; name another column with --text.")
        counts = _counts(texts, words, pieces)
        seen = np.asarray((counts > 0).sum(0)).ravel()
        idf = (np.log((1 + len(texts)) / (1 + seen)) + 1).astype(np.float32)
        weights = _weights(counts, idf, len(words))
        most = min(COMPONENTS, min(weights.shape) - 1)
        if most < 1:
            return cls(words, pieces, idf, np.ones((1, len(idf)), np.float32))
        svd = TruncatedSVD(most, random_state=0).fit(weights)
        return cls(words, pieces, idf, svd.components_.astype(np.float32))

    def transform(self, texts: pd.Series, what: str, notes: list[str]) -> np.ndarray:
        """[N, components]; of an empty text all are 0."""
        if (long := np.flatnonzero(texts.str.len() > LONGEST)).size:
            notes.append(f"{which_rows(long)} of {what}: read up to {LONGEST:,} characters")
            texts = texts.str.slice(0, LONGEST)
        counts = _counts(texts, self.words, self.pieces)
        return _weights(counts, self.idf, len(self.words)) @ self.components.T

    def tensors(self) -> dict[str, Tensor]:
        """As arrays, to be kept in a file."""
        terms = {"words": self.words, "pieces": self.pieces}
        texts = {name: "\n".join(values).encode() for name, values in terms.items()}
        bytes_ = {name: np.frombuffer(text, np.uint8).copy() for name, text in texts.items()}
        arrays = {"idf": self.idf, "components": self.components, **bytes_}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TfIdf:
        words, pieces = (_lines(tensors[name]) for name in ("words", "pieces"))
        idf, components = (tensors[name].numpy() for name in ("idf", "components"))
        if components.ndim != 2 or not len(idf) == components.shape[1] == len(words) + len(pieces):
            raise KeyError("its terms and their components differ in number")
        return cls(words, pieces, idf, components)


def _lines(text: Tensor) -> list[str]:
    return text.numpy().tobytes().decode().split("\n") if len(text) else []


def _terms(texts: pd.Series, how: dict[str, Any]) -> list[str]:
    """The most frequent terms of at least two texts, or of one where there is nothing else."""
    from sklearn.feature_extraction.text import CountVectorizer

    for fewest in (2, 1):
        try:
            made = CountVectorizer(min_df=fewest, max_features=TERMS, **how).fit(texts)
        except ValueError:  # there is none
            continue
        return sorted(made.vocabulary_)
    return []


def _counts(texts: pd.Series, *terms: Sequence[str]) -> Any:
    """[N, terms], sparse: first words, then pieces."""
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import CountVectorizer

    parts = [
        CountVectorizer(vocabulary=each, **how).transform(texts)
        if each
        else csr_array((len(texts), 0))
        for each, how in zip(terms, (WORDS, PIECES), strict=True)
    ]
    return hstack(parts, format="csr").astype(np.float32)


def _weights(counts: Any, idf: np.ndarray, words: int) -> Any:
    """TF-IDF with the logarithm of counts; words and pieces each have length one in every text."""
    from scipy.sparse import hstack
    from sklearn.preprocessing import normalize

    counts = counts.copy()
    counts.data = 1 + np.log(counts.data)
    weights = counts.multiply(idf[None]).tocsr().astype(np.float32)
    return hstack([normalize(weights[:, :words]), normalize(weights[:, words:])], format="csr")
