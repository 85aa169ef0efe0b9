"""The audit of a Classifier's labels: by fits of it that never saw them, or by the fitted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ..auditing import NOTE_OUT_OF_FOLD, Audit, audit
from ..auditing.crossfit import Answers, FoldFit, Folds, kept_or_made, out_of_fold, single_rows
from ..auditing.sampling import Reviewed
from ..auditing.similar import Features, standardised
from ..data import IGNORE, BadInput, Batch, Data, few
from ..data.images import without_unreadable
from ..data.readers import fingerprint
from ..encoders.encoder import Encoder
from ..engine import Record, choose_device
from ..hashing import hash_of
from ..method import Method, Net, unseen
from .files import plain_fields
from .inputs import as_plain, check_inputs, check_labels, check_training
from .training import train

if TYPE_CHECKING:
    from .classifier import Classifier

ONE_LABEL = "an audit needs one label per row; pixel labels are not audited yet"


def audit_rows(
    clf: Classifier, X: Any, y: ArrayLike, folds: int, checked: Mapping[int, Any] | None
) -> Audit:
    """The audit of labels as a user gives them: any classes, any kind of X."""
    if folds == 0:
        check_is_fitted(clf)
        check_labels(y)
        x, given = check_inputs(clf, X), np.asarray(as_plain(y, "y"))
    else:
        x, given, _ = check_training(clone(clf), X, y)
    if given.ndim > 1:
        raise BadInput(ONE_LABEL)
    if len(given) != len(x):
        raise BadInput(f"there are {len(given)} labels for {len(x)} rows of X")
    classes = clf.classes_ if folds == 0 else unique_labels(given)
    place = {name: label for label, name in enumerate(classes.tolist())}
    strange = [name for name in np.unique(given).tolist() if name not in place]
    if strange:
        raise BadInput(
            f"y holds the label {strange[0]!r}, which the model was not fitted on; it knows "
            f"{few(place, 10)}"
        )
    labels = torch.tensor([place[name] for name in given.tolist()])
    data = Data(x, labels, len(classes), names=tuple(str(c) for c in classes))
    if checked is not None:
        strange = [label for label in checked.values() if label not in place]
        if strange:
            raise BadInput(f"the checked label {strange[0]!r} is no class of the labels")
        checked = {row: place[label] for row, label in checked.items()}
    found = clf.audit_data(data, folds=folds, checked=checked).with_classes(classes.tolist())
    if found.context.rows is not None:  # the values as they were given, not as float32
        found.context.rows = X if isinstance(X, pd.DataFrame | Tensor) else np.asarray(X)
    return found


def audit_data(
    clf: Classifier,
    data: Data,
    folds: int,
    on_record: Callable[[Record], None],
    keep: Path | None,
    encoder: Encoder | None,
    checked: Mapping[int, int] | Reviewed | None,
    folder: Path | None,
    on_start: Callable[[int], None],
) -> Audit:
    """The audit of a Data."""
    if data.y.dim() > 1:
        raise BadInput(ONE_LABEL)
    data, unread = without_unreadable(data)
    if folds == 0:
        _check_classes(clf, data)
        answers = _answers(clf, data)
        notes = ["In-sample: the model that judged the labels was trained on them."]
    else:
        seed = clf.random_state if isinstance(clf.random_state, int) else 0
        encoder = encoder or clf._load_encoder()
        key = _key(clf, data, folds, encoder) if keep or folder else ""
        kept = Folds(folder, key) if folder else None
        fit = _fold_fit(clf, data, encoder)
        answers, notes = kept_or_made(
            keep,
            key,
            lambda: out_of_fold(data, folds, seed, fit, on_record, kept, on_start),
        )
        if kept:
            kept.clear()
            notes += kept.notes
        notes += single_rows(data)
    if isinstance(checked, Mapping) and unread:
        gone = set((data.y == IGNORE).nonzero()[:, 0].tolist())
        checked = {row: label for row, label in checked.items() if row not in gone}
    T, names = answers.transition, data.names
    found = audit(answers.probs, data.y, transition=T, names=names, checked=checked)
    if folds:
        found.notes.remove(NOTE_OUT_OF_FOLD)  # they do
    found.notes.extend([*notes, *unread])
    found.context.method = clf._method_name()
    found.context.features = _features(clf, data)
    if len(data.shape) > 1:
        found.context.images = data.x
    else:
        found.context.rows = data.x  # type: ignore[assignment]
    return found


def _features(clf: Classifier, data: Data) -> Features | None:
    """By which similar rows are found: a table's own values, or what the network makes of a
    picture; nothing for pictures before there is a network."""
    net: Any = getattr(getattr(clf, "method_", None), "net", None)
    if len(data.shape) > 1 and (not isinstance(net, Net) or data.shape != clf.shape_):
        return None

    def of(rows: Sequence[int]) -> Tensor:
        part = data.rows(torch.as_tensor(rows))
        if len(data.shape) == 1:
            return standardised(torch.as_tensor(part.x))
        return clf._trainer().map(lambda b: F.normalize(net.features(b.x).float()), part)

    return of


def _key(clf: Classifier, data: Data, folds: int, encoder: Encoder | None) -> str:
    """The hash of all that the folds' answers depend on, whatever their files are called."""
    method, network = clf.method, clf.backbone
    fields = plain_fields(method, data.num_classes) if isinstance(method, Method) else {}
    settings = clf.get_params(deep=False) | {"method": [clf._method_name(), fields]}
    start = {} if encoder is None else encoder.weights
    settings |= {"encoder": None}
    weights = network.state_dict() if isinstance(network, nn.Module) else {}
    return hash_of([fingerprint(data), folds, repr(settings), start, weights])


def _check_classes(clf: Classifier, data: Data) -> None:
    if data.num_classes != len(clf.classes_):
        raise BadInput(
            f"the data has {data.num_classes} classes, but the model was fitted on "
            f"{len(clf.classes_)}; fit it again"
        )


def _answers(clf: Classifier, data: Data) -> Answers:
    """The clean posteriors, and T(x) where the method has one of its own; data is read once."""
    K = data.num_classes
    if not _has_transition(clf):
        return Answers(clf.predict_proba(data), None)

    def of(batch: Batch) -> Tensor:
        p, T = clf.method_.predict_proba(batch.x), clf.method_.transition(batch)
        assert T is not None
        return torch.cat([p[:, None], T.expand(len(p), K, K)], 1)

    both = clf._map(of, data)
    return Answers(both[:, 0].copy(), both[:, 1:].copy())


def _has_transition(clf: Classifier) -> bool:
    """Does the method have a T of its own?"""
    device = choose_device(clf.device)
    with torch.no_grad():
        known = clf.method_.transition(unseen(torch.zeros(1, *clf.shape_, device=device)))
    return known is not None


def _fold_fit(clf: Classifier, data: Data, encoder: Encoder | None) -> FoldFit:
    """How a fold is trained: as all of the data would be, though it has fewer rows."""
    whole = clone(clf)._recipe(data)

    def fit(
        part: Data, on_record: Callable[[Record], None], folder: Path | None
    ) -> Callable[[Data], Answers]:
        fitted = clone(clf).set_params(val=whole.val, keep=whole.keep)
        if clf._is_auto():
            fitted.set_params(method=clf._method_name())  # one race is enough
        options: Any = {"folder": folder, "resume": True} if folder else {}
        train(fitted, part, encoder=encoder, on_record=on_record, **options)
        if fitted.interrupted_:
            raise KeyboardInterrupt  # a fold that was trained for less would judge otherwise
        return lambda rest: _answers(fitted, rest)

    return fit
