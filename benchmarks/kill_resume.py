"""Random SIGKILLs over fits: does every killed run resume to the same bits as an undisturbed one?

    python benchmarks/kill_resume.py [--kills 200] [--methods ce,...] [--out results/FILE.jsonl]

Each fit is `ytilde fit` in a process of its own (forked after the imports, which take longer than
the fit), killed at a random moment and started again with --resume, until it gets through; then
its model file must equal the undisturbed run's, byte for byte. Exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import pandas as pd
import torch

from ytilde import checkpoint, cli
from ytilde.testing import blobs

METHODS = "ce,elr,co_teaching,dividemix,ptd"  # the last is a pipeline of three stages
WORDS = ["--epochs", "12", "--batch-size", "32", "--optimizer", "adam", "--lr", "0.005"]
WORDS += ["--backbone", "mlp:width=16,depth=1,dropout=0.2", "--ema", "0.9", "--device", "cpu"]


def run(words: list[str]) -> None:
    sys.argv = ["ytilde", *words]
    with redirect_stdout(io.StringIO()):
        cli.main()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fit takes it for itself


def started(words: list[str]) -> int:
    """The id of a process that runs this command."""
    pid = os.fork()
    if pid:
        return pid
    try:
        run(words)
        os._exit(0)
    except SystemExit as end:
        os._exit(int(end.code or 0))
    except BaseException:
        os._exit(70)


def ended(pid: int) -> int:
    """How it ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_after(pid: int, seconds: float) -> bool:
    """Kill it then; False if it got through before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                raise SystemExit(f"a resumed fit failed: {os.waitstatus_to_exitcode(status)}")
            return False
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return ended(pid) == -signal.SIGKILL


def differing(*folders: Path) -> list[str]:
    (first, one), (second, two) = (checkpoint.load(f / "model.safetensors") for f in folders)
    names = [name for name in first if not torch.equal(first[name], second[name])]
    return names + [key for key in one if one[key] != two.get(key)]


def tried(method: str, kills: int, rng: random.Random, root: Path, table: Path) -> dict[str, int]:
    words = ["fit", str(table), "--method", method, *WORDS]
    run([*words, "--out", str(root / "warm-up")])  # what is imported when it is first needed
    began = time.monotonic()
    assert ended(started([*words, "--out", str(root / "whole")])) == 0
    length = time.monotonic() - began
    whole = (root / "whole" / "model.safetensors").read_bytes()
    counts = {"kills": 0, "runs": 0, "same_bits": 0}
    while counts["kills"] < kills:
        folder = root / f"cut-{counts['runs']}"
        again: list[str] = []
        while counts["kills"] < kills:
            pid = started([*words, "--out", str(folder), *again])
            if not killed_after(pid, rng.uniform(0, 0.7) * length):
                break
            counts["kills"] += 1
            again = ["--resume"] if (folder / "config.json").exists() else []
        else:
            assert ended(started([*words, "--out", str(folder), *again])) == 0
        counts["runs"] += 1
        same = (folder / "model.safetensors").read_bytes() == whole
        counts["same_bits"] += same
        if not same:
            print(f"{method}, run {counts['runs']}: {differing(root / 'whole', folder)}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, names = random.Random(options.seed), options.methods.split(",")
    data, began = blobs(300, rate=0.2), time.monotonic()
    total = {"kills": 0, "runs": 0, "same_bits": 0}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "data.csv"
        frame = pd.DataFrame(data.x.numpy()).rename(columns=lambda c: f"x{c}")
        frame.assign(label=data.y).to_csv(table, index=False)
        for k, name in enumerate(names):
            share = options.kills // len(names) + (k < options.kills % len(names))
            found = tried(name, share, rng, Path(folder) / name, table)
            print(f"{name:12} {found}", flush=True)
            total = {key: total[key] + found[key] for key in total}
    line = {"benchmark": "kill_resume", "methods": names, **total}
    line |= {"seconds": round(time.monotonic() - began), "seed": options.seed}
    line |= {"torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps(line))
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    sys.exit(total["same_bits"] != total["runs"])


if __name__ == "__main__":
    main()
