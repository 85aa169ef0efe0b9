"""Random SIGKILLs over the commands that write: do they end with the bytes of undisturbed ones?

    python benchmarks/kill_resume.py [--kills 1000] [--kinds "fit ce,audit,..."] [--seed 0]
                                     [--out results/kill_resume.jsonl]

Each command runs in a process of its own (forked after the imports, which take longer than the
command), is killed at a random moment and is typed again, a fit with --resume, until it gets
through; then its outputs must equal the undisturbed command's, byte for byte. A review is a server
that is killed while decisions are sent to it; what was not answered is sent again, as the page
does. A checkpoint is left after every epoch, where pre-training and benches wait 30 s otherwise.
Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, redirect_stdout, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import starlette.applications  # noqa: F401  what a review needs
import torch
import uvicorn.loops.auto
import uvicorn.protocols.http.auto  # noqa: F401
from sklearn.datasets import load_digits

from ytilde import cli
from ytilde.encoders import simclr
from ytilde.versions import commit, versions

METHODS = ("ce", "elr", "co_teaching", "dividemix", "volminnet", "causal_nl", "dtm")
METHODS += ("second_opinion",)
SHARES = {f"fit {name}": 60 for name in METHODS}  # of 1000 kills
SHARES |= {"audit": 120, "review": 120, "relabel": 80, "pretrain": 100, "bench": 100}
SMALL = ["--epochs", "3", "--batch-size", "40", "--device", "cpu"]
SMALL += ["--backbone", "mlp:width=16,depth=1,dropout=0.2"]
FIT = ["fit", "data.csv", "--out", "run", *SMALL, "--ema", "0.9"]
OWN = {"dtm": ["--pretrain", "simclr:epochs=2"]}  # what a method cannot do without
PRETRAIN = ["pretrain", "data.csv", *SMALL, "--out", "encoder.safetensors"]
AUDIT = ["audit", "run", "--folds", "2", "--fix-above", "0.5"]
TABLE = "digits_temperature"
BENCH = ["bench", "run", TABLE, "--only", "ce", "--scale", "tiny", "--seeds", "1"]
TIMED = ("seconds", "train_seconds", "digest")  # of a line of results: another in every run
CLASSES, ROWS, WRONG = 4, 160, 0.2  # of the digits
DECISIONS = 25  # of a review


# ---- a command in a process ----------------------------------------------------------------------


def started(words: list[str], folder: Path, says: int | None = None) -> int:
    """The id of a process that runs this command in the folder and prints into `says`."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY) if says is None else says, 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        sys.argv = ["ytilde", *words]
        cli.main()
        os._exit(0)
    except SystemExit as end:
        os._exit(int(end.code or 0))
    except BaseException:
        os._exit(70)


