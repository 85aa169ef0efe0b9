"""The contract of the file system, by random sequences of commands in a folder full of files.

Whatever is typed, in any order, whatever lies in the way and whenever a process is killed: every
file that ytilde did not make keeps its bytes, its mode and its type, a refused command changes
nothing at all, and no half-written file stands under a final name. `make fuzz` runs 300 sequences.
"""

import csv
import io
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import stat
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from test_cli import ytilde
from ytilde import checkpoint
from ytilde.cli import main
from ytilde.runfolder import run_of

SEQUENCES = max(20, round(0.03 * int(os.environ.get("YTILDE_FUZZ", "0"))))
STEPS = 25  # of a sequence
KILLED = 0.25  # share of the commands
QUICK = ["--epochs", "2", "--batch-size", "16", "--backbone", "mlp:width=4,depth=1"]
OUTPUTS = ("--out", "--export", "--label-studio", "--argilla", "--markdown", "--html")
OUTPUTS += ("--export-votes",)
TABLE = "digits_temperature"
PARQUET = find_spec("pyarrow") is not None


# ---- what lies on the disk -----------------------------------------------------------------------


def look(path: Path) -> tuple:
    """Type, mode and content of what has this name; a link is not followed."""
    found = path.lstat()
    kind = stat.S_IFMT(found.st_mode)
    content: object = None
    if stat.S_ISREG(kind):
        content = path.read_bytes()
    elif stat.S_ISLNK(kind):
        content = os.readlink(path)
    elif stat.S_ISCHR(kind):
        content = found.st_rdev
    return kind, stat.S_IMODE(found.st_mode), content


def tree(root: Path) -> dict[Path, tuple]:
    return {path: look(path) for path in sorted(root.rglob("*"))}


def table(path: Path, rows: int, rng: random.Random) -> None:
    lines = [(rng.gauss(y, 1), rng.gauss(-y, 1), "cat" if y else "dog") for y in [0, 2] * rows]
    text = "".join(f"{a:.3f},{b:.3f},{label}\n" for a, b, label in lines[:rows])
    path.write_text("a,b,label\n" + text)


def crowd(root: Path, rows: int, rng: random.Random) -> None:
    """What annotators say of a table's rows, what a model says, and embeddings."""
    votes = [(row, who, rng.choice(["cat", "dog"])) for row in range(rows) for who in "uvw"]
    lines = "".join(f"{row},{who},{label}\n" for row, who, label in votes)
    (root / "votes.csv").write_text("item,annotator,label\n" + lines)
    for name, labels in (("p.csv", "label"), ("several.csv", "y_cat,y_dog")):
        with (root / name).open("w") as file:
            file.write(f"p_cat,p_dog,{labels}\n")
            for row in range(rows):
                p = round(rng.random(), 3)
                given = ("cat", "dog")[row % 2] if labels == "label" else f"{row % 2},{row % 3 % 2}"
                file.write(f"{p},{1 - p:.3f},{given}\n")
    vectors = np.array([[rng.gauss(0, 1) for _ in range(3)] for _ in range(rows)])
    np.save(root / "vectors.npy", vectors)
    (root / "parts").mkdir()
    for part in range(2 if PARQUET else 0):
        frame = pd.read_csv(root / "p.csv")[part::2]
        frame.to_parquet(root / "parts" / f"{part}.parquet")


