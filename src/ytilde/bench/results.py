"""The results files: one JSON line a run in `results/TABLE.jsonl`, and what they say.

A line carries the hash of its run's inputs, so what is there already is not run again. One that a
changed method made is marked `superseded`, with the reason: it stays in the file and is not read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..engine.protocols import PROTOCOLS, validation_score
from ..errors import BadInput, plural
from ..files import locked, write_bytes
from ..signing import sign, verify
from ..tuning import ranked
from .tables import Cell, Job, Table, is_of

STANDARD = Path("results")
SUPERSEDED = "superseded"  # why a line does not count any more
Line = dict[str, Any]  # of a results file


def default_results(scale: str) -> Path:
    """Runs on made data are no results."""
    return Path("runs/tiny") if scale == "tiny" else STANDARD


def load_results(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Line]:
    """The lines of all results files, in order; broken and superseded ones are passed over.

    say: hears of those that a crash cut short, or that were damaged.
    """
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        texts = path.read_bytes().splitlines()
        found += [line for text in texts if (line := _read(text)) and SUPERSEDED not in line]
        if lost := sum(_is_damaged(text) for text in texts):
            say(f"note: {plural(lost, 'damaged line')} of {path} left out")
    return found


_FIGURES = dict[str, float]
_ALWAYS: dict[str, Any] = {"hash": str, "experiment": str}
_NEEDED = {  # by status: what the reports rely on, and its type
    "failed": _ALWAYS | {"error": str},
    "done": _ALWAYS
    | {"seed": int, "inputs": dict, "noise_rate": float | None, "seconds": float, "device": str}
    | {"commit": str | None, "last": _FIGURES},
}


def _read(text: bytes) -> Line | None:
    """A line of a results file; None: a crash cut it short, or it does not tell of a run."""
    try:
        line = json.loads(text)
        line = verify(line) if isinstance(line, dict) else {}
    except (ValueError, RecursionError):
        return None
    if line.get("status") not in tuple(_NEEDED):
        return None
    needed = _NEEDED[line["status"]]
    sound = all(name in line and is_of(line[name], hint) for name, hint in needed.items())
    return line if sound and (line["status"] == "failed" or _has_figures(line)) else None


def _is_damaged(text: bytes) -> bool:
    """Is it a run's line that cannot be used? Other benchmarks write lines of their own."""
    try:
        verify(json.loads(text or b"{}") or {})
    except (ValueError, RecursionError):
        return True
    except AttributeError:  # no object
        return False
    return text.startswith(_BEGIN) and _read(text) is None


def _has_figures(line: Line) -> bool:
    """Has a result, by each of its protocols, all that its inputs ask to be measured?"""
    run_inputs = line["inputs"]
    tests = run_inputs.get("tests", [])
    if not is_of(tests, list[str]):
        return False
    wanted = {"test_accuracy", "test_nll", *(f"{name}/test_accuracy" for name in tests[1:])}
    wanted |= {"test_miou"} if run_inputs.get("miou") else set()
    wanted |= {"noisy_test_accuracy", "noisy_test_nll"} if run_inputs.get("noisy_test") else set()
    needed = dict.fromkeys(PROTOCOLS, wanted)
    needed |= {name: {"val_accuracy", "val_nll"} for name in ("val_last", "val_chosen")}
    present = {name: keys for name, keys in needed.items() if name in line}
    return all(is_of(line[k], _FIGURES) and keys <= set(line[k]) for k, keys in present.items())


def done(folder: Path) -> dict[str, Line]:
    """The result of every run that has one, by its hash; whichever table asked for it."""
    return {line["hash"]: line for line in load_results(folder) if line["status"] == "done"}


_BEGIN = b'{"hash": "'  # of a line, which a crash may have cut


def check_results(path: Path) -> None:
    """Refuse to add to a file of another kind that has a results file's name by chance."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    if lines and not any(text.startswith(_BEGIN) or _BEGIN.startswith(text) for text in lines):
        raise BadInput(f"{path} holds no benchmark results; give --results another folder")


def append(path: Path, line: Line) -> None:
    """Add a line, unless the file holds the result of that run already."""
    check_results(path)
    with locked(path.parent / f".{path.stem}.lock"), path.open("a+b") as file:
        file.seek(0)
        before = file.read()
        result = f'"hash": "{line["hash"]}", "status": "done"'.encode()
        known = [_read(text) for text in before.splitlines() if result in text]
        if any(each and SUPERSEDED not in each for each in known):
            return
        cut = b"\n" if before and not before.endswith(b"\n") else b""  # after a crash
        file.write(cut + json.dumps(sign(line)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def supersede(path: Path, of: Callable[[Line], bool], reason: str) -> int:
    """Mark the lines of which `of` is true, so that their runs are made again; how many it were."""
    check_results(path)
    with locked(path.parent / f".{path.stem}.lock"):
        texts, count = path.read_bytes().splitlines(), 0
        for k, text in enumerate(texts):
            line = _read(text)
            if line and SUPERSEDED not in line and of(line):
                texts[k] = json.dumps(sign(line | {SUPERSEDED: reason})).encode()
                count += 1
        write_bytes(path, b"".join(text + b"\n" for text in texts))
    return count


# ---- what noisy validation finds best -----------------------------------------------------------


def validation(table: Table, cell: Cell, line: Line | None) -> float | None:
    """How good noisy validation finds a run, higher is better; None: it failed, or has none."""
    where = "val_chosen" if cell.protocol == "chosen" else "val_last"
    return None if line is None or where not in line else validation_score(line[where], table.by)


def best_point(table: Table, cell: Cell, scale: str, lines: Iterable[Line]) -> Cell | None:
    """The cell with the best fields of those tried; the first of equals; None: nothing tried."""
    known, points = {line["hash"]: line for line in lines}, cell.points()
    scores = [validation(table, point, known.get(Job(point, scale, 0).hash)) for point in points]
    best = ranked(scores)[0]
    return points[best] if cell.grid and scores[best] is not None else None
