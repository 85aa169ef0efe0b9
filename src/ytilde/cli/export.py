"""`ytilde export`: a network as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import say
from .options import Force


def export(
    run: Annotated[Path, typer.Argument(help="run folder or model file")],
    out_file: Annotated[Path, typer.Option("--out", help="onnx to write")] = Path("model.onnx"),
    force: Force = False,
) -> None:
    """Write a run's network as an ONNX file.

    For programs without Python or torch.
    """
    from ..export import to_onnx
    from ..outputs import check_outputs
    from .reading import check_suffix
    from .trained import load_model, run_inputs

    check_suffix(out_file, ".onnx")
    check_outputs([(out_file, "onnx")], [run], force)
    clf, config = load_model(run)
    check_outputs([(out_file, "onnx")], run_inputs(config), force)
    to_onnx(clf, out_file, force)
    shape = ", ".join(map(str, ("N", *clf.shape_)))
    say(f"written: {out_file}  (x [{shape}] float32 -> log_probs)")
