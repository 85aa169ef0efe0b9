"""A fitted Classifier as one safetensors file with a JSON header, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import checkpoint
from ..backbones import Patches, create_backbone, without_weights
from ..data import BadInput, Data
from ..data.readers import Schema
from ..data.tfidf import TfIdf
from ..encoders.patches import HEAD, is_patches
from ..engine import choose_device, to_device
from ..errors import is_out_of_memory
from ..fitting import make_spec
from ..method import Method, create
from ..outputs import check_replaceable
from ..transition import validate_transition
from .params import new_method, recipe_for

if TYPE_CHECKING:
    from .classifier import Classifier

ENCODER = "encoder."  # in the names of the tensors of what turns pictures into features


TEXT = "text."  # how the names of arrays begin that make numbers of texts


def save(clf: Classifier, path: str | Path, force: bool) -> None:
    """Write a fitted estimator."""
    check_replaceable(Path(path), "classifier", force)
    params = clf.get_params(deep=False)
    params |= {"method": None, "random_state": clf.recipe_.seed}  # what a refit needs
    params["precision"] = clf.recipe_.precision  # it may have been chosen: see budget.py
    params["encoder"] = None if clf.encoder is None else str(clf.encoder)
    # a network of the user's own is not written: Classifier.load takes it again
    params["backbone"] = clf._backbone_ if isinstance(clf._backbone_, str) else None
    meta = {
        "kind": "classifier",
        "method": clf.method_.name,
        "fields": plain_fields(clf.method_, len(clf.classes_)),
        "params": params,
        "classes": plain_classes(clf.classes_),
        "shape": list(clf.shape_),
        "num_train": clf.method_.spec.num_train,
        "n_features_in": clf.n_features_in_,
        "schema": clf.schema_.to_json() if clf.schema_ else None,
        "feature_names": getattr(clf, "feature_names_in_", np.array([])).tolist(),
    }
    if clf.double_:
        meta["double"] = True
    if len(clf.annotators_):
        meta["annotators"] = clf.annotators_.tolist()
    if (kind := clf.classes_.dtype).kind in "mMu":  # what a list alone does not tell
        meta["class_type"] = str(kind)
    tensors = {f"method.{name}": t for name, t in clf.method_.state_dict().items()}
    learnt = clf.encoder_.state_dict() if clf.encoder_ is not None else {}
    tensors |= {f"{ENCODER}{name}": t for name, t in learnt.items()}
    if clf.schema_ and clf.schema_.tfidf:
        tensors |= {f"{TEXT}{name}": t for name, t in clf.schema_.tfidf.tensors().items()}
    checkpoint.save(Path(path), tensors | {"transition": clf._class_transition_}, meta)


def load(cls: type[Classifier], path: str | Path, backbone: nn.Module | None) -> Classifier:
    """Read what `save` wrote."""
    tensors, meta = checkpoint.load(Path(path))
    if meta.get("kind") != "classifier":
        raise BadInput(f"{path} holds no classifier; it was not written by Classifier.save")
    try:
        return _restored(cls, path, tensors, meta, backbone)
    except (KeyError, TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[-1].strip()
        raise BadInput(
            f"{path} does not fit this version of ytilde (or the network given): {reason}"
        ) from error


def _restored(
    cls: type[Classifier],
    path: str | Path,
    tensors: dict[str, Tensor],
    meta: Any,
    backbone: nn.Module | None,
) -> Classifier:
    if meta["params"]["backbone"] is None and backbone is None:
        raise BadInput(f"{path} was trained with a network of yours; pass it as backbone=")
    clf = cls(**(meta["params"] | {"method": create(meta["method"], **meta["fields"])}))
    clf.backbone = backbone or meta["params"]["backbone"]
    clf.classes_ = np.asarray(meta["classes"], dtype=meta.get("class_type"))
    clf.shape_, clf.n_features_in_ = tuple(meta["shape"]), meta["n_features_in"]
    texts = {name: tensors.pop(name) for name in list(tensors) if name.startswith(TEXT)}
    clf.schema_ = Schema(**meta["schema"]) if meta.get("schema") else None
    if clf.schema_ and texts:
        tfidf = TfIdf.from_tensors({name.removeprefix(TEXT): t for name, t in texts.items()})
        clf.schema_ = replace(clf.schema_, tfidf=tfidf)
    if meta["feature_names"]:
        clf.feature_names_in_ = np.asarray(meta["feature_names"], dtype=object)
    clf._backbone_, clf.double_ = clf.backbone, meta.get("double", False)
    clf.encoder_ = _restored_patches(clf, tensors)
    seen = clf.shape_ if clf.encoder_ is None else (clf.encoder_.dim,)
    shape = (meta["num_train"], *seen)
    labels = torch.zeros((), dtype=torch.int64).expand(shape[0])
    zero = torch.zeros((), dtype=torch.float64 if clf.double_ else torch.float32)
    clf.annotators_ = np.asarray(meta.get("annotators", ()), dtype=object)
    people = tuple(clf.annotators_)
    blank = Data(zero.expand(shape), labels, len(clf.classes_), annotators=people)
    clf.recipe_ = recipe_for(clf, blank)
    clf.history_, clf.interrupted_ = [], False
    clf._class_transition_ = tensors.pop("transition")
    clf.method_ = new_method(clf)
    # without weights=FILE: this file has them all
    network = HEAD if clf.encoder_ is not None else without_weights(clf._backbone_)
    spec = make_spec(blank.rows(torch.arange(1)), network, clf.recipe_)
    clf.method_.build(replace(spec, num_train=meta["num_train"]))
    clf.method_.load_state_dict({k.removeprefix("method."): v for k, v in tensors.items()})
    to_device(clf.method_, choose_device(clf.device))
    clf.method_.eval()
    return clf


def _restored_patches(clf: Classifier, tensors: dict[str, Tensor]) -> Patches | None:
    """What turns pictures into features; its tensors are taken out of those of the file."""
    if not isinstance(clf.backbone, str) or not is_patches(clf.backbone):
        return None
    own = {k.removeprefix(ENCODER): tensors.pop(k) for k in list(tensors) if k.startswith(ENCODER)}
    module = create_backbone(clf.backbone, clf.shape_)
    module.load_state_dict(own)
    to_device(module, choose_device(clf.device))
    assert isinstance(module, Patches)
    return module.eval()


def plain_classes(classes: NDArray[Any]) -> list[Any]:
    """The classes as JSON can hold them: times as texts, durations as whole numbers."""
    kind = classes.dtype.kind
    return (classes.astype(str if kind == "M" else np.int64) if kind in "mM" else classes).tolist()


def plain_fields(method: Method, num_classes: int) -> dict[str, Any]:
    """A method's fields as plain values: T is an array, or a file that may be another one later."""
    fields = method.get_params()
    if fields.get("T") is not None:
        fields["T"] = validate_transition(fields["T"], num_classes).tolist()
    return fields
