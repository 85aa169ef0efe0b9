"""JSON that carries the digest of its own content: what was damaged is not taken for what was
written. Content without a digest is that of ytilde 0.1, and passes."""

from __future__ import annotations

import json
from typing import Any

from .hashing import digest_of

DIGEST = "digest"  # the key


def sign(content: dict[str, Any]) -> dict[str, Any]:
    """The content and, last, its digest."""
    return {**content, DIGEST: _digest(json.loads(json.dumps(content)))}


def verify(content: dict[str, Any]) -> dict[str, Any]:
    """What was signed, as it was read; ValueError where the digest does not fit."""
    plain = {key: value for key, value in content.items() if key != DIGEST}
    if content.get(DIGEST) is not None and content[DIGEST] != _digest(plain):
        raise ValueError("it was changed or damaged, its digest does not fit its content")
    return plain


def _digest(plain: dict[str, Any]) -> str:
    return digest_of(json.dumps(plain))
