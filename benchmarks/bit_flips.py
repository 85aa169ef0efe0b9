"""Single bit flips in every file that ytilde reads back: the right answer, or one sentence.

    python benchmarks/bit_flips.py [--flips 10000] [--files config.json,...] [--seed 0]
                                   [--workers 2] [--out results/bit_flips.jsonl]

After each flip the commands that read the file run, in this process, in a fresh copy of the
folder. What they answer is compared with the answer without the flip. Outcomes:

    same      the same bytes
    noted     the same, without a line that is damaged, which a note names
    refused   one sentence, exit code 2
    defect    anything else: a traceback, another answer without a word

Files for people that no command reads (report.html, predictions.csv, summary.json) are
left out, and so is labels.csv, which people may edit. Exit code 1 if there is a defect.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer.main

from kill_resume import make_data
from ytilde import cli
from ytilde.auditing import review as reviewing
from ytilde.versions import commit, versions

typer.main.get_command = cache(typer.main.get_command)  # a command line is not made anew each time
SMALL = ["--epochs", "3", "--batch-size", "40", "--device", "cpu", "--lr", "0.01"]
SMALL += ["--backbone", "mlp:width=8,depth=1"]
FIT = ["fit", "data.csv", *SMALL, "--out"]
ENCODER = ["simclr:epochs=2,batch_size=40"]
TABLE = "digits_temperature"
RUNS = {  # by folder
    "run": [*FIT, "run", "--method", "co_teaching"],
    "auto": [*FIT, "auto", "--method", "auto"],
    "race": [*FIT, "race", "--method", "ln", "--tau", "auto"],
    "begun": [*FIT, "begun", "--method", "ce"],
    "encoded": [*FIT, "encoded", "--method", "ce", "--encoder", "encoder.safetensors"],
    "pretrained": [*FIT, "pretrained", "--method", "ce", "--pretrain", *ENCODER],
}
AUDIT = ["audit", "run", "--folds", "2", "--fix-above", "0.5"]
BENCH = ["bench", "run", TABLE, "--only", "ce", "--scale", "tiny", "--seeds", "2"]
REPORT = ["bench", "report", TABLE, "--scale", "tiny", "--results", "results"]
MADE = ["model.safetensors", "predictions.csv"]  # by a fit


class Reader(NamedTuple):
    """A command that reads a file, and the files that are its answer; none: what it says."""

    words: list[str]
    outputs: list[str]


def resumed(folder: str) -> Reader:
    return Reader([*RUNS[folder], "--resume"], [f"{folder}/{name}" for name in MADE])


PREDICT = Reader(["predict", "run", "data.csv", "--out", "p.csv", "--probabilities"], ["p.csv"])
AUDITED = Reader(AUDIT, [f"run/{name}" for name in ("issues.csv", "labels.csv", "audit.json")])
PAGE = Reader(AUDIT, [*AUDITED.outputs, "run/report.html"])
REVIEW = Reader(["review", "run"], ["shown.json"])
SAMPLED = Reader(["review", "run", "--sample", "20"], ["shown.json"])
EXPORT = Reader(["review", "run", "--export", "decided.csv"], ["decided.csv"])
FLIPS: dict[str, tuple[int, list[Reader]]] = {  # of 10,000, and who reads the file
    "run/config.json": (1600, [PREDICT, PAGE, REVIEW, EXPORT, resumed("run")]),
    "run/model.safetensors": (1600, [PREDICT, AUDITED]),
    "run/metrics.jsonl": (500, [PAGE]),
    "run/audit.json": (1200, [REVIEW, EXPORT]),
    "run/audit.safetensors": (250, [AUDITED]),
    "run/review.sqlite": (1500, [REVIEW, EXPORT]),
    "run/issues.csv": (400, [SAMPLED]),
    "run/sample.safetensors": (300, [SAMPLED, AUDITED]),
    "run/stages/main.safetensors": (300, [resumed("run")]),
    "run/cache/*.safetensors": (250, [resumed("run")]),
    "begun/checkpoint-0.safetensors": (250, [resumed("begun")]),
    "begun/checkpoint-1.safetensors": (250, [resumed("begun")]),
    "auto/methods.json": (200, [resumed("auto")]),
    "race/race.json": (200, [resumed("race")]),
    "pretrained/pretrain/*/encoder.safetensors": (300, [resumed("pretrained")]),
    "encoder.safetensors": (500, [resumed("encoded")]),
    f"results/{TABLE}.jsonl": (
        1100,
        [
            Reader([*REPORT, "--markdown", "t.md"], ["t.md"]),
            Reader(["bench", "list", TABLE, "--scale", "tiny", "--results", "results"], []),
        ],
    ),
}


# ---- a command -----------------------------------------------------------------------------------


class Answer(NamedTuple):
    code: int | str  # a text: the traceback
    said: str
    error: str
    outputs: dict[str, Any]


def asked(reader: Reader, folder: Path) -> Answer:
    """What a command answers in this folder."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["ytilde", *reader.words]
    os.chdir(folder)
    for name in reader.outputs:  # what stands there is no answer
        if name != "run/audit.json":
            (folder / name).unlink(missing_ok=True)
    try:
        with redirect_stdout(out), redirect_stderr(error):
            cli.main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        code = traceback.format_exc()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    outputs = {} if code else {name: _content(folder / name) for name in reader.outputs}
    return Answer(code, out.getvalue(), error.getvalue(), outputs)