def run(words: list[str], folder: Path) -> None:
    """In this process, which afterwards has imported all that the command needs."""
    before = os.getcwd()
    os.chdir(folder)
    sys.argv = ["ytilde", *words]
    try:
        with redirect_stdout(io.StringIO()):
            cli.main()
    finally:
        os.chdir(before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fit takes it for itself


def ended(pid: int) -> int:
    """How it ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Killer:
    """Kills a process after so many seconds, or never; `killed` says whether it did."""

    def __init__(self, pid: int, seconds: float | None) -> None:
        self.pid, self.killed = pid, False
        self._timer = threading.Timer(seconds or 0, self._kill)
        if seconds is not None:
            self._timer.start()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            self.killed = True

    def stop(self) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()


class Disturbed(Protocol):
    """What is killed, in a folder of its own."""

    def attempt(self, after: float | None) -> bool:
        """Begin, or go on; was it killed, `after` so many seconds, before it got through?"""

    def outputs(self) -> dict[str, Any]: ...


class Command:
    """words, of what lies in the folder: what is typed. outputs: what has to be the same."""

    def __init__(
        self,
        words: Callable[[Path], list[str]],
        outputs: Callable[[Path], dict[str, Any]],
        folder: Path,
    ) -> None:
        self.words, self.folder = words, folder
        self.outputs = partial(outputs, folder)

    def attempt(self, after: float | None) -> bool:
        words = self.words(self.folder)
        pid = started(words, self.folder)
        killer = Killer(pid, after)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its number stays taken until `ended`
        killer.stop()
        code = ended(pid)
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"exit code {code} of: ytilde {' '.join(words)}")
        return code != 0


def contents(*names: str) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {name: (folder / name).read_bytes() for name in names}


# ---- the commands --------------------------------------------------------------------------------


def fit_words(method: str, folder: Path) -> list[str]:
    begun = (folder / "run" / "config.json").exists()
    return [*FIT, "--method", method, *OWN.get(method, []), *["--resume"] * begun]


def audited(folder: Path) -> dict[str, Any]:
    """Also of one more audit, whose page and notes do not depend on what the first one found."""
    first = contents("run/issues.csv", "run/labels.csv", "run/audit.safetensors")(folder)
    run(AUDIT, folder)
    again = contents("run/issues.csv", "run/labels.csv", "run/audit.json", "run/report.html")
    return {"first": first, "again": again(folder)}


def relabel_words(folder: Path) -> list[str]:
    words = ["relabel", "data.csv", "run/labels.csv", "--out", "fixed.csv"]
    return [*words, *["--force"] * (folder / "fixed.csv").exists()]


def results(folder: Path) -> dict[str, Any]:
    lines = (folder / "results" / f"{TABLE}.jsonl").read_text().splitlines()
    kept = [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in lines]
    return {"lines": sorted(kept, key=lambda line: line["hash"])}


def kind_of(name: str) -> Callable[[Path], Disturbed]:
    """What makes such a thing in a folder."""
    if name.startswith("fit "):
        made = contents("run/model.safetensors", "run/predictions.csv")
        return partial(Command, partial(fit_words, name.removeprefix("fit ")), made)
    return {
        "audit": partial(Command, lambda _: AUDIT, audited),
        "relabel": partial(
            Command, relabel_words, contents("fixed.csv", "data.csv", "run/labels.csv")
        ),
        "pretrain": partial(Command, lambda _: PRETRAIN, contents("encoder.safetensors")),
        "bench": partial(Command, lambda _: [*BENCH, "--results", "results"], results),
        "review": Review,
    }[name]


class Review:
    """Decisions that are sent to `ytilde review`, which may be killed at any moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        issues = json.loads((folder / "run" / "audit.json").read_text())["issues"]
        worst_first = sorted(issues, key=lambda issue: -issue["p_wrong"])
        self.places = {issue["index"]: place for place, issue in enumerate(worst_first)}
        self.waiting = [self._decision(k, random.Random(k)) for k in range(DECISIONS)]

    def _decision(self, number: int, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """What a person does: the same in every review."""
        asked = {"request": f"r{number}", "tab": f"tab{number % 2}", "kind": "open"}
        if rng.random() < 0.2:
            return "undo", asked
        action = rng.choice(["accept", "keep", "skip", "choose"])
        label = {"label": rng.randrange(CLASSES)} if action == "choose" else {}
        return "decide", {**asked, "row": rng.choice(list(self.places)), "action": action, **label}

    def attempt(self, after: float | None) -> bool:
        reads, writes = os.pipe()
        pid = started(["review", "run"], self.folder, writes)
        os.close(writes)
        killer = Killer(pid, after)
        try:
            with open(reads) as said:
                self._send(said.readline())
        except (OSError, ValueError, http.client.HTTPException):
            if not killer.killed:
                raise
        killer.stop()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # all was answered
        ended(pid)
        return bool(self.waiting)

    def _send(self, said: str) -> None:
        """All that was not answered; the same words again where an answer did not come."""
        address = next((w for w in said.split() if w.startswith("http://")), None)
        if address is None:
            raise ConnectionError(f"it has no address yet, and said {said!r}")
        host, _, token = address.removeprefix("http://").partition("/")
        server = http.client.HTTPConnection(host, timeout=20)

        def ask(verb: str, **asked: Any) -> dict[str, Any]:
            server.request("POST", f"/{token}{verb}", json.dumps(asked))
            answer = server.getresponse()
            content = json.loads(answer.read())
            if answer.status != 200 or content.get("conflict"):
                raise SystemExit(f"{verb} {asked} was answered by {answer.status} {content}")
            return content

        while self.waiting:
            verb, asked = self.waiting[0]
            if "row" in asked and "seen" not in asked:
                item = ask("at", position=self.places[asked["row"]])["item"]
                assert item["row"] == asked["row"]
                asked["seen"] = item["seen"]  # the decision that this one replaces
            ask(verb, **asked)
            self.waiting.pop(0)

    def outputs(self) -> dict[str, Any]:
        """The labels, and every line of the log but its time: none twice, none lost."""
        run(["review", "run", "--export", "labels.csv"], self.folder)
        columns = "id, request, tab, row, action, label, undoes"
        lines, log = [], self.folder / "run" / "review.sqlite"
        if log.exists():
            with closing(sqlite3.connect(log)) as db:
                lines = db.execute(f"SELECT {columns} FROM decisions ORDER BY id").fetchall()
        return contents("labels.csv")(self.folder) | {"log": lines}


# ---- the trials ----------------------------------------------------------------------------------


def make_data(folder: Path, rows: int, pixels: slice = slice(None)) -> None:
    """data.csv: these pixels of digits as a table, some of their labels wrong."""
    digits, rng = load_digits(n_class=CLASSES), np.random.default_rng(0)
    x, y = digits.data[:rows, pixels].astype(int), digits.target[:rows].copy()
    wrong = rng.random(rows) < WRONG
    y[wrong] = rng.integers(0, CLASSES, wrong.sum())
    frame = pd.DataFrame(x).add_prefix("x").assign(label=[f"digit {k}" for k in y])
    frame.to_csv(folder / "data.csv", index=False)


def make_template(folder: Path) -> None:
    """What trials begin with: data, or also a run, or also its audit."""
    (folder / "fit").mkdir(parents=True)
    make_data(folder / "fit", ROWS)
    shutil.copytree(folder / "fit", folder / "audit")
    run([*FIT, "--method", "ce", "--epochs", "40", "--lr", "0.01"], folder / "audit")
    shutil.copytree(folder / "audit", folder / "review")
    run(AUDIT, folder / "review")


def tried(name: str, kills: int, rng: random.Random, root: Path, template: Path) -> dict[str, int]:
    make, counts = kind_of(name), {"kills": 0, "runs": 0, "same_bytes": 0}
    begin = {"audit": "audit", "review": "review", "relabel": "review"}.get(name, "fit")

    def trial(folder: str, most: int) -> dict[str, Any]:
        """Killed so many times at most; what comes out."""
        shutil.copytree(template / begin, root / folder)
        one, killed = make(root / folder), 0
        while one.attempt(rng.uniform(0, length) if killed < most else None):
            killed += 1
        counts["kills"] += killed
        return one.outputs()

    length = 0.0
    warm = root / "warm-up"
    shutil.copytree(template / begin, warm)
    if isinstance(one := make(warm), Command):
        run(one.words(warm), warm)
    one.outputs()
    began = time.monotonic()
    whole = trial("whole", 0)
    length = time.monotonic() - began
    while counts["kills"] < kills:
        found = trial(f"cut-{counts['runs']}", kills - counts["kills"])
        counts["runs"] += 1
        counts["same_bytes"] += found == whole
        if found != whole:
            print(f"{name}: {[k for k in whole if whole[k] != found.get(k)]} differ", flush=True)
    return counts


def shares(kills: int, kinds: list[str]) -> dict[str, int]:
    """How many kills each kind gets, in the proportions of SHARES."""
    weights = [SHARES.get(kind, 60) for kind in kinds]
    ends = [kills * sum(weights[: k + 1]) // sum(weights) for k in range(len(kinds))]
    return {kind: end - before for kind, end, before in zip(kinds, ends, [0, *ends], strict=False)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--kinds", default=",".join(SHARES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    simclr.CHECKPOINT_EVERY = 0.0
    bench_run = import_module("ytilde.bench.run")
    fit_method = bench_run.fit_method
    bench_run.fit_method = lambda *a, **o: fit_method(*a, **o | {"checkpoint_every": 0.0})
    began, outcome = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as made:
        make_template(Path(made) / "template")
        for kind, kills in shares(options.kills, options.kinds.split(",")).items():
            rng = random.Random(f"{options.seed} {kind}")
            root = Path(made) / kind
            outcome[kind] = tried(kind, kills, rng, root, Path(made) / "template")
            shutil.rmtree(root)
            print(f"{kind:20} {outcome[kind]}", flush=True)
    total = {key: sum(each[key] for each in outcome.values()) for key in outcome[kind]}
    line = {"benchmark": "kill_resume", **total, "kinds": outcome, "seed": options.seed}
    line |= {"seconds": round(time.monotonic() - began), "commit": commit()}
    line["versions"] = versions()
    print(json.dumps(line))
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    sys.exit(total["same_bytes"] != total["runs"])


if __name__ == "__main__":
    main()
