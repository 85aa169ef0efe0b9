"""The audit as one HTML file that opens offline: what is wrong, shown; what to do next.

Everything that comes from the data reaches the page as escaped text. The page's policy lets
nothing run but the one script whose hash it names, and lets nothing be loaded at all.
"""

from .page import write

__all__ = ["write"]
