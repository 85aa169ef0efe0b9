"""An audit in one step: of data, of probabilities made elsewhere; stopped, and gone on with."""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from test_cli import refused, ytilde
from ytilde import Classifier, audit
from ytilde.auditing import review
from ytilde.auditing.relabel import relabel
from ytilde.cli.console import Bar
from ytilde.cli.judging import forecast
from ytilde.data.readers import read_probabilities
from ytilde.errors import duration
from ytilde.runfolder import RunFolder

WORDS = ["--epochs", "4", "--batch-size", "32", "--backbone", "mlp:width=16,depth=1"]
WORDS += ["--method", "ce", "--optimizer", "adam", "--device", "cpu"]
N = 150


def write_digits(path: Path, ids: bool = True) -> pd.DataFrame:
    x, y = load_digits(return_X_y=True)
    given = np.where(np.arange(N) % 10 == 3, (y[:N] + 1) % 10, y[:N])
    frame = pd.DataFrame(x[:N], columns=[f"px{k}" for k in range(64)])
    if ids:
        frame.insert(0, "no", [f"{k:05d}" for k in range(N)])
    frame.assign(label=[f"n{k}" for k in given]).to_csv(path, index=False)
    return frame


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder with a table, and with its run that was fitted and audited in two steps."""
    folder = tmp_path_factory.mktemp("onestep")
    write_digits(folder / "d.csv")
    ytilde("fit", "d.csv", *WORDS, "--out", "two", cwd=folder)
    ytilde("audit", "two", "--folds", "3", cwd=folder)
    return folder


def outcome(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in ("issues.csv", "audit.json", "model.safetensors")]


# ---- data in one step ----------------------------------------------------------------------------


def test_one_step_is_fit_and_audit(digits, tmp_path):
    words = ["audit", digits / "d.csv", "--label", "label", *WORDS, "--folds", "3"]
    done = ytilde(*words, cwd=tmp_path)
    run = tmp_path / "runs" / "d-ce-1"
    assert outcome(run) == outcome(digits / "two")
    lines = done.stdout.splitlines()
    assert len([line for line in lines if re.fullmatch("about .*: 3 folds of 4 epochs", line)]) == 1
    assert not any("next: ytilde audit" in line for line in lines)
    assert f"next: ytilde review {run.relative_to(tmp_path)}" in lines
    again = ytilde(*words, cwd=tmp_path)  # finds its run, and trains nothing
    assert "Nothing was trained again" in again.stdout and "loss" not in again.stdout
    ytilde(*words, "--seed", "1", cwd=tmp_path)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["d-ce-1", "d-ce-2"]
    assert outcome(run)[::2] == outcome(digits / "two")[::2]


def test_a_run_that_was_fitted_is_taken_up(digits, tmp_path):
    ytilde("fit", digits / "d.csv", *WORDS, "--out", tmp_path / "r")
    done = ytilde("audit", digits / "d.csv", *WORDS, "--folds", "3", "--out", tmp_path / "r")
    assert "main 4/4" not in done.stdout.split("about")[0]  # the model is there
    assert (tmp_path / "r" / "issues.csv").read_bytes() == outcome(digits / "two")[0]
    words = ["audit", digits / "d.csv", *WORDS, "--out", tmp_path / "r", "--folds", "3"]
    refused(*words, "--lr", "0.5", match="to continue it, give --lr 0.002, or")


def test_what_an_audit_would_refuse_is_refused_before_training(digits, tmp_path):
    words = ["audit", digits / "d.csv", *WORDS, "--out", tmp_path / "r"]
    refused(*words, "--folds", "1", match="folds=1 must lie between 2 and")
    refused(*words, "--argilla", digits / "d.csv", match="is an input")
    outputs = ("--argilla", tmp_path / "r" / "report.html", "--force")
    refused(*words, *outputs, match="is a file of the run")
    for what in ("annotations", "features", "test", "encoder"):
        (tmp_path / what).write_text("precious")
        outputs = (f"--{what}", tmp_path / what, "--label-studio", tmp_path / what, "--force")
        refused(*words, *outputs, match="is an input and would be overwritten")
    refused(*words, "--fix-above", "2", match="--fix-above is 2")
    refused("audit", digits / "two", "--epochs", "3", match="leave out --epochs")
    refused("audit", digits / "two", "--label", "label", match="leave out --label")
    refused("audit", digits / "two" / "model.safetensors", match="a model without its data")
    refused("audit", tmp_path / "nowhere", match="There is no file, folder or data set")
    assert not (tmp_path / "r").exists()


def test_an_output_is_no_file_of_a_run_to_be(digits, tmp_path):
    """Nor where the folder of the run has the name that ytilde gives."""
    shutil.copy(digits / "d.csv", tmp_path / "d.csv")
    write_probabilities(tmp_path / "p.csv")
    of_table = ["p.csv", "--label", "animal", "--probabilities", "p_*"]
    for folder, words in {"d-ce-1": ["d.csv", *WORDS], "p-audit-1": of_table}.items():
        for name in ("issues.csv", "report.html"):
            outputs = ["--argilla", f"runs/{folder}/{name}"]
            refused("audit", *words, *outputs, match="is a file of the run", cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.csv", "p.csv"]


def test_force_replaces_outputs_and_not_this_same_run(digits, tmp_path):
    """A message advises --force for them: nobody's training or review may end by it."""
    shutil.copytree(digits / "two", tmp_path / "r")
    shutil.copy(digits / "d.csv", tmp_path / "d.csv")
    metrics = (tmp_path / "r" / "metrics.jsonl").read_bytes()
    write_probabilities(tmp_path / "p.csv")
    of_table = ["p.csv", "--label", "animal", "--probabilities", "p_*", "--out", "of-table"]
    ytilde("audit", *of_table, cwd=tmp_path)
    found = read_probabilities(tmp_path / "p.csv", "p_*", label="animal")
    log = review.Review(tmp_path / "of-table", found.data).log
    log.decide("1", "tab", 3, "keep", 0, 0)
    (tmp_path / "t.json").write_text("mine")
    of_data = ["d.csv", *WORDS, "--out", "r", "--folds", "3"]
    for words in (["audit", *of_data], ["audit", *of_table]):
        refused(*words, "--argilla", "t.json", match="t.json exists", cwd=tmp_path)
        ytilde(*words, "--argilla", "t.json", "--force", cwd=tmp_path)
        assert json.loads((tmp_path / "t.json").read_text())
        (tmp_path / "t.json").write_text("mine")
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == metrics
    assert len(review.Review(tmp_path / "of-table", found.data).log.current()) == 1
    ytilde("audit", *of_data, "--lr", "0.01", "--force", cwd=tmp_path)  # another run
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() != metrics


