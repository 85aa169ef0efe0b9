"""Random SIGKILLs over one-step audits: does every one go on to the same issues.csv?

    python benchmarks/kill_audit.py [--kills 50] [--methods ce,...] [--out results/kill_audit.jsonl]

Each audit is `ytilde audit data.csv ... --out RUN` in a process of its own (forked after the
imports, which take longer than the work), killed at a random moment of its fit, its folds or its
writing, and started again by the same words until it gets through. Then issues.csv and the model
must equal the undisturbed run's, byte for byte. Exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from ytilde import cli
from ytilde.versions import versions

METHODS = "elr,volminnet,dividemix"  # without and with a T(x); two stages
WORDS = ["--epochs", "8", "--batch-size", "64", "--backbone", "mlp:width=32,depth=1"]
WORDS += ["--device", "cpu", "--folds", "5"]
SAME = ("issues.csv", "model.safetensors")


def run(words: list[str]) -> None:
    sys.argv = ["ytilde", *words]
    with redirect_stdout(io.StringIO()):
        cli.main()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an audit takes it for itself


def killed(words: list[str], seconds: float | None = None) -> bool:
    """Run the command in a process and kill it after so long; False if it got through before."""
    pid = os.fork()
    if not pid:
        try:
            run(words)
            os._exit(0)
        except BaseException as end:
            os._exit(end.code if isinstance(end, SystemExit) and end.code else 70)
    until = time.monotonic() + (seconds if seconds is not None else 3600)
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                raise SystemExit(f"an audit failed: {os.waitstatus_to_exitcode(status)}")
            return False
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def write_digits(path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    given = np.where(rng.random(600) < 0.1, rng.integers(0, 10, 600), y[:600])
    frame = pd.DataFrame(x[:600], columns=[f"px{k}" for k in range(64)])
    frame.assign(label=given, code=[f"{k:06d}" for k in range(600)]).to_csv(path, index=False)


def where(folder: Path) -> str:
    """How far a killed audit had come, by what it left."""
    if not (folder / "config.json").exists():
        return "before the run"
    if not (folder / "model.safetensors").exists():
        return "in the fit"
    if (folder / "audit.safetensors").exists():
        return "after the folds"
    ended_folds = len(list((folder / "folds").glob("*.safetensors")))
    return f"after {ended_folds} folds"


def tried(method: str, kills: int, rng: random.Random, root: Path, table: Path) -> dict:
    words = ["audit", str(table), "--method", method, *WORDS]
    run([*words, "--out", str(root / "warm-up")])  # what is imported when it is first needed
    began = time.monotonic()
    killed([*words, "--out", str(root / "whole")])
    length = time.monotonic() - began
    wanted = [(root / "whole" / name).read_bytes() for name in SAME]
    counts, places = {"kills": 0, "runs": 0, "same_bytes": 0}, Counter()
    while counts["kills"] < kills:
        folder = root / f"cut-{counts['runs']}"
        again = [*words, "--out", str(folder)]
        while counts["kills"] < kills and killed(again, rng.random() * length):
            counts["kills"] += 1
            places[where(folder)] += 1
        killed(again)
        counts["runs"] += 1
        same = [(folder / name).read_bytes() for name in SAME] == wanted
        same &= not (folder / "folds").exists()
        counts["same_bytes"] += same
        if not same:
            print(f"{method}: {folder} differs from {root / 'whole'}")
    return counts | {"killed": dict(sorted(places.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    methods, failed = options.methods.split(","), False
    rng = random.Random(options.seed)
    for number, method in enumerate(methods):
        share = options.kills // len(methods) + (number < options.kills % len(methods))
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "digits.csv"
            write_digits(table)
            counts = tried(method, share, rng, Path(folder), table)
        failed |= counts["same_bytes"] < counts["runs"]
        line = {"method": method, "rows": 600, "folds": 5, **counts, "versions": versions()}
        print(json.dumps(line))
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
