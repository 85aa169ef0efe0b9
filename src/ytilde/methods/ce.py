"""Cross-entropy: plain training on the labels as they are, the baseline of every table.

Fidelity: nothing to choose; the head's mean negative log-likelihood of the observed labels.
"""

from dataclasses import dataclass

from ..method import Method, register


@register("ce")
@dataclass(eq=False, repr=False)
class CE(Method):
    """Plain maximum likelihood of the observed labels."""