def _content(path: Path) -> Any:
    """An audit is known by its content: whether folds were trained again is told in its notes."""
    if path.name == "audit.json":
        content = json.loads(path.read_bytes())
        return {key: content[key] for key in content if key not in ("notes", "digest")}
    return path.read_bytes() if path.exists() else None


def outcome(found: Answer, right: Answer) -> str:
    if found.code == 2 and len(found.error.strip().splitlines()) == 1:
        return "refused"
    if found.code != right.code:
        return "defect"
    lines = found.said.splitlines()
    if any(line.startswith("note: ") and "damaged line" in line for line in lines):
        return "noted"
    same = found.outputs == right.outputs if right.outputs else found.said == right.said
    return "same" if same else "defect"


def show(review: Any, port: int, say: Callable[[str], None]) -> None:
    """In the place of the server: everything that its page would show."""
    places = range(len(review.issues))
    shown = [review.overview(), review.progress(), *(review.at(k) for k in places)]
    Path("shown.json").write_text(json.dumps(shown))


# ---- the folder ----------------------------------------------------------------------------------


def make_template(folder: Path) -> None:
    """Runs of all kinds, an audit, a review, an encoder, results."""
    make_data(folder, rows=80, pixels=slice(26, 38))
    commands = [["pretrain", "data.csv", *SMALL[:2], *SMALL[8:], "--out", "encoder.safetensors"]]
    commands += [*RUNS.values(), AUDIT, [*BENCH, "--results", "results"]]
    for words in commands:
        answer = asked(Reader(words, []), folder)
        if answer.code:
            raise SystemExit(f"{words}: {answer.code} {answer.error}")
    session = []

    def decide(review: Any, port: int, say: Callable[[str], None]) -> None:
        session.append(review)
        for k, issue in enumerate(review.issues):
            asked = {"request": f"r{k}", "tab": "t", "kind": "open", "row": issue["index"]}
            review.decide(asked | {"action": ["accept", "keep", "skip"][k % 3], "seen": 0})

    reviewing.serve = decide
    asked(SAMPLED, folder)
    session.clear()
    reviewing.serve = show
    begun = folder / "begun"  # as if killed in its last epoch
    for name in (*MADE, "summary.json", "stages/main.safetensors"):
        (begun / name).unlink()
    asked(PREDICT, folder)


def flip(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"byte {place}, bit {bit}"


def part(job: tuple[Path, str, int, int, int]) -> tuple[str, Counter[str], list[str]]:
    """Some flips of one file; their outcomes, each the worst of its readers'; the defects."""
    template, name, number, flips, seed = job
    torch.set_num_threads(1)
    reviewing.serve = show
    rng, counts, defects = random.Random(f"{seed} {name} {number}"), Counter(), []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "w"

        def fresh() -> Path:
            os.chdir("/")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(template, folder, symlinks=True)
            return next(iter(sorted(folder.glob(name))))

        readers = FLIPS[name][1]
        right = []
        for reader in readers:
            fresh()
            right.append(asked(reader, folder))
            assert right[-1].code == 0, right[-1]
        for _ in range(flips):
            path = fresh()
            where = flip(path, rng)
            damaged = path.read_bytes()
            worst = "same"
            for k, reader in enumerate(readers):
                if k:
                    fresh().write_bytes(damaged)
                found = asked(reader, folder)
                result = outcome(found, right[k])
                if result == "defect":
                    told = found.code if isinstance(found.code, str) else found.said[-300:]
                    defects.append(f"{name}, {where}: {' '.join(reader.words[:2])}: {told}")
                order = ("same", "noted", "refused", "defect")
                worst = max(worst, result, key=order.index)
            counts[worst] += 1
        os.chdir("/")
    return name, counts, defects


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--files", default="", help="only those whose names hold one of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, here = time.monotonic(), Path.cwd()
    names = [n for n in FLIPS if any(each in n for each in options.files.split(","))]
    share = options.flips / sum(FLIPS[name][0] for name in names)
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    every = []
    with tempfile.TemporaryDirectory() as made:
        template = Path(made) / "template"
        template.mkdir()
        make_template(template)
        os.chdir(here)
        jobs = []
        for name in names:
            flips = max(1, round(share * FLIPS[name][0]))
            sizes = [len(range(k, flips, -(-flips // 50))) for k in range(-(-flips // 50))]
            jobs += [(template, name, k, size, options.seed) for k, size in enumerate(sizes)]
        with multiprocessing.get_context("fork").Pool(options.workers) as pool:
            for name, counts, defects in pool.imap_unordered(part, jobs):
                outcomes[name] += counts
                every += defects
                for defect in defects:
                    print(f"defect: {defect}", flush=True)
    for name in names:
        print(f"{name:45} {dict(outcomes[name])}")
    total = sum(outcomes.values(), Counter())
    line = {"benchmark": "bit_flips", "flips": total.total(), **total}
    line |= {"files": {name: dict(counts) for name, counts in outcomes.items()}}
    line |= {"seed": options.seed, "seconds": round(time.monotonic() - began)}
    line |= {"commit": commit(), "versions": versions()}
    print(json.dumps(line))
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    sys.exit(bool(every))


if __name__ == "__main__":
    main()