# ---- stopped, and gone on with -------------------------------------------------------------------


def stopped_after(records: int, monkeypatch):
    """Ctrl-C in the n-th epoch of the folds from here on."""
    seen = []

    def show(self, record):
        seen.append(record)
        if len(seen) == records:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "show", show)
    return seen


@pytest.fixture
def interrupts(monkeypatch):
    """Ctrl-C ends a command by an exception instead of the process."""
    monkeypatch.setattr(os, "_exit", lambda code: sys.exit(code))


def test_an_audit_goes_on_with_the_fold_and_the_epoch(digits, tmp_path, monkeypatch, interrupts):
    ytilde("fit", digits / "d.csv", *WORDS, "--out", tmp_path / "r")
    words = ["audit", tmp_path / "r", "--folds", "3"]
    with monkeypatch.context() as patch:
        stopped_after(7, patch)  # the third epoch of the second fold
        done = ytilde(*words, check=False)
    assert done.returncode == 130
    assert done.stderr == "ytilde: stopped; run the same command to continue\n"
    kept = sorted(p.name.split("-", 1)[1] for p in (tmp_path / "r" / "folds").iterdir())
    assert kept == ["1.safetensors", "2"]
    with monkeypatch.context() as patch:
        seen = stopped_after(0, patch)
        done = ytilde(*words)
    assert "2 of 3 folds of 4 epochs" in done.stdout
    assert [(r["fold"], r["epoch"]) for r in seen] == [
        (2, 3),
        (2, 4),
        *((3, k) for k in range(1, 5)),
    ]
    assert outcome(tmp_path / "r")[:2] == outcome(digits / "two")[:2]
    assert not (tmp_path / "r" / "folds").exists()


