"""The one rule for every output: nothing of the user's is overwritten unless they say so.

An output is never an input of its command, nor a file of a run. An existing file is replaced only
where it is recognisably an earlier output of the same kind, or with --force (force=True in Python).
docs/decisions/0013-what-may-be-overwritten.md
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .archives import real_file
from .errors import BadInput
from .files import check_writable, is_stream
from .runfolder import RunFolder, run_of

_BROKEN = (RecursionError, zipfile.BadZipFile)
MADE_BY = "Made by ytilde bench report"  # in the LaTeX and the pictures of `bench report`


def check_outputs(
    outputs: Sequence[tuple[Path, str]],
    inputs: Iterable[Path | str | None] = (),
    force: bool = False,
    becomes_run: Path | None = None,
) -> None:
    """Refuse, before the work, what must not be overwritten.

    outputs: (path, kind), see KINDS; becomes_run: a folder that the command makes a run's.
    """
    given = list(dict.fromkeys(real_file(each) for each in inputs if each is not None))
    paths = [path for path, _ in outputs]
    for number, (path, kind) in enumerate(outputs):
        check_writable(path)
        if is_stream(path):
            continue
        if any(_same(path, other) for other in paths[:number]):
            raise BadInput(f"two outputs would be written to {path}; give them different names")
        if any(_same(path, each) for each in given):
            raise BadInput(f"{path} is an input and would be overwritten; give another name")
        own = becomes_run if becomes_run and RunFolder(becomes_run).owns(path) else None
        if run := own or run_of(path):
            raise BadInput(f"{path} is a file of the run {run} itself; give another name")
        if (
            path.exists()
            and any(_is_inside(path, each) for each in given)
            and not is_own(path, kind)
        ):
            raise BadInput(
                f"{path} is part of an input and would be overwritten; give another name"
            )
        check_replaceable(path, kind, force)


def check_replaceable(path: Path, kind: str, force: bool = False) -> None:
    """Refuse an existing file that is no earlier output of this kind."""
    check_writable(path)
    if force or not path.exists() or is_stream(path) or is_own(path, kind):
        return
    raise BadInput(
        f"{path} exists and is no earlier output of this kind; give another name, or replace it "
        "with --force (force=True in Python)"
    )


def is_own(path: Path, kind: str) -> bool:
    """Is it an output of ytilde of this kind? An empty file holds nothing that could be lost."""
    try:
        return not path.stat().st_size or KINDS[kind](path)
    except (OSError, LookupError, ValueError, TypeError, AttributeError, *_BROKEN):
        return False


def check_no_links(paths: Iterable[Path]) -> None:
    """Refuse links in the place of a run's own outputs: what they lead to is not the run's."""
    for path in paths:
        check_writable(path)
        if path.is_symlink():
            raise BadInput(f"{path} is a link, and its target would be overwritten; move it away")


def _same(path: Path, other: Path) -> bool:
    """One file under two names: the same way, a link, or a hard link."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return path.exists() and other.exists() and path.samefile(other)


def _is_inside(path: Path, folder: Path) -> bool:
    return (
        folder.is_dir() and Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents
    )


# ---- how the outputs of earlier commands are recognised -----------------------------------------


def _head(path: Path, size: int = 1 << 16) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _table(columns: str) -> Callable[[Path], bool]:
    """columns: the header, as a regular expression."""
    header = re.compile(columns.encode())
    return lambda path: bool(header.fullmatch(_head(path).partition(b"\n")[0].rstrip(b"\r")))


def _is_labels(path: Path) -> bool:
    """A table of labels that nobody has edited: `fixed` says where the labels differ."""
    if not _table("index,(id,)?label,fixed,given_label(,path)?")(path):
        return False
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    return bool(((frame.label != frame.given_label) == (frame.fixed == "True")).all())


def _has_keys(*keys: str) -> Callable[[Path], bool]:
    return lambda path: json.loads(path.read_bytes()).keys() >= set(keys)


def _is_list(of: Callable[[dict[str, Any]], bool]) -> Callable[[Path], bool]:
    def found(path: Path) -> bool:
        items = json.loads(path.read_bytes())
        return isinstance(items, list) and all(
            isinstance(item, dict) and of(item) for item in items
        )

    return found


