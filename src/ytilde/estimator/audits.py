"""The audit of a Classifier's labels: by fits of it that never saw them, or by the fitted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ..auditing import NOTE_OUT_OF_FOLD, Audit, audit
from ..auditing.crossfit import (
    FoldFit,
    Folds,
    Probs,
    copies_told,
    kept_or_made,
    out_of_fold,
    single_rows,
)
from ..auditing.duplicates import copies, first_equal
from ..auditing.pixels import PixelAudit, audit_pixels
from ..auditing.sampling import Reviewed
from ..auditing.similar import Features, standardised
from ..data import IGNORE, BadInput, Batch, Data, few
from ..data.images import unreadable, without_unreadable
from ..data.readers import dense, fingerprint
from ..data.votes import Votes
from ..encoders.encoder import Encoder
from ..encoders.patches import HEAD, encode, is_patches
from ..engine import Recipe, Record
from ..engine.recipe import check_held_out
from ..fitting import backbone_name
from ..hashing import hash_of
from ..method import Method, Net
from .files import plain_fields
from .inputs import (
    as_plain,
    check_annotations,
    check_groups,
    check_inputs,
    check_labels,
    check_training,
)
from .params import as_chosen, load_encoder, method_name, recipe_for
from .predicting import as_seen, trainer_of
from .training import learn_patches_of, plan_for, train

if TYPE_CHECKING:
    from .classifier import Classifier

COARSE = 14  # pixels a side that a picture keeps for its neighbours and the linear model
ONE_LABEL = (
    "an audit needs one label per row; for those of pixels give out-of-fold probabilities to "
    "ytilde.auditing.audit_pixels, or use `ytilde audit`"
)
PIXELS = 4 * 10**9  # bytes of the probabilities of all pixels, at two bytes each


def audit_rows(
    clf: Classifier,
    X: Any,
    y: ArrayLike | None,
    folds: int,
    checked: Mapping[int, Any] | None = None,
    annotations: Any = None,
    groups: Any = None,
) -> Audit:
    """The audit of labels as a user gives them: any classes, any kind of X."""
    votes = check_annotations(X, y, annotations, clf.classes_ if folds == 0 else None)
    if votes:
        y = votes.consensus
    if folds == 0:
        check_is_fitted(clf)
        check_labels(y)
        x, given, schema = check_inputs(clf, X), np.asarray(as_plain(y, "y")), clf.schema_
    else:
        check_held_out(vars(clf))
        x, given, schema = check_training(clone(clf), X, y)
    if given.ndim > 1:
        raise BadInput(ONE_LABEL)
    if len(given) != len(x):
        raise BadInput(f"there are {len(given)} labels for {len(x)} rows of X")
    classes = clf.classes_ if folds == 0 else votes.classes if votes else unique_labels(given)
    if len(classes) < 2:
        raise BadInput(
            f"y holds one class only ({classes.tolist()[0]!r}); an audit needs at least two"
        )
    place = {name: label for label, name in enumerate(classes.tolist())}
    strange = [name for name in np.unique(given).tolist() if name not in place]
    if strange:
        raise BadInput(
            f"y holds the label {strange[0]!r}, which the model was not fitted on; it knows "
            f"{few(place, 10)}"
        )
    labels = torch.tensor([place[name] for name in given.tolist()])
    names, scale = tuple(str(c) for c in classes), schema.one_scale if schema else (0, 0)
    data = Data(x, labels, len(classes), names=names, one_scale=scale)
    data = votes.beside(data) if votes else data
    data = replace(data, groups=check_groups(groups, len(data)))
    if checked is not None:
        strange = [label for label in checked.values() if label not in place]
        if strange:
            raise BadInput(f"the checked label {strange[0]!r} is no class of the labels")
        checked = {row: place[label] for row, label in checked.items()}
    found = clf.audit_data(data, folds=folds, checked=checked).with_classes(classes.tolist())
    if found.context.rows is not None:  # the values as they were given, not as float32
        X = dense(X, "X")
        found.context.rows = X if isinstance(X, pd.DataFrame | Tensor) else np.asarray(X)
        found.context.text_column = schema.text_column if schema else None
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
    on_step: Callable[[Record], None] | None = None,
) -> Audit:
    """The audit of a Data with one label a row."""
    if data.y.dim() > 1:
        raise BadInput(ONE_LABEL)
    data, unread = without_unreadable(data)
    encoder = (encoder or load_encoder(clf)) if folds else None
    seen, like = _as_seen(clf, data, encoder, on_step) if folds else (data, clf)
    # rows of one group are too alike to judge each other by: the model judges alone
    features = _inputs(seen) if data.groups is None else None
    first = np.arange(len(data)) if features is None or not folds else copies(features)
    different = data.y[torch.from_numpy(np.unique(first))]
    if different[different != IGNORE].bincount(minlength=2).max() < folds:
        first = np.arange(len(data))  # too few different rows to make folds of
    if folds == 0:
        _check_classes(clf, data)
        probs = clf.predict_proba(data)
        notes = ["In-sample: the model that judged the labels was trained on them."]
    else:
        seed = clf.random_state if isinstance(clf.random_state, int) else 0
        key = _key(clf, data, folds, encoder, first) if keep or folder else ""
        kept = Folds(folder, key) if folder else None
        fit = _fold_fit(like, seen, encoder, steps=on_step is not None)

        def hear(record: Record) -> None:
            (on_step if on_step and "share" in record else on_record)(record)

        probs, notes = kept_or_made(
            keep,
            key,
            lambda: out_of_fold(seen, folds, seed, fit, hear, kept, on_start, first),
        )
        if kept:
            kept.clear()
            notes += kept.notes
        notes += single_rows(data, first)
    if isinstance(checked, Mapping) and unread:
        gone = set((data.y == IGNORE).nonzero()[:, 0].tolist())
        checked = {row: label for row, label in checked.items() if row not in gone}
    if data.votes is not None:
        found = _audit_votes(probs, data, checked)
    else:
        found = audit(probs, data.y, names=data.names, features=features, checked=checked)
    if folds:
        found.notes.remove(NOTE_OUT_OF_FOLD)  # they do
        if features is not None:
            found.notes.extend(copies_told(found.issues, first, first_equal(features)))
    found.notes.extend([*notes, *unread])
    found.context.method = method_name(clf)
    found.context.features = _features(clf, data)
    if len(data.shape) > 1:
        found.context.images = data.x
    else:
        found.context.rows = data.x  # type: ignore[assignment]
    return found


def audit_masks(
    clf: Classifier,
    data: Data,
    folds: int,
    on_record: Callable[[Record], None],
    encoder: Encoder | None,
    folder: Path,
    on_start: Callable[[int], None],
) -> PixelAudit:
    """The audit of a Data with labels of pixels."""
    if data.y.numel() * data.num_classes * 2 > PIXELS:
        raise BadInput(
            f"the probabilities of {len(data)} pictures of {tuple(data.y.shape[1:])} pixels do not "
            "fit into memory; audit fewer or smaller pictures at a time"
        )
    lost = unreadable(data.x)
    unread = [f"Left out because unreadable: {int(lost.sum())} images."] if lost.any() else []
    data = replace(data, y=data.y.masked_fill(lost[:, None, None], IGNORE))
    if folds == 0:
        probs = clf.predict_proba(data).astype(np.float16)
        notes = ["In-sample: the model that judged the labels was trained on them."]
    else:
        seed = clf.random_state if isinstance(clf.random_state, int) else 0
        kept = Folds(folder, _key(clf, data, folds, encoder))
        fit = _fold_fit(clf, data, encoder or load_encoder(clf))
        probs = out_of_fold(data, folds, seed, fit, on_record, kept, on_start)
        kept.clear()
        notes = kept.notes
    found = audit_pixels(probs, data.y, names=data.names, images=data.x)
    found.notes.extend([*notes, *unread])
    return found


def _as_seen(
    clf: Classifier,
    data: Data,
    encoder: Encoder | None,
    on_step: Callable[[Record], None] | None = None,
) -> tuple[Data, Classifier]:
    """The rows as the folds get them, and an estimator like clf that fits them.

    What can be trained in time is asked once, not by each fold; a fitted clf has asked. Features
    of patches are computed once, too: no label plays a part in them.
    """
    like, network = as_chosen(clf), clf.backbone
    fitted = getattr(clf, "shape_", None) == data.shape
    auto = isinstance(network, str) and network == "auto"
    if auto and fitted:
        network = clf._backbone_
        like.set_params(precision=clf.recipe_.precision)
    elif plan := plan_for(clf, data, encoder):
        network = plan.backbone
        like.set_params(precision=plan.precision)
    if not is_patches(network):
        return data, like.set_params(backbone=backbone_name(data, network, encoder))
    known = fitted and clf._backbone_ == network
    learnt = clf.encoder_ if known else learn_patches_of(clf, data, network, encoder)
    assert learnt is not None
    recipe = Recipe(device=clf.device, workers=clf.workers)
    return encode(learnt, data, recipe, on_step=on_step), like.set_params(backbone=HEAD)


def _inputs(data: Data) -> np.ndarray:
    """What neighbours and a linear model judge by: values, or coarse pixels, never anything that a
    network learnt from these labels."""
    every = torch.arange(len(data))
    if len(data.shape) < 3:
        return data.x[every].numpy()
    small = [F.adaptive_avg_pool2d(data.x[at].float(), COARSE) for at in every.split(512)]
    return torch.cat(small).numpy()


def _audit_votes(probs: NDArray[Any], data: Data, checked: Any) -> Audit:
    """Of a row that cannot be read the model says nothing; its votes still do."""
    assert data.votes is not None
    unread = (data.y == IGNORE).numpy()[:, None]
    names = [data.class_name(k) for k in range(data.num_classes)]
    votes = Votes.from_padded(data.votes, data.annotators, names)
    probs = np.where(unread, 1 / len(names), probs)
    return audit(probs, annotations=votes, names=names, checked=checked)


def _features(clf: Classifier, data: Data) -> Features | None:
    """By which similar rows are found; for pictures there must be a network of this shape."""
    if len(data.shape) == 1:
        return partial(_table_features, data)
    net = getattr(getattr(clf, "method_", None), "net", None)
    fits = isinstance(net, Net) and data.shape == clf.shape_
    return partial(_network_features, clf, data) if fits else None


def _table_features(data: Data, rows: Sequence[int]) -> Tensor:
    return standardised(torch.as_tensor(data.rows(torch.as_tensor(rows)).x), data.one_scale)


def _network_features(clf: Classifier, data: Data, rows: Sequence[int]) -> Tensor:
    def of(batch: Batch) -> Tensor:
        return F.normalize(clf.method_.net.features(as_seen(clf, batch).x).float())

    return trainer_of(clf).map(of, data.rows(torch.as_tensor(rows)))


def _key(
    clf: Classifier,
    data: Data,
    folds: int,
    encoder: Encoder | None,
    first: NDArray[np.int64] | None = None,
) -> str:
    """The hash of all that the folds' answers depend on, whatever their files are called.

    first: of each row the first that it is a copy of, or itself.
    """
    method, network = clf.method, clf.backbone
    fields = plain_fields(method, data.num_classes) if isinstance(method, Method) else {}
    settings = clf.get_params(deep=False) | {"method": [method_name(clf), fields]}
    start = {} if encoder is None else encoder.weights
    settings |= {"encoder": None}
    weights = network.state_dict() if isinstance(network, nn.Module) else {}
    parts = [fingerprint(data), folds, repr(settings), start, weights]
    together = first is not None and (first != np.arange(len(first))).any()
    return hash_of([*parts, "copies together"] if together else parts)


def _check_classes(clf: Classifier, data: Data) -> None:
    if data.num_classes != len(clf.classes_):
        raise BadInput(
            f"the data has {data.num_classes} classes, but the model was fitted on "
            f"{len(clf.classes_)}; fit it again"
        )


def _fold_fit(clf: Classifier, data: Data, encoder: Encoder | None, steps: bool = False) -> FoldFit:
    """How a fold is trained: as all of the data would be, though it has fewer rows.

    steps: who listens hears of steps, too.
    """
    clf = as_chosen(clf)
    whole = recipe_for(clone(clf), data)
    network = backbone_name(data, clf.backbone, encoder)

    def fit(
        part: Data, on_record: Callable[[Record], None], folder: Path | None
    ) -> Callable[[Data], Probs]:
        fitted = clone(clf).set_params(val=whole.val, keep=whole.keep, batch_size=whole.batch_size)
        if isinstance(network, str):
            fitted.set_params(backbone=network)
        options: Any = {"folder": folder, "resume": True} if folder else {}
        options |= {"on_step": on_record} if steps else {}
        train(fitted, part, encoder=encoder, on_record=on_record, **options)
        if fitted.interrupted_:
            raise KeyboardInterrupt  # a fold that was trained for less would judge otherwise
        return fitted.predict_proba

    return fit