def test_a_fit_that_is_stopped_leaves_no_model_to_judge_by(
    digits, tmp_path, monkeypatch, interrupts
):
    words = ["audit", digits / "d.csv", *WORDS, "--folds", "3", "--out", tmp_path / "r"]
    with monkeypatch.context() as patch:
        stopped_after(2, patch)
        assert ytilde(*words, check=False).returncode == 130
    assert not (tmp_path / "r" / "model.safetensors").exists()
    ytilde(*words)
    assert outcome(tmp_path / "r") == outcome(digits / "two")


def test_damaged_and_foreign_folds(digits, tmp_path, monkeypatch, interrupts):
    ytilde("fit", digits / "d.csv", *WORDS, "--out", tmp_path / "r")
    words = ["audit", tmp_path / "r", "--folds", "3"]
    with monkeypatch.context() as patch:
        stopped_after(9, patch)
        ytilde(*words, check=False)
    first, second = sorted((tmp_path / "r" / "folds").glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-7])
    second.write_bytes((digits / "two" / "audit.safetensors").read_bytes())  # another's, and whole
    for checkpoint in (tmp_path / "r" / "folds").glob("*-3/checkpoint-*"):
        checkpoint.write_bytes(b"damaged")
    (tmp_path / "r" / "folds" / "mine.txt").write_text("a user's")
    done = ytilde(*words)
    assert f"{first} is not a ytilde file, or it is damaged" in done.stdout
    assert f"{second} belongs to another model; this fold was trained again" in done.stdout
    assert outcome(tmp_path / "r")[0] == outcome(digits / "two")[0]
    assert [p.name for p in (tmp_path / "r" / "folds").iterdir()] == ["mine.txt"]


def test_folds_of_other_settings_are_not_taken(digits, tmp_path, monkeypatch, interrupts):
    """Neither other data's nor those of another number of folds."""
    ytilde("fit", digits / "d.csv", *WORDS, "--out", tmp_path / "r")
    with monkeypatch.context() as patch:
        stopped_after(5, patch)
        ytilde("audit", tmp_path / "r", "--folds", "2", check=False)
    assert list((tmp_path / "r" / "folds").iterdir())
    ytilde("audit", tmp_path / "r", "--folds", "3")
    assert outcome(tmp_path / "r")[0] == outcome(digits / "two")[0]
    assert not (tmp_path / "r" / "folds").exists()


