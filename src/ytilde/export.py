"""A trained classifier as an ONNX file, for programs without Python or torch (extra `onnx`)."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from .data import BadInput
from .data.columns import kind_of, width
from .estimator import Classifier, plain_classes
from .files import write_atomic
from .heads import SampledHead
from .outputs import check_replaceable

BLOCK = 100  # Monte-Carlo samples at once: bounds the memory of a prediction


def to_onnx(clf: Classifier, path: str | Path, force: bool = False) -> None:
    """Write the network: "x" [N, ...] float32, images in [0, 1] -> "log_probs" [N, ..., K].

    The log of the clean posterior, for any N. The file's metadata says, in JSON, what the columns
    of log_probs ("classes") and of x ("columns", "input") are: see docs/onnx.md. A Monte-Carlo head
    keeps its mixture: the fixed noise of its predictions is stored in the file.
    """
    check_is_fitted(clf)
    check_replaceable(Path(path), "onnx", force)
    method = copy.deepcopy(clf.method_).cpu().eval()
    _store_noise(method)
    first = copy.deepcopy(clf.encoder_)
    whole = method if first is None else nn.Sequential(first.cpu(), method).eval()
    x = torch.full((2, *clf.shape_), 0.5, dtype=torch.float64 if clf.double_ else torch.float32)
    try:
        with _quiet():
            program = torch.onnx.export(
                whole, (x,), input_names=["x"], output_names=["log_probs"], dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("N")},), verbose=False,
            )  # fmt: skip
    except ImportError as error:
        raise BadInput(f'{error}; pip install "ytilde[onnx]" brings what export needs') from error
    except torch.onnx.errors.OnnxExporterError as error:
        raise BadInput(f"method {method.name} has no ONNX form ({_reason(error)})") from error
    assert program is not None
    if isinstance(program.model.graph.inputs[0].shape[0], int):  # type: ignore[index]
        raise BadInput(f"method {method.name} has no ONNX form for any number of rows")
    about = {"classes": plain_classes(clf.classes_), **_inputs(clf)}
    program.model.metadata_props.update({key: json.dumps(value) for key, value in about.items()})
    write_atomic(Path(path), lambda temporary: program.save(str(temporary)))


def _inputs(clf: Classifier) -> dict[str, Any]:
    """How x is made: the columns of a table, and the constants that the network itself applies."""
    columns, start = [], 0
    for name, how in (clf.schema_.columns if clf.schema_ else {}).items():
        values = {"values": how} if isinstance(how, list) else how or {}
        columns.append({"name": name, "at": start, "kind": kind_of(how), **values})
        start += width(how)
    for name in clf.schema_.gaps if clf.schema_ else ():
        columns.append({"name": name, "at": start, "kind": "is missing"})
        start += 1
    net = clf.method_.net
    constants = {"mean": net.mean.flatten().tolist(), "std": net.std.flatten().tolist()}
    constants = constants if clf.encoder_ is None else {}  # of the features, not of x
    about = {"shape": list(clf.shape_), "normalised": "by the network", **constants}
    if clf.double_:
        about["type"] = "float64"
    return {"input": about, "columns": columns}


class _Stored:
    """The fixed noise of a Monte-Carlo head as constants.

    Its counter hash shifts signed integers, which ONNX cannot, and its blocks are cut by the number
    of rows, which an exported network does not know.
    """

    def __init__(self, head: SampledHead) -> None:
        rows = torch.zeros(1, head.dim)
        draws = head._fixed(rows)
        draws.block, self.samples = BLOCK, draws.samples
        self.noise = list(draws.blocks(rows))

    def blocks(self, like: Tensor) -> list[Tensor]:
        return self.noise


def _store_noise(method: nn.Module) -> None:
    for head in method.modules():
        if isinstance(head, SampledHead):
            stored = _Stored(head)
            head._fixed = lambda rows, stored=stored: stored  # type: ignore[method-assign, misc, assignment]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's lines about libraries that are not needed here.

    And without a warning of one part of torch about another, which no user can heed.
    """
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            own = r"`isinstance\(treespec, LeafSpec\)` is deprecated"
            warnings.filterwarnings("ignore", own, FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at the root."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0]