def _is_task(item: dict[str, Any]) -> bool:  # what comes back from Label Studio has more keys
    made = [each["model_version"] for each in item["predictions"]]
    return item.keys() == {"data", "predictions"} and made == ["ytilde"]


def _is_record(item: dict[str, Any]) -> bool:
    return item["suggestions"]["label"]["agent"] == "ytilde" and not item["responses"]


def _is_labelling_config(path: Path) -> bool:
    wanted = (
        r'<View>\n  <\w+ name="item" value="\$item"/>\n(  <Header value="id: \$id"/>\n)?'
        r'  <Header value="given: \$given_label"/>\n'
        r'  <Choices name="label" toName="item" choice="single">\n'
        r"(    <Choice value=[^\n]*/>\n)*\n?  </Choices>\n</View>\n"
    )
    return bool(re.fullmatch(wanted, path.read_text(encoding="utf-8")))


def _is_tensors(kind: str) -> Callable[[Path], bool]:
    """A safetensors file with ytilde's header."""

    def found(path: Path) -> bool:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                return False
            header = json.loads(json.loads(file.read(length))["__metadata__"]["ytilde"])
        return json.loads(header["meta"])["kind"] == kind

    return found


def _is_noise(path: Path) -> bool:
    with zipfile.ZipFile(path) as file:
        return set(file.namelist()) == {f"{n}.npy" for n in ("x", "y", "clean", "rows", "names")}


def _holds(text: bytes) -> Callable[[Path], bool]:
    def found(path: Path) -> bool:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(text) >= 0

    return found


def _begins_with(text: str, within: int = 1000) -> Callable[[Path], bool]:
    return lambda path: text.encode() in _head(path, within)


def _is_parquet(path: Path) -> bool:
    """A parquet file whose footer says that ytilde wrote it."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        if file.read(4) != b"PAR1" or length + 8 > path.stat().st_size:
            return False
        file.seek(-8 - length, os.SEEK_END)
        return b"\x06ytilde" in file.read(length)


KINDS: dict[str, Callable[[Path], bool]] = {
    "predictions": _table('index,(id,)?(path,)?predicted_label,predicted_prob(,"?prob_.*)?'),
    "labels": _is_labels,
    "issues": _table("index,(id,)?given_label,predicted_label,label_quality,is_label_issue,.*"),
    "pixel issues": _table("index,label_quality,wrong_pixels,regions,is_label_issue,.*"),
    "regions": _table("index,top,left,bottom,right,pixels,given_label,predicted_label,.*"),
    "pixel audit": _has_keys("pictures", "noise_rate", "regions", "names"),
    "multi-label issues": _table("index,(id,)?label,given,predicted,p_wrong,label_quality,.*"),
    "multi-label audit": _has_keys("entries", "num_errors", "classes", "notes"),
    "issues parquet": _is_parquet,
    "consensus": _table("item,consensus_label,consensus_prob,runner_up_label,.*"),
    "annotators": _table("annotator,votes,accuracy,accuracy_low,accuracy_high,agreement,remark"),
    "matrices": _table("annotator,true_label,given_label,probability,low,high,expected_votes"),
    "votes": _table("item,annotator,label,consensus_label,p_wrong"),
    "review votes": _table("item,annotator,label,reviewed"),
    "audit": _has_keys("noise_rate", "num_errors", "per_class", "transition", "issues"),
    "diagnosis": _has_keys("noise_rate", "instance_dependence", "heteroscedastic", "reasons"),
    "label studio": _is_list(_is_task),
    "labelling config": _is_labelling_config,
    "argilla": _is_list(_is_record),
    "report": _holds(b"<p>Made by ytilde. This file is complete"),
    "classifier": _is_tensors("classifier"),
    "encoder": _is_tensors("encoder"),
    "embeddings": _holds(b"made by ytilde embed"),
    "noise": _is_noise,
    "onnx": _holds(b'"normalised": "by the network"'),  # in its metadata
    "demo": _has_keys("labels right before", "labels right after", "calibration error"),
    "bench markdown": _begins_with("Made by `python -m ytilde bench report"),
    "bench html": _begins_with("<title>ytilde: the papers' tables</title>"),
    "bench latex": _begins_with(MADE_BY),
    "bench figure": _begins_with(MADE_BY),
    "table": lambda path: False,  # `relabel` writes the user's own table: nothing tells them apart
}