def test_the_files_of_folds_are_a_runs(tmp_path):
    fold = "folds/0123456789abcdef01234567-2"
    for name in (
        f"{fold}.safetensors", f"{fold}/checkpoint-1.safetensors", f"{fold}/stages/m.safetensors",
        f"{fold}/race.json", f"{fold}/pretrain/simclr-0a/lock", f"{fold}/cache/k-1.safetensors",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert RunFolder(tmp_path).owns(path)
    (tmp_path / fold / "notes.txt").touch()
    (tmp_path / "config.json").touch()
    RunFolder(tmp_path).clear(keep=(), below="folds")
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [
        "config.json",
        "notes.txt",
    ]


def test_one_audit_of_a_run_at_a_time(digits):
    with (digits / "two" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused("audit", digits / "two", "--folds", "3", match="another process is writing")


def test_an_audit_killed_at_random_ends_with_the_same_issues(digits, tmp_path):
    words = ["audit", digits / "d.csv", *WORDS, "--folds", "3", "--out", tmp_path / "r"]
    command = [sys.executable, "-m", "ytilde", *map(str, words)]
    rng = random.Random(0)
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        epochs = (line for line in process.stdout if "/4" in line)  # imports take longer than they
        for _ in range(rng.randint(1, 5)):
            next(epochs, None)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()
    ytilde(*words)
    assert outcome(tmp_path / "r")[::2] == outcome(digits / "two")[::2]


def test_a_forecast_and_one_bar_over_all_folds(monkeypatch, capsys):
    history = [
        {"stage": s, "epoch": e + 1, "epochs": 20, "seconds": 1.5} for s in "ab" for e in range(20)
    ]
    assert forecast(5, 5, history) == "about 4 minutes: 5 folds of 40 epochs"
    assert forecast(2, 5, history) == "about 2 minutes: 2 of 5 folds of 40 epochs"
    assert forecast(5, 5, []) == "5 folds"
    assert [duration(s) for s in (0.2, 80, 100, 7300)] == [
        "1 second",
        "80 seconds",
        "2 minutes",
        "2 hours",
    ]
    with Bar(history) as bar:
        for fold, stage, epoch in ((1, "a", 1), (1, "b", 20), (3, "b", 5)):
            record = {"stage": f"fold {fold} of 5: {stage}", "epoch": epoch, "epochs": 20}
            bar.show({**record, "fold": fold, "folds": 5})
            (task,) = bar.bar.tasks
            shown = {(1, "a"): 1, (1, "b"): 40, (3, "b"): 105}[fold, stage]
            assert (task.completed, task.total) == (shown, 200)


# ---- probabilities made elsewhere ----------------------------------------------------------------


def write_probabilities(path: Path, ids=None, **columns) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.arange(N) % 3
    given = np.where(np.arange(N) % 10 == 3, (truth + 1) % 3, truth)
    p = rng.dirichlet(np.ones(3), N) * 0.2 + 0.8 * np.eye(3)[truth]
    names = np.array(["cat", "dog", "a cow"])
    frame = pd.DataFrame(p, columns=[f"p_{name}" for name in names])
    frame["animal"] = names[given]
    frame = frame.assign(**({} if ids is None else {"code": ids}), **columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return p, names[given]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("ids", ["18 digits", "zeros", "texts"])
def test_probabilities_of_another_model(tmp_path, kind, ids):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    make = {
        "18 digits": lambda k: 10**17 + k,
        "zeros": lambda k: f"{k:06d}",
        "texts": lambda k: f"P-{k}/ä",
    }
    codes = [make[ids](k) for k in range(N)]
    size = [1234567890 + k // 2 for k in range(N)]
    p, given = write_probabilities(tmp_path / f"p.{kind}", codes, size=size)
    words = ["audit", f"p.{kind}", "--label", "animal", "--probabilities", "p_*"]
    done = ytilde(*words, "--fix-above", "0.5", cwd=tmp_path)
    assert f"column 'code' of p.{kind} differs in every row: taken as an id" in done.stdout
    run = tmp_path / "runs" / "p-audit-1"
    issues = pd.read_csv(run / "issues.csv", dtype=str)
    assert issues.id.tolist() == [str(codes[int(k)]) for k in issues["index"]]
    found = audit(p, given, names=["cat", "dog", "a cow"]).issues.set_index("index")
    quality = issues.set_index(issues["index"].astype(int)).label_quality.astype(float)
    assert np.allclose(quality.sort_index(), found.label_quality)
    flagged = issues[issues.is_label_issue == "True"]
    assert {int(k) % 10 for k in flagged["index"]} == {3}
    page = (run / "report.html").read_text()
    row = int(flagged["index"].iloc[0])
    assert str(codes[row]) in page and str(size[row]) in page and "p_cat" not in page
    found = read_probabilities(tmp_path / f"p.{kind}", "p_*", label="animal")
    view = review.Review(run, found.data, ids=found.ids, texts=found.texts)
    item = view.next("tab")["item"]
    assert item["id"] == str(codes[item["row"]])
    assert list(item["values"][0]) == ["size", str(size[item["row"]])]
    ytilde("review", run, "--export", "labels.csv", cwd=tmp_path)
    assert pd.read_csv(tmp_path / "labels.csv", dtype=str).id.tolist() == [str(c) for c in codes]
    rows, changed, _ = relabel(
        tmp_path / f"p.{kind}", run / "labels.csv", tmp_path / f"n.{kind}", "animal"
    )
    assert (rows, changed) == (N, len(flagged))


def test_a_random_sample_of_probabilities_counts(tmp_path):
    """The audit says to review a sample, and then counts by it, with no model of its own."""
    write_probabilities(tmp_path / "p.csv")
    asked = ("audit", "p.csv", "--probabilities", "p_*", "--label", "animal", "--out", "run")
    assert "next: ytilde review run --sample 100" in ytilde(*asked, cwd=tmp_path).stdout
    found = read_probabilities(tmp_path / "p.csv", "p_*", label="animal")
    view = review.Review(tmp_path / "run", found.data, sample=30)
    for item in view.sample:
        row = item["index"]
        view.log.decide(f"r{row}", "tab", row, "keep", item["given"], 0)
    assert "checked by hand: 30 rows" in ytilde(*asked, cwd=tmp_path).stdout


def test_probabilities_from_arrays(tmp_path):
    p, given = write_probabilities(tmp_path / "p.csv")
    names = np.array(["cat", "dog", "a cow"])
    y = np.searchsorted(names, given, sorter=names.argsort())
    y = names.argsort()[y]
    ids = np.arange(N) + 10**17
    np.savez(
        tmp_path / "whole.npz", probs=p, y=np.where(np.arange(N) == 5, -1, y), names=names, ids=ids
    )
    np.savez(tmp_path / "parts.npz", p_0=p[:, 0], p_1=p[:, 1], p_2=p[:, 2], y=y)
    whole = read_probabilities(tmp_path / "whole.npz", "probs")
    assert whole.data.names == tuple(names) and whole.ids == [str(k) for k in ids]
    assert whole.data.y.tolist() == [-1 if k == 5 else v for k, v in enumerate(y)]
    parts = read_probabilities(tmp_path / "parts.npz", "p_*")
    assert parts.data.names == ("0", "1", "2") and parts.data.y.tolist() == y.tolist()
    done = ytilde("audit", "whole.npz", "--probabilities", "probs", cwd=tmp_path)
    assert "1 of 150 rows has no label (-1)." in done.stdout


def test_probabilities_again_and_elsewhere(tmp_path):
    write_probabilities(tmp_path / "p.csv", range(N))
    words = ["audit", "p.csv", "--label", "animal", "--probabilities", "p_*"]
    ytilde(*words, cwd=tmp_path)
    before = (tmp_path / "runs" / "p-audit-1" / "issues.csv").read_bytes()
    ytilde(*words, cwd=tmp_path)
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["p-audit-1"]
    assert (tmp_path / "runs" / "p-audit-1" / "issues.csv").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "issues.csv").write_text("a user's")
    refused(*words, "--out", "mine", match="contains no run", cwd=tmp_path)
    refused(*words, "--out", "mine", "--force", match="contains no run", cwd=tmp_path)
    assert (tmp_path / "mine" / "issues.csv").read_text() == "a user's"
    ytilde(*words, "--out", "own", cwd=tmp_path)
    refused("predict", "own", "p.csv", "--out", "x.csv", match="it has no model", cwd=tmp_path)
    refused("audit", "own", match="it has no model", cwd=tmp_path)
    write_probabilities(tmp_path / "p.csv", range(1, N + 1), size=7)
    ytilde(*words, "--out", "own", cwd=tmp_path)  # the same labels and probabilities
    write_probabilities(tmp_path / "p.csv", animal="cat")
    refused(*words, "--out", "own", match="own was started with other data", cwd=tmp_path)
    refused(
        "review",
        "own",
        "--export",
        "l.csv",
        match="has changed since own was audited",
        cwd=tmp_path,
    )
    ytilde(*words, "--out", "own", "--force", cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--probabilities", "q_*"], "no column of p.csv is called q_*"),
        (["--probabilities", "p_cat"], "must have one star"),
        (["--probabilities", "p_c*"], "one column of p.csv is called p_c*"),
        (["--probabilities", "p_*", "--epochs", "3"], "leave out --epochs"),
        (["--probabilities", "p_*", "--method", "ce"], "leave out --method"),
        (["--probabilities", "p_*", "--id", "person"], "no id column 'person'"),
        (["--probabilities", "p_*", "--label", "label"], "no label column 'label'"),
        (["--probabilities", "*"], "no probability in"),
        (["--probabilities", "p_*d*"], "must have one star"),
    ],
)  # fmt: skip
def test_probabilities_that_cannot_be_read(tmp_path, words, match):
    write_probabilities(tmp_path / "p.csv", note="text")
    label = [] if "--label" in words else ["--label", "animal"]
    refused("audit", "p.csv", *label, *words, match=match, cwd=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize("end", ["csv", "npz"])
def test_probabilities_of_no_row(tmp_path, end):
    (tmp_path / "p.csv").write_text("p_a,p_b,label\n")
    np.savez(tmp_path / "p.npz", p_a=np.zeros(0), p_b=np.zeros(0), label=np.zeros(0, int))
    words = ["audit", f"p.{end}", "--probabilities", "p_*", "--label", "label"]
    refused(*words, match="There are no rows in", cwd=tmp_path)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"animal": "horse"}, "which is not one of the 3 classes"),
        ({"p_cat": 0.9}, "do not sum to 1"),
        ({"p_cat": np.nan}, "no probability in 150 rows (0, 1,"),
        ({"p_cat": -0.1}, "no probability in 150 rows"),
    ],
)
def test_wrong_probabilities_are_told_by_their_rows(tmp_path, columns, match):
    write_probabilities(tmp_path / "p.csv", **columns)
    words = ["audit", "p.csv", "--label", "animal", "--probabilities", "p_*"]
    refused(*words, match=match, cwd=tmp_path)