def settle(root: Path) -> None:
    """The user's own files, of every kind that a file system has."""
    rng = random.Random(0)
    table(root / "d.csv", 60, rng)
    table(root / "e.csv", 40, rng)
    table(root / "long.csv", 100, rng)
    array = np.array([[rng.gauss(0, 1), k % 2] for k in range(40)])
    np.savez(root / "z.npz", x=array, y=array[:, 1].astype(int))
    for folder in (
        "photos/cat",
        "photos/dog",
        "project/src",
        "project/.git",
        "readonly",
        "results",
    ):
        (root / folder).mkdir(parents=True)
    for k in range(8):
        pixels = np.full((8, 8, 3), 30 * k, dtype=np.uint8)
        Image.fromarray(pixels).save(root / "photos" / ("cat", "dog")[k % 2] / f"{k}.png")
    texts = {
        "mine.csv": "name,age\nAda,36\n", "mine.json": '{"precious": 1}', "mine.npz": "PK",
        "mine.onnx": "onnx", "mine.safetensors": "weights", "private.csv": "a,b\n", "t.md": "# T",
        "locked.csv": "do not touch", "readonly/inside.csv": "a,b\n", "project/config.json": "{}",
        "project/src/main.py": "print(1)", "project/.git/config": "[core]", "empty.csv": "",
        "photos/notes.csv": "1,blurred\n", "photos/more.npz": "PK",
        "project/metrics.jsonl": '{"mine": 1}\n', "project/model.safetensors": "mine",
        f"results/{TABLE}.jsonl": "my own notes\n", "notes.txt": "mine", "script.sh": "#!",
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).write_text(text)
    modes = {"private.csv": 0o600, "script.sh": 0o755, "locked.csv": 0o444, "mine.csv": 0o640}
    modes |= {"mine.json": 0o600, "mine.npz": 0o640, "mine.safetensors": 0o600, "t.md": 0o666}
    for name, mode in modes.items():
        (root / name).chmod(mode)
    (root / "readonly").chmod(0o555)
    for name, target in (
        ("link.csv", "mine.csv"),
        ("dangling.csv", "sub/there.csv"),
        ("loop.csv", "loop.csv"),
        ("linked", "project"),
        ("data-link.csv", "d.csv"),
    ):
        (root / name).symlink_to(target)
    os.link(root / "mine.csv", root / "hard.csv")
    crowd(root, 60, random.Random(1))
    os.mkfifo(root / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(root)  # the name of a socket must be short
        listener.bind("sock")
        os.chdir(before)
    try:
        os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        (root / "null").symlink_to("/dev/null")


# ---- is a file whole? ----------------------------------------------------------------------------


def csv_rows(path: Path) -> None:
    text = path.read_text()
    assert text.endswith("\n")
    assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1


def json_lines(path: Path) -> None:
    for line in path.read_text().splitlines()[:-1]:  # the last may be cut: readers pass it over
        if line.strip():
            json.loads(line)


def arrays(path: Path) -> None:
    with np.load(path, allow_pickle=False) as file:
        assert all(len(file[name]) is not None for name in file.files)


def database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def graph(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnx.checker.check_model(onnx.load(path))


def ends(*texts: str):
    def check(path: Path) -> None:
        assert path.read_text().rstrip().endswith(texts)

    return check


WHOLE = {
    ".csv": csv_rows, ".json": lambda path: json.loads(path.read_bytes()), ".jsonl": json_lines,
    ".safetensors": checkpoint.load, ".npz": arrays, ".sqlite": database, ".onnx": graph,
    ".html": ends("</html>"), ".xml": ends("</View>"), ".md": ends(""), ".txt": ends(""),
    ".parquet": pd.read_parquet,
}  # fmt: skip
LOCKS = (".lock", "lock")


def is_temporary(path: Path) -> bool:
    return path.name.startswith(".new-")


# ---- the model -----------------------------------------------------------------------------------


class World:
    """A folder with the user's files and a run; what the user owns, and what ytilde was told to
    write."""

    def __init__(self, root: Path, template: Path, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)
        settle(root)
        self.own = tree(root)
        shutil.copytree(template, root / "run")
        self.add("run/notes.txt", b"mine")
        self.add("run/stages/mine.txt", b"mine")
        self.kinds: dict[Path, str] = {}  # how each output of a command ends, whatever its name
        self.outputs: list[str] = []
        self.steps: list[str] = []
        self.pipe = os.open(root / "pipe.csv", os.O_RDWR | os.O_NONBLOCK)  # someone reads it

    def close(self) -> None:
        os.close(self.pipe)
        (self.root / "readonly").chmod(0o755)

    def add(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.own[path] = look(path)

    # ---- what is typed

    def output(self, suffix: str) -> str:
        """A name for an output: new, the user's, a run's, an earlier one, or no name for a file."""
        choose = self.rng.choice
        new = [
            f"{choose(['', 'sub/', 'sub/deep/', 'readonly/', 'run/'])}new{self.rng.randrange(4)}"
        ]
        mine = [
            str(path.relative_to(self.root))
            for path in self.own
            if path.suffix == suffix or path.name in ("null", "sock", "loop.csv", "project")
        ]
        runs = [f"run/{name}" for name in ("config.json", "issues.csv", "labels.csv", "audit.json")]
        runs += ["run/model.safetensors", "run/stages/x.csv", "run/predictions.csv"]
        strange = ["mine.csv/below", "/proc/none", ".", "run", "dangling.csv", "pipe.csv"]
        groups = [[name + suffix for name in new], mine, self.outputs or mine, runs, strange]
        return choose(self.rng.choices(groups, weights=[12, 5, 4, 2, 2])[0])

    def command(self) -> tuple[list[str], list[tuple[str, str]]]:
        """A command, and its outputs with how they end."""
        rng, choose = self.rng, self.rng.choice
        runs = [name for name in ("run2", "sub/run") if (self.root / name).is_dir()]
        run = choose([*["run"] * 8, *runs * 3, "project", "nothing"])
        others = [name for name in self.outputs if name.endswith((".csv", ".npz"))]
        others += ["e.csv", "z.npz", "photos", "photos", "photos", "data-link.csv", "pipe.csv"]
        source = choose([*["d.csv"] * 20, *others])
        force = ["--force"] * (rng.random() < 0.3)
        name = rng.choices(
            ["fit", "audit", "predict", "review", "relabel", "noise", "pretrain", "diagnose",
             "report", "bench", "export", "consensus", "judge", "one step"],
            weights=[6, 3, 4, 3, 3, 3, 2, 1, 2, 1, 0.3, 2, 3, 2],
        )[0]  # fmt: skip
        beside = [["--annotations", "votes.csv"], ["--features", "vectors.npy"]]
        if name == "fit":
            out = self.folder("run")
            how = choose([[], ["--force"], ["--force"], ["--resume"]])
            more = ["--test", "e.csv"] if rng.random() < 0.2 else []
            more = choose(beside) if rng.random() < 0.1 else more
            method = ["--method", choose(["ce", "ce", "elr", "ptd"])]
            return ["fit", source, *QUICK, *method, *more, "--out", out, *how], []
        if name == "one step":
            more = choose([*beside, []])
            words = ["audit", source, *QUICK, "--method", "ce", "--folds", "2", *more]
            words, outs = self.tasks([*words, "--out", self.folder("run2")])
            return [*words, *force], outs
        if name == "judge":
            return self.judge(force)
        if name == "consensus":
            out = self.output(".csv")
            stem = os.path.splitext(out)[0]
            tables = [f"{stem}-{kind}.csv" for kind in ("annotators", "matrices", "votes")]
            outs = [*((each, ".csv") for each in (out, *tables)), (f"{stem}.html", ".html")]
            votes = choose([*["votes.csv"] * 5, source, "mine.csv"])
            return ["consensus", votes, "--out", out, *force], outs
        if name == "audit":
            words, outs = self.tasks(["audit", run, "--folds", choose(["0", "0", "2"])])
            return [*words, *["--fix-above", "0.5"] * (rng.random() < 0.6), *force], outs
        if name == "report":
            flag, suffix = choose([("--markdown", ".md"), ("--html", ".html")])
            out = self.output(suffix)
            return ["bench", "report", TABLE, flag, out, *force], [(out, suffix)]
        if name == "bench":
            folder = choose(["results", "runs/tiny", "mine.csv", "sub"])
            words = ["--only", "ce", "--scale", "tiny", "--seeds", "1", "--results", folder]
            return ["bench", "run", TABLE, *words], []
        suffix = {"noise": ".npz", "pretrain": ".safetensors", "diagnose": ".json"}.get(
            name, ".csv"
        )
        suffix = ".onnx" if name == "export" else suffix
        out = source if rng.random() < 0.1 else self.output(suffix)
        if source == "photos" and rng.random() < 0.5:
            inside = ["more.npz"] if name == "noise" else ["cat/0.png", "notes.csv"]
            out, force = f"photos/{choose(inside)}", ["--force"]
        words = {
            "predict": ["predict", run, source],
            "review": ["review", run, choose(["--export", "--export-votes"]), out],
            "relabel": ["relabel", source, choose([*["run/labels.csv"] * 4, "mine.csv", out])],
            "noise": ["noise", source, "--kind", "symmetric:0.2"],
            "pretrain": ["pretrain", source, *QUICK],
            "diagnose": ["diagnose", choose(["long.csv", source])],
            "export": ["export", run],
        }[name]
        words += [] if name == "review" else ["--out", out]
        return [*words, *force], [(out, suffix)]

    def folder(self, usual: str) -> str:
        """A folder for a run: a new one, a run's, the user's, or no name for a folder."""
        places = ["run2", "sub/run", "project", "linked", "readonly/run", "photos", "run"]
        places += ["mine.csv", ".", "dangling.csv", "run/inner", "run/stages", "sock", "null"]
        return self.rng.choice([*[usual, *places[:2]] * 4, *places])

    def tasks(self, words: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """An audit that writes for labelling tools, perhaps."""
        outs: list[tuple[str, str]] = []
        if self.rng.random() < 0.4:
            out = self.output(".json")
            words = [*words, "--label-studio", out]
            outs += [(out, ".json"), (f"{os.path.splitext(out)[0]}.xml", ".xml")]
        if self.rng.random() < 0.4:
            out = self.output(".json")
            words, outs = [*words, "--argilla", out], [*outs, (out, ".json")]
        return words, outs

    def judge(self, force: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """An audit of probabilities: of one label a row, of several, or in parts."""
        kind = self.rng.choice(["one", "one", "several", "parts"])
        words, outs = ["audit", "p.csv", "--probabilities", "p_*"], []
        if kind == "parts" and PARQUET:
            inside = ["parts/0.parquet", "parts/new.parquet"]
            out = self.output(".parquet") if self.rng.random() < 0.8 else self.rng.choice(inside)
            stem = os.path.splitext(out)[0]
            outs = [(out, ".parquet"), (f"{stem}.json", ".json"), (f"{stem}.html", ".html")]
            return ["audit", "parts", *words[2:], "--out", out, *force], outs
        if kind == "several":
            words = ["audit", "several.csv", *words[2:], "--label", "y_*"]
        words += ["--out", self.folder("judged")]
        words, outs = self.tasks(words) if kind == "one" else (words, outs)
        return [*words, *force], outs

    def mischief(self) -> str:
        """Something that the user does in between, to which run."""
        rng = self.rng
        run = self.root / rng.choice(["run", "run", "run2", "sub/run"])
        name = rng.choice(
            ["report.html", "issues.csv", "model.safetensors", "metrics.jsonl", "review.sqlite",
             "stages", ".lock", "checkpoint-0.safetensors", "summary.json", "audit.json",
             "labels.csv"]
        )  # fmt: skip
        kind = rng.choice(["note", "link", "link", "folder", "edit", "gone", "mode"])
        self.steps.append(f"# {kind} {run.name}/{name}")
        told = str(run.relative_to(self.root))
        if not run.is_dir() or run.is_symlink():
            return told
        path = run / name
        if kind == "note":
            self.add(f"{told}/own-{rng.randrange(3)}.txt", b"my note")
        elif kind == "mode" and self.outputs:
            output = Path(os.path.realpath(self.root / rng.choice(self.outputs)))
            if output.is_file() and output not in self.own:
                output.chmod(rng.choice([0o600, 0o640, 0o666]))
        elif kind == "gone" and path.is_file():
            path.unlink()
            self.own.pop(path, None)
        elif kind == "edit" and path.is_file() and not path.is_symlink():
            path.write_bytes(path.read_bytes()[:-1])  # a damaged file of the run is the run's still
            self.kinds[path] = "damaged"
        elif kind in ("link", "folder"):
            if path.is_symlink() or path.is_file():
                path.unlink()
            if not path.exists():
                if kind == "link":
                    path.symlink_to(self.root / "mine.csv")
                else:
                    path.mkdir()
                    self.add(f"{told}/{name}/mine", b"mine")
                self.own[path] = look(path)
        return told

    # ---- what must hold

    def step(self) -> None:
        words, outs = self.command()
        if self.rng.random() < 0.2:
            run = self.mischief()
            if self.rng.random() < 0.5:  # and then goes on with it
                again = [["audit", run, "--folds", "0", "--fix-above", "0.5"]]
                again += [["fit", "d.csv", *QUICK, "--out", run, "--force"]]
                words, outs = self.rng.choice(again), []
        killed_after = self.rng.uniform(0, 0.4) if self.rng.random() < KILLED else None
        end = "" if killed_after is None else f"  # killed after {killed_after:.3f} s"
        self.steps.append("ytilde " + " ".join(words) + end)
        before = tree(self.root)
        allowed = self.allowed(words, outs)
        targets = [Path(os.path.realpath(self.root / out)) for out, _ in outs]
        of_runs = [path for path in targets if words[0] != "audit" and run_of(path)]
        if killed_after is None:
            done = ytilde(*words, cwd=self.root, check=False)
            code = done.returncode
            assert code in (0, 1, 2), (code, done)
            assert code != 2 or len(done.stderr.strip().splitlines()) == 1, done.stderr
            self.steps[-1] += f"  # {code} {done.stderr.strip()[:120]}"
        else:
            code = run_and_kill(words, self.root, killed_after)
        with suppress(BlockingIOError):  # nothing was written into it
            os.read(self.pipe, 1 << 16)
        after = tree(self.root)
        if code == 2:
            same = {p: s for p, s in after.items() if not self.is_lock(p)}
            assert same == {p: s for p, s in before.items() if not self.is_lock(p)}, "was refused"
        for path in of_runs:
            assert after.get(path) == before.get(path), f"{path}, a file of a run, was changed"
        for path, state in list(self.own.items()):
            now = after.get(path)
            if path in allowed and code != 2 and now != state:
                assert now and now[:2] == state[:2], f"{path} has another type or mode"
                del self.own[path]
            else:
                assert now == state, f"{path} was changed"
        if code == 0:
            self.outputs += [out for out, _ in outs if out not in self.outputs]
        for out, suffix in outs:
            path = Path(os.path.realpath(self.root / out))
            if path in before:
                assert after[path][:2] == before[path][:2], f"{path} has another type or mode"
            if after.get(path) != before.get(path):
                self.kinds[path] = suffix
        self.check_whole(before, after, killed_after is not None)

    def allowed(self, words: list[str], outs: list[tuple[str, str]]) -> set[Path]:
        """The user's files that a command was told to replace, and empty ones; never its inputs."""
        targets = {Path(os.path.realpath(self.root / out)) for out, _ in outs}
        told = {p for p in targets if p.is_file() and ("--force" in words or not p.stat().st_size)}
        inputs = [word for k, word in enumerate(words) if words[k - 1] not in OUTPUTS]
        inputs += ["d.csv"] if "run" in words else []  # what that run was trained on
        never = {Path(os.path.realpath(self.root / word)) for word in inputs} - {self.root}
        return {path for path in told if not never & {path, *path.parents}}

    def is_lock(self, path: Path) -> bool:
        return path.name.endswith(LOCKS) and path.is_file() and not path.stat().st_size

    def check_whole(self, before: dict, after: dict, killed: bool) -> None:
        for path, state in after.items():
            if not stat.S_ISREG(state[0]) or path in self.own or before.get(path) == state:
                continue
            if is_temporary(path):
                assert killed or path in before, f"{path} was left"
            elif not self.is_lock(path) and not path.name.endswith("-journal"):
                suffix = self.kinds.get(path, path.suffix)
                if suffix == "damaged" and path.suffix != ".jsonl":  # which is added to
                    suffix = path.suffix
                assert suffix in WHOLE or suffix == "damaged", f"what is {path}?"
                try:
                    WHOLE.get(suffix, ends(""))(path)
                except Exception as error:
                    raise AssertionError(f"{path} is not whole: {error!r}") from error


def run_and_kill(words: list[str], root: Path, seconds: float) -> int | None:
    """The exit code, or None for a command that was killed before its end."""
    pid = os.fork()  # imports would take longer than the command
    if not pid:
        try:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1), os.dup2(silent, 2)
            os.chdir(root)
            sys.argv = ["ytilde", *words]
            main()
            os._exit(0)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException:
            os._exit(70)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            assert code in (0, 1, 2), f"exit code {code}"
            return code
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run, audited, which every sequence begins with."""
    root = tmp_path_factory.mktemp("template")
    table(root / "d.csv", 60, random.Random(0))
    ytilde("fit", "d.csv", *QUICK, "--method", "ce", "--out", "run", cwd=root)
    ytilde("audit", "run", "--folds", "2", "--fix-above", "0.5", cwd=root)
    return root / "run"


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_files_of_the_user_are_left_alone(seed, template, tmp_path):
    root = tmp_path / "w"
    root.mkdir()
    world = World(root, template, seed)
    try:
        for _ in range(STEPS):
            world.step()
    except Exception as error:
        commands = "\n  ".join(world.steps)
        raise AssertionError(f"seed {seed}: {error}\n  {commands}") from error
    finally:
        world.close()
