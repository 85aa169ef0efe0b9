"""What a fitted Classifier says of rows: its method's answers, asked batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..data import BadInput, Batch, Data
from ..data.images import row_name
from ..engine import Trainer
from ..transition import confident_joint
from .inputs import check_inputs

if TYPE_CHECKING:
    from .classifier import Classifier

COUNTED = 2_000_000  # rows that the class-level T is estimated from


def map_rows(
    clf: Classifier, fn: Callable[[Classifier, Batch], Tensor], X: Any
) -> NDArray[np.float32]:
    """fn(clf, batch) over all rows of X, in their order."""
    check_is_fitted(clf)
    if not isinstance(X, Data):
        x = check_inputs(clf, X)
        X = Data(x, torch.zeros(len(x), dtype=torch.int64), len(clf.classes_))
    check_shape(clf, X)
    return trainer_of(clf).map(lambda batch: fn(clf, as_seen(clf, batch)), X).float().cpu().numpy()


def transition(clf: Classifier, batch: Batch) -> Tensor:
    """T of each row [B, K, K]: the method's own, or the class-level one."""
    T = clf.method_.transition(batch)
    T = clf._class_transition_.to(batch.x.device) if T is None else T
    return T.expand(len(batch.x), *T.shape[-2:])


def uncertainty(clf: Classifier, batch: Batch) -> Tensor:
    """The head's predicted variance, or the entropy of the observed label where it has none."""
    value = clf.method_.uncertainty(batch.x)
    if value is not None:
        return value
    p = clf.method_.noisy_proba(batch.x)
    return -torch.special.xlogy(p, p).sum(-1)


def posteriors(clf: Classifier, data: Data) -> tuple[Tensor, NDArray[np.bool_]]:
    """The clean posteriors [N, K], and which rows could not be read [N]."""
    trainer = trainer_of(clf)
    probs = trainer.map(lambda batch: clf.method_.predict_proba(as_seen(clf, batch).x), data)
    unreadable, names = np.zeros(len(data), dtype=bool), trainer.feed.unreadable
    if names:
        unreadable[:] = [row_name(data.x, row) in names for row in range(len(data))]
    return probs, unreadable


def class_transition(
    clf: Classifier, data: Data, answers: dict[str, NDArray[Any]] | None = None
) -> Tensor:
    """The class-level T that the predictions for the training rows imply."""
    if data.y.dim() > 1:
        return torch.eye(data.num_classes)  # of pixels: not estimated
    probs, unreadable = posteriors(clf, data)
    if answers is not None:
        answers |= {"probs": probs.float().cpu().numpy(), "unreadable_rows": unreadable}
    step = -(-len(data) // COUNTED)
    return confident_joint(probs[::step], data.y[::step].to(probs.device)).T.float().cpu()


def trainer_of(clf: Classifier) -> Trainer:
    """Passes over data with the fitted method."""
    return Trainer(clf.method_, clf.recipe_)


def as_seen(clf: Classifier, batch: Batch) -> Batch:
    """The batch as the method sees it."""
    return batch if clf.encoder_ is None else batch._replace(x=clf.encoder_(batch.x))


def check_shape(clf: Classifier, data: Data) -> None:
    """Refuse rows of another shape than the training data's."""
    if data.shape != clf.shape_:
        raise BadInput(f"the inputs have shape {data.shape}, the training data had {clf.shape_}")
