"""Classifier: every method as a scikit-learn estimator.

`classifier.py` is the class; what X and y may be, what the
parameters ask for, the fit, the predictions, the audit and the file have a page each.
"""

from .classifier import Classifier
from .files import plain_classes
from .inputs import as_images

__all__ = ["Classifier", "as_images", "plain_classes"]