def test_folds_kept_from_python(digits, tmp_path):
    """The same through Classifier.audit_data: a folder, and who hears how much is left."""
    found = pd.read_csv(digits / "d.csv")
    from ytilde.readers import read

    data = read(found, label="label").data
    clf = Classifier("ce", "mlp:width=16,depth=1", epochs=2, device="cpu")
    left = []

    def stop(record):
        if record["fold"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="interrupted"):
        clf.audit_data(data, 3, stop, folder=tmp_path, on_start=left.append)
    result = clf.audit_data(data, 3, folder=tmp_path, on_start=left.append)
    assert left == [3, 2] and not list(tmp_path.iterdir())
    assert result.issues.equals(clf.audit_data(data, 3).issues)
    assert json.loads(result.issues.to_json())


def test_fixing_that_may_harm_is_said_to(tmp_path):
    """Of labels that a model contradicts in 40 % of the rows, it may be the model that is wrong."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    right = np.clip(0.85 + 0.1 * rng.normal(size=400), 0.51, 0.99)
    y = np.where(rng.random(400) < 0.4, 1 - truth, truth)
    p1 = np.where(truth == 1, right, 1 - right)
    pd.DataFrame({"p_0": 1 - p1, "p_1": p1, "y": y}).to_csv(tmp_path / "p.csv", index=False)
    words = ["audit", "p.csv", "--label", "y", "--probabilities", "p_*", "--fix-above"]
    said = ytilde(*words, "0.5", "--out", "a", cwd=tmp_path).stdout
    assert "may break more labels than it fixes" in said and "0 of 400 labels fixed" not in said
    said = ytilde(*words, "0.999", "--out", "b", cwd=tmp_path).stdout
    assert "may break more labels than it fixes" not in said and "0 of 400 labels fixed" in said
