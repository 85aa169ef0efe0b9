"""The command line: what users type, and what they get for wrong input."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import make_blobs

from ytilde import Classifier, __version__, cli, datasets, list_methods
from ytilde.bench import pool
from ytilde.cli.runs import Run
from ytilde.data import BadInput, readers
from ytilde.encoder import Encoder
from ytilde.engine import Diverged

FAST = [
    "--epochs",
    "3",
    "--batch-size",
    "32",
    "--backbone",
    "mlp:width=16,depth=1",
    "--method",
    "ce",
]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def ytilde(*words, cwd=None, check=True, columns=200):
    """Run the command in this process (imports cost seconds); a traceback is a failure."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv, Path.cwd(), os.environ.get("COLUMNS", "")
    sys.argv, os.environ["COLUMNS"] = ["ytilde", *map(str, words)], str(columns)
    os.chdir(cwd or before[1])
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            cli.main()
    except SystemExit as exit_:
        code = exit_.code or 0
    finally:
        sys.argv, os.environ["COLUMNS"] = before[0], before[2]
        os.chdir(before[1])
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    done = Done(code, stdout.getvalue(), stderr.getvalue())
    if check:
        assert done.returncode == 0, done
    return done


def refused(*words, match, cwd=None):
    done = ytilde(*words, cwd=cwd, check=False)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert match in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    x, y = make_blobs(300, centers=3, n_features=4, random_state=0)
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["label"] = np.array(["cat", "dog", "=cmd()"])[y]
    frame.iloc[:200].to_csv(folder / "train.csv", index=False)
    frame.iloc[200:].to_csv(folder / "test.csv", index=False)
    frame.iloc[200:].drop(columns="label").to_csv(folder / "new.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def run(table):
    folder = table / "run"
    ytilde("fit", table / "train.csv", "--label", "label", *FAST, "--out", folder, "--val", "0.1",
           "--test", table / "test.csv", "--noise", "symmetric:0.2")  # fmt: skip
    return folder


def test_fit_fills_a_run_folder(run):
    config = json.loads((run / "config.json").read_text())
    assert config["method"] == "ce"
    assert config["recipe"]["epochs"] == 3
    assert config["versions"]["torch"]
    assert 0.05 < config["realised_noise"]["rate"] < 0.3
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert all({"loss", "val_accuracy", "test_accuracy"} <= set(r) for r in records)
    summary = json.loads((run / "summary.json").read_text())
    assert {"last", "chosen", "mean_of_last_ten"} <= set(summary)
    assert len(pd.read_csv(run / "predictions.csv")) == 200


def test_predict_new_rows(run, table):
    out = table / "predictions.csv"
    ytilde("predict", run, table / "new.csv", "--out", out)
    frame = pd.read_csv(out)
    assert len(frame) == 100
    # a class name that is a spreadsheet formula is written so that none runs it
    assert set(frame["predicted_label"]) <= {"cat", "dog", "'=cmd()"}
    assert frame["predicted_prob"].between(0, 1).all()


def test_existing_run_needs_resume_or_force(run, table):
    words = ["fit", table / "train.csv", *FAST, "--out", run]
    refused(*words, match="--resume, --force")
    told = refused(*words, "--epochs", "4", "--resume", match="other settings").stderr
    assert f"to continue it, give --label label --test {table / 'test.csv'} --noise" in told
    assert "--noise symmetric:0.2 --epochs 3, or replace it with --force" in told
    assert "--batch-size" not in told


def test_a_run_is_resumed_with_the_options_that_it_was_started_with(table, tmp_path):
    words = ["fit", table / "train.csv", *FAST, "--out", tmp_path / "r"]
    ytilde(*words, "--label", "label", "--drop", "a", "--drop", "b,c")
    told = refused(*words, "--resume", "--lr", "0.5", "--noise", "pair:0.1", match="").stderr
    assert "give --label label --drop a --drop b,c --lr 0.002 and leave out --noise, or" in told
    ytilde(*words, "--label", "label", "--drop", "a", "--drop", "b,c", "--lr", "0.002", "--resume")


def test_the_best_epoch_needs_held_out_rows(table, tmp_path):
    words = ["fit", table / "train.csv", *FAST, "--out", tmp_path / "r", "--val", "0"]
    for own in (["--keep", "best"], ["--patience", "2"]):
        refused(*words, *own, match="goes by held-out rows, and val=0 holds none out")
    assert not list(tmp_path.iterdir())
    ytilde(*words, "--keep", "last")


def test_noise_writes_the_truth_beside_it(tmp_path):
    ytilde("noise", "digits", "--kind", "instance", "--rate", "0.4", "--out", tmp_path / "n.npz")
    with np.load(tmp_path / "n.npz", allow_pickle=False) as made:
        assert abs((made["y"] != made["clean"]).mean() - 0.4) < 0.05
        assert np.allclose(made["rows"].sum(1), 1, atol=1e-5)
    ytilde("fit", tmp_path / "n.npz", *FAST, "--out", tmp_path / "r")


def test_methods_lists_fields(tmp_path):
    assert "elr" in ytilde("methods").stdout
    shown = ytilde("methods", "ln").stdout
    assert "--tau" in shown
    assert "Fidelity" in shown
    recipe = ytilde("methods", "recipe").stdout
    lines = [line for line in recipe.splitlines() if line.startswith("│ --")]
    assert all(line.split("│")[3].strip() for line in lines) and "--batch-size" in recipe
    assert (
        "unless you give them: epochs, batch-size, optimizer, lr, weight-decay, augment" in recipe
    )


def test_version():
    assert ytilde("--version").stdout == f"ytilde {__version__}\n"


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["fit", "train.csv", "--method", "ell"], "did you mean elr or elr_plus?\n"),
        (["fit", "train.csv", "--method", "zzzz"], "choose from backward, bi_tempered, "),
        (["noise", "digits", "--kind", "instnace"], "did you mean instance?\n"),
        (["fit", "train.csv", "--method", "ln", "--tua", "1"], "tau"),
        (["fit", "train.csv", "--method", "ln", "--tau", "abc"], "tau"),
        (["fit", "train.csv", "--epochs", "many"], "--epochs"),
        (["fit", "train.csv", "--backbone", "resnet81"], "resnet"),
        (["fit", "fashion-mnits"], "fashion-mnist"),
        (["fit", "train.csv", "--label", "lable"], "label"),
        (["fit", "missing.csv"], "missing.csv"),
        (["fit", "empty.csv"], "empty.csv"),
        (["fit", "one.csv"], "two classes"),
        (["fit", "nan.csv"], "nan.csv"),
        (["fit", "train.csv", "--noise", "instance:1.4"], "1.4"),
        (["fit", "train.csv", "--noise", "instnace:0.4"], "instance"),
        (["predict", "nowhere", "train.csv"], "nowhere"),
        (["predict", "run", "wrong.csv"], "wrong.csv"),
        (["noise", "digits", "--rate", "2"], "2"),
        (["noise", "digits", "--rate", "nan"], "--rate nan is no share"),
        (["data", "imagenet"], "imagenet"),
        (["fit", "broken"], "broken"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(words, match, table, run):
    (table / "empty.csv").write_text("")
    (table / "one.csv").write_text("a,label\n1,x\n2,x\n3,x\n")
    (table / "nan.csv").write_text("a,label\n1,x\ninf,y\n3,x\n")
    (table / "wrong.csv").write_text("z\n1\n2\n")
    for name in ("a", "b"):
        (table / "broken" / name).mkdir(parents=True, exist_ok=True)
        (table / "broken" / name / "x.png").write_bytes(b"\x89PNG broken")
    before = sorted(p for p in table.rglob("*"))
    refused(*words, match=match, cwd=table)
    assert sorted(p for p in table.rglob("*")) == before


def test_full_disk_and_read_only_folder(table, tmp_path):
    refused("fit", table / "train.csv", *FAST, "--out", "/proc/nowhere/run", match="/proc/nowhere")


def test_two_processes_on_one_folder(table, tmp_path):
    long = ["fit", table / "train.csv", "--epochs", "100000", *FAST[2:], "--out", tmp_path / "r"]
    first = subprocess.Popen(
        [sys.executable, "-m", "ytilde", *map(str, long)], stdout=subprocess.DEVNULL
    )
    try:
        wait_for(tmp_path / "r" / "metrics.jsonl", lines=1)
        refused(*long, "--resume", match="another process")
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE) == 143
    finally:
        first.kill()


PATIENCE = 300  # seconds: a busy machine takes long to start a process, and that is no failure


def wait_for(path: Path, lines: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if path.exists() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not grow to {lines} lines")


def killed_and_resumed(table, folder, kills, seed):
    """SIGKILL a fit at random moments, resume it, and compare with one never killed."""
    words = ["fit", table / "train.csv", "--epochs", "25", *FAST[2:], "--optimizer", "adam"]
    ytilde(*words, "--out", folder / "whole")
    rng = random.Random(seed)
    command = [sys.executable, "-m", "ytilde", *map(str, words), "--out", str(folder / "cut")]
    for k in range(kills):
        extra = ["--resume"] if k else []
        process = subprocess.Popen([*command, *extra], stdout=subprocess.DEVNULL)
        metrics = folder / "cut" / "metrics.jsonl"
        seen = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        wait_for(metrics, min(seen + 1, 24))
        time.sleep(rng.random() * 0.2)
        process.kill()
        process.wait()
    ytilde(*words, "--out", folder / "cut", "--resume")
    model = "model.safetensors"
    assert (folder / "whole" / model).read_bytes() == (folder / "cut" / model).read_bytes()


def test_a_killed_fit_resumes_to_the_same_bits(table, tmp_path):
    killed_and_resumed(table, tmp_path, kills=2, seed=0)


@pytest.mark.slow
def test_a_fit_killed_ten_times_resumes_to_the_same_bits(table, tmp_path):
    killed_and_resumed(table, tmp_path, kills=10, seed=1)


def test_a_test_file_needs_no_column_with_true_labels(tmp_path):
    """Its own labels are the truth; without the option's column in the training file it ends."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    frame["truth"] = np.where(frame.a > 0, "up", "down")
    frame["label"] = frame.truth
    frame[:40].to_csv(tmp_path / "data.csv", index=False)
    frame[40:].drop(columns="truth").to_csv(tmp_path / "test.csv", index=False)
    words = ["fit", str(tmp_path / "data.csv"), "--clean-label", "truth", "--epochs", "1"]
    words += ["--method", "ce", "--device", "cpu"]
    out = str(tmp_path / "run")
    ytilde(*words, "--test", str(tmp_path / "test.csv"), "--out", out)
    assert "last" in json.loads((tmp_path / "run" / "summary.json").read_text())
    refused("fit", str(tmp_path / "test.csv"), *words[2:], "--out", out + "2", match="truth")


# ---- what is printed, and what comes again -------------------------------------------------------


def test_paths_and_figures_are_printed_as_they_are(table, tmp_path):
    folder = tmp_path / ("long " * 30) / "[bold]x [" / "red] :smile:"
    done = ytilde("fit", table / "train.csv", *FAST, "--out", folder)
    assert f"next: ytilde audit '{folder}'\n" in done.stdout
    words = ["--kind", "asymmetric:0.3,mapping=mnist", "--out", tmp_path / "n.npz"]
    figures = json.loads(ytilde("noise", "digits", *words).stdout.partition("\n")[2])
    assert figures["modal_share"][:3] == [None, None, 1.0]  # brackets are no markup


@pytest.mark.parametrize("flag", ["--init-seed", "--split-seed", "--order-seed"])
def test_each_stream_has_a_seed_of_its_own(flag, table, tmp_path):
    models = []
    for name, words in (("a", []), ("b", [flag, "5"])):
        ytilde("fit", table / "train.csv", *FAST, *words, "--out", tmp_path / name)
        models.append((tmp_path / name / "model.safetensors").read_bytes())
    assert models[0] != models[1]


def test_an_audit_comes_out_the_same_again_and_from_elsewhere(table, tmp_path):
    ytilde("fit", "train.csv", *FAST, "--out", tmp_path / "r", cwd=table)
    issues = []
    for _ in range(2):
        ytilde("audit", tmp_path / "r", "--folds", "2", cwd=tmp_path)
        issues.append((tmp_path / "r" / "issues.csv").read_bytes())
    assert issues[0] == issues[1]


def test_an_audit_that_is_refused_writes_nothing(table, tmp_path):
    ytilde("fit", table / "train.csv", *FAST, "--out", tmp_path / "r")
    before = sorted((tmp_path / "r").iterdir())
    for path in (tmp_path, table / "new.csv" / "x.json"):
        refused("audit", tmp_path / "r", "--label-studio", path, match="cannot write")
    assert sorted((tmp_path / "r").iterdir()) == before


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--kind", "pair", "--features", "raw255"], "unknown option of pair noise 'features'"),
        (["--kind", "classwise:main", "--rate", "0.2"], "unknown option of classwise noise 'rate'"),
        (["--kind", "classwise"], "needs either a setting"),
    ],
)
def test_noise_options_that_do_not_belong_to_the_kind(words, match, tmp_path):
    refused("noise", "digits", *words, "--out", tmp_path / "n.npz", match=match)
    assert not list(tmp_path.iterdir())


def test_the_rate_of_a_noise_may_stand_in_its_kind(tmp_path):
    rates = {}
    for kind in ("pair", "pair:0.1", "classwise:uniform"):
        ytilde("noise", "digits", "--kind", kind, "--out", tmp_path / "n.npz")
        made = np.load(tmp_path / "n.npz")
        rates[kind] = float((made["y"] != made["clean"]).mean())
    assert rates["pair"] > 0.35 and rates["pair:0.1"] < 0.15 and rates["classwise:uniform"] > 0.1


def test_an_unknown_task(table):
    refused(
        "fit",
        table / "train.csv",
        *FAST,
        "--task",
        "segmentaton",
        match="did you mean segmentation",
    )


@pytest.mark.parametrize("key", ["fingerprint", "recipe", "schema"])
def test_a_run_of_another_version_is_one_sentence(key, table, tmp_path):
    ytilde("fit", table / "train.csv", *FAST, "--out", tmp_path / "r")
    path = tmp_path / "r" / "config.json"
    config = json.loads(path.read_text())
    del config["digest"]
    config["versions"]["ytilde"] = "9.9"
    if key == "fingerprint":
        del config[key]
    else:
        config[key]["unheard_of"] = 1
    path.write_text(json.dumps(config))
    refused("audit", tmp_path / "r", match="was made by ytilde 9.9, and this is")


def test_a_folder_with_the_name_of_a_set_is_told_from_it(tmp_path):
    for name, shade in (("digits/a/1.png", 0), ("digits/b/1.png", 255)):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.new("L", (8, 8), shade).save(tmp_path / name)
    words = ["--method", "ce", "--epochs", "1", "--val", "0", "--backbone", "identity"]
    for option in ([], ["--test", "digits"]):
        source = "./digits" if option else "digits"
        refused("fit", source, *words, *option, match="write ./digits for the folder", cwd=tmp_path)
    ytilde("fit", "./digits", *words, "--out", "r", cwd=tmp_path)
    assert json.loads((tmp_path / "r" / "config.json").read_text())["classes"] == ["a", "b"]


def test_a_fit_without_test_data_says_what_it_did(table, tmp_path):
    """The backbone that was chosen, and the last noisy validation where rows were held out."""
    words = ["fit", table / "train.csv", "--method", "ce", "--epochs", "40"]
    for val, folder in (("0.1", tmp_path / "a"), ("0", tmp_path / "b")):
        told = ytilde(*words, "--val", val, "--out", folder).stdout
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["backbone"] == "mlp:width=128,depth=1" and summary["seconds"] > 0
        text = f"ce with mlp:width=128,depth=1 on 200 rows: 40 epochs in {summary['seconds']:.1f} s"
        if val != "0":
            last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            assert summary["val_accuracy"] == last["val_accuracy"]
            text += f", noisy validation accuracy {100 * last['val_accuracy']:.2f} %"
        assert f"{text}\n" in told


@pytest.mark.parametrize("keep", ["best", "best_nll"])
def test_a_fit_says_which_epoch_it_keeps(table, tmp_path, keep):
    """The saved model predicts as well as that epoch did, and the lines say which it is."""
    words = ["fit", table / "train.csv", "--test", table / "test.csv", "--method", "ce"]
    words += ["--epochs", "6", "--lr", "0.3", "--val", "0.3", "--keep", keep, "--out", tmp_path]
    told = ytilde(*words, "--force").stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    best = {"best": lambda r: r["val_accuracy"], "best_nll": lambda r: -r["val_nll"]}[keep]
    kept = max(records, key=best)
    assert summary["kept_epoch"] == kept["epoch"] and summary["kept"] == kept["test_accuracy"]
    assert f" in epoch {kept['epoch']}, which is kept\n" in told
    assert f"the saved model (epoch {kept['epoch']})" in told
    test = pd.read_csv(table / "test.csv")
    found = Classifier.load(tmp_path / "model.safetensors").predict(test.drop(columns="label"))
    assert (found == test["label"]).mean() == pytest.approx(kept["test_accuracy"])


def test_a_log_shows_how_far_a_fit_and_an_audit_are(table, tmp_path):
    words = ["fit", table / "train.csv", "--epochs", "20", *FAST[2:], "--out", tmp_path / "r"]
    lines = ytilde(*words, "--val", "0.1").stdout.splitlines()
    shown = [line for line in lines if "/20" in line]
    assert [line.split()[1] for line in shown] == [f"{k}/20" for k in range(2, 21, 2)]
    assert all("loss" in line and "noisy val" in line for line in shown)
    audited = ytilde("audit", tmp_path / "r", "--folds", "2").stdout.splitlines()
    assert [line for line in audited if line.startswith("fold 1 of 2: main 20/20  loss ")]
    assert [line for line in audited if line.startswith("fold 2 of 2: main 2/20  loss ")]


def test_a_log_shows_what_a_choice_tries(table, tmp_path):
    """A line for each stage of the race's trainings; none of them in the fit's own records."""
    words = ["fit", table / "train.csv", "--method", "auto", "--epochs", "3", "--val", "0.2"]
    lines = ytilde(*words, *FAST[2:6], "--out", tmp_path / "r").stdout.splitlines()
    tried = [line.split() for line in lines if line.startswith("trying ")]
    answers = json.loads((tmp_path / "r" / "methods.json").read_text())["answers"]
    seen = [t[1] for k, t in enumerate(tried) if k == 0 or t[1] != tried[k - 1][1]]
    assert seen == [c["method"] for c, *_ in answers]
    records = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(record)["epoch"] for record in records] == [1, 2, 3]


def test_an_export_shows_no_warnings_of_torch(table, tmp_path):
    pytest.importorskip("onnxscript")
    ytilde("fit", table / "train.csv", *FAST, "--out", tmp_path / "r")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        ytilde("export", tmp_path / "r", "--out", tmp_path / "m.onnx")


# ---- what a newcomer's own files meet ------------------------------------------------------------


def blobs(path, names, rows=120, **columns):
    """A table of these classes with four feature columns, and what else is given."""
    x, y = make_blobs(rows, centers=len(names), n_features=4, random_state=0)
    frame = pd.DataFrame(x, columns=list("abcd")).assign(label=np.array(names)[y], **columns)
    frame.to_csv(path, index=False)
    return frame


def test_labels_that_are_signed_numbers_come_back_as_they_were(tmp_path):
    given = blobs(tmp_path / "d.csv", ["-1", "+1"])
    ytilde("fit", tmp_path / "d.csv", *FAST, "--out", tmp_path / "r")
    ytilde("audit", tmp_path / "r", "--folds", "2", "--fix-above", "0.9")
    for name in ("predictions.csv", "issues.csv"):
        frame = pd.read_csv(tmp_path / "r" / name, dtype=str)
        assert set(frame.given_label) == {"-1", "+1"}, name
    labels = pd.read_csv(tmp_path / "r" / "labels.csv", dtype=str)
    assert (labels.label == given.label).mean() > 0.9


def test_true_labels_and_dropped_columns_are_no_features(tmp_path):
    """They were told from the features by `fit` alone; the others took them."""
    frame = blobs(tmp_path / "d.csv", ["a", "b"], id=np.arange(120), colour=["red", "blue"] * 60)
    frame.assign(truth=frame.label).to_csv(tmp_path / "d.csv", index=False)
    given = [tmp_path / "d.csv", "--clean-label", "truth", "--drop", "id"]
    line = "data: features are 4 numbers and 1 category (a, b, c, d, colour); "
    line += "left out: label (the labels), id, truth (the truth)\n"
    refused("diagnose", *given[:2], "trutz", match="no clean label column 'trutz'")
    refused("diagnose", *given[:-1], "idd", match="no dropped column 'idd'")
    assert line in ytilde("diagnose", *given).stdout
    words = ["--kind", "symmetric:0.2", "--out", tmp_path / "n.npz"]
    assert line in ytilde("noise", *given, *words).stdout
    with np.load(tmp_path / "n.npz") as made:
        assert made["x"].shape == (120, 6)  # a, b, c, d, blue, red
    words = ["--epochs", "1", "--batch-size", "32", "--out", tmp_path / "e.safetensors"]
    assert line in ytilde("pretrain", *given, *words).stdout


def test_noise_needs_a_truth_in_every_row(tmp_path):
    """Rows without one became labels -1, and nothing could read the file."""
    frame = blobs(tmp_path / "d.csv", ["a", "b"])
    frame.assign(truth=frame.label.where(frame.index > 1, "")).to_csv(tmp_path / "d.csv")
    words = ["noise", tmp_path / "d.csv", "--kind", "symmetric:0.2", "--out", tmp_path / "n.npz"]
    refused(
        *words, "--clean-label", "truth", match="no true label in 2 rows (0, 1; counting from 0)"
    )
    ytilde(*words, "--drop", "truth")
    ytilde("fit", tmp_path / "n.npz", *FAST, "--out", tmp_path / "r")


def test_a_run_remembers_which_columns_are_no_features(tmp_path):
    frame = blobs(tmp_path / "d.csv", ["a", "b"], id=np.arange(120))
    frame.drop(columns="id").to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", tmp_path / "d.csv", *FAST, "--drop", "id", "--out", tmp_path / "r"]
    told = ytilde(*words, "--test", tmp_path / "t.csv").stdout
    assert told.count("data: ") == 2 and "data: features are 4 numbers (a, b, c, d)" in told
    for source in ("d.csv", "t.csv"):
        ytilde("predict", tmp_path / "r", tmp_path / source, "--out", tmp_path / "p.csv")
    ytilde("audit", tmp_path / "r", "--folds", "0")
    refused("fit", "digits", "--drop", "id", match="no table")


def test_a_quantity_in_the_place_of_labels_is_refused(table):
    refused("fit", table / "train.csv", "--label", "a", match="a quantity, not classes")


def test_a_new_category_refuses_no_predictions(tmp_path):
    frame = blobs(tmp_path / "d.csv", ["x", "y"], colour=["red", "blue"] * 60)
    ytilde("fit", tmp_path / "d.csv", *FAST, "--out", tmp_path / "r")
    frame.assign(colour="mauve").head(5).to_csv(tmp_path / "n.csv", index=False)
    told = ytilde("predict", tmp_path / "r", tmp_path / "n.csv", "--out", tmp_path / "p.csv").stdout
    assert "data: a value in 5 rows (0, 1, 2, 3, 4; counting from 0) of column 'colour' of " in told
    assert len(pd.read_csv(tmp_path / "p.csv")) == 5


def pictures(folder, sizes=((8, 8),), each=6):
    """FOLDER/a holds dark pictures, FOLDER/b bright ones, of these sizes in turn."""
    for name, shade in (("a", 20), ("b", 200)):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            Image.new("L", sizes[i % len(sizes)], shade + i).save(folder / name / f"{i}.png")
    return folder


IMAGES = ["--method", "ce", "--epochs", "1", "--val", "0", "--backbone", "identity"]


def test_predictions_name_their_files_and_go_on_past_a_broken_one(tmp_path):
    data = pictures(tmp_path / "d")
    ytilde("fit", data, *IMAGES, "--out", tmp_path / "r")
    trained = pd.read_csv(tmp_path / "r" / "predictions.csv")
    assert trained.path.tolist() == [str(data / n / f"{i}.png") for n in "ab" for i in range(6)]
    (data / "a" / "2.png").write_bytes(b"broken")
    words = ["predict", tmp_path / "r", data, "--probabilities", "--out", tmp_path / "p.csv"]
    told = ytilde(*words).stdout
    assert "note: no label for 1 unreadable image, the first" in told and "a/2.png" in told
    assert "11 predictions written" in told
    found = pd.read_csv(tmp_path / "p.csv")
    assert found.path.tolist() == trained.path.tolist()
    assert found.predicted_label.isna().tolist() == [i == 2 for i in range(12)]
    read = found.drop(index=2)
    assert np.allclose(read.prob_a + read.prob_b, 1, atol=1e-5)
    assert np.allclose(read[["prob_a", "prob_b"]].max(axis=1), read.predicted_prob)
    for broken in data.glob("*/*.png"):
        broken.write_bytes(b"broken")
    refused(*words, match="0.png cannot be read")


def test_an_unreadable_image_has_no_prediction_after_a_resumed_fit_either(tmp_path):
    data = pictures(tmp_path / "d")
    (data / "a" / "2.png").write_bytes(b"broken")
    for words in ([], ["--resume"]):  # the second has nothing left to train, so it reads nothing
        ytilde("fit", data, *IMAGES, "--out", tmp_path / "r", *words)
        found = pd.read_csv(tmp_path / "r" / "predictions.csv")
        assert found.predicted_label.isna().tolist() == [i == 2 for i in range(12)], words


def test_pixel_labels_are_no_table_of_predictions(tmp_path):
    x, y = np.zeros((6, 1, 16, 16), np.uint8), np.arange(6 * 256).reshape(6, 16, 16) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y)
    ytilde("fit", tmp_path / "d.npz", *IMAGES[:-1], "unet:width=4", "--out", tmp_path / "r")
    words = ["predict", tmp_path / "r", tmp_path / "d.npz", "--out", tmp_path / "p.csv"]
    refused(*words, match="pixel labels")


def test_images_that_differ_in_size_are_told_what_becomes_of_them(tmp_path):
    words = [*IMAGES, "--out", tmp_path / "r"]
    told = ytilde("fit", pictures(tmp_path / "d", ((8, 12), (20, 10))), *words).stdout
    line = "data: 12 images have 2 sizes (height x width 12 x 8 to 10 x 20): "
    assert line + "each is scaled to cover 9 x 9 and cropped at its centre\n" in told
    told = ytilde("fit", pictures(tmp_path / "e"), *words, "--force").stdout
    assert told.count("data: ") == 1 and "data: 2 classes and their rows: 'a' 6, 'b' 6\n" in told


def test_what_fails_at_the_start_leaves_nothing_behind(table, tmp_path, monkeypatch):
    words = ["fit", table / "train.csv", *FAST, "--optimizer", "sgd", "--out", "runs/a"]
    refused(*words, "--resume", match="contains no run to resume", cwd=tmp_path)
    done = ytilde(*words, "--lr", "1e30", cwd=tmp_path, check=False)
    assert done.returncode == 1 and "in epoch 1" in done.stderr and "checkpoint" not in done.stderr
    monkeypatch.setitem(os.environ, "http_proxy", "http://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "https_proxy", "http://127.0.0.1:9")
    refused("data", "mnist", match="cannot be reached", cwd=tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    for folder in ("mine", "mine/a", "b"):  # what was there stays, as does where one stands
        done = ytilde(*words[:-1], folder, "--lr", "1e30", cwd=tmp_path, check=False)
        assert done.returncode == 1 and "in epoch 1" in done.stderr
        assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    (tmp_path / "mine").rmdir()
    done = ytilde(*words[:-1], "b", "--lr", "1e30", cwd=tmp_path, check=False)
    assert done.returncode == 1 and "in epoch 1" in done.stderr and tmp_path.exists()


def test_a_fit_that_diverges_later_says_where_its_last_checkpoint_is(tmp_path):
    run = Run.open(tmp_path / "r", {}, resume=False, force=False)
    run.log({"stage": "main", "epoch": 1})
    with pytest.raises(Diverged, match=f"too large; the last good checkpoint is in {tmp_path}/r"):
        run.__exit__(Diverged, Diverged("too large"))
    assert (tmp_path / "r" / "config.json").exists()


@pytest.mark.parametrize("command", [["noise", "digits"], ["export", "run"],
                                     ["predict", "run", "new.csv"]])  # fmt: skip
def test_a_file_that_could_not_be_read_as_what_it_is_called(command, table, run):
    for name in ("x.txt", "x.parquet"):
        refused(*command, "--out", name, match="call it NAME.", cwd=table)
        assert not (table / name).exists()


def test_predictions_go_to_a_stream_whatever_it_is_called(table, run):
    ytilde("predict", run, table / "new.csv", "--out", "/dev/null")


def test_outputs_are_checked_before_the_work(table, run, monkeypatch):
    def work(*_, **__):
        raise AssertionError("worked first")

    monkeypatch.setattr(readers, "read", work)
    for words in (["diagnose", "train.csv"], ["pretrain", "train.csv"], ["noise", "train.csv"],
                  ["predict", "run", "new.csv"]):  # fmt: skip
        out = table / "new.csv" / "x.npz"
        refused(*words, "--out", out, match="cannot write", cwd=table)


def test_true_labels_are_measured_on_without_a_test_file(tmp_path):
    """They were taken and, without --test, never used."""
    frame = blobs(tmp_path / "d.csv", ["x", "y"])
    truth = frame.label.where(frame.index >= 20, "")  # of 20 rows nobody knows it
    wrong = frame.label.where(frame.index % 10 != 0, "x")
    frame.assign(label=wrong, truth=truth).to_csv(tmp_path / "d.csv", index=False)
    words = ["fit", tmp_path / "d.csv", "--clean-label", "truth", *FAST, "--out", tmp_path / "r"]
    told = ytilde(*words).stdout
    predicted = pd.read_csv(tmp_path / "r" / "predictions.csv").predicted_label
    given, made = (100 * (a == truth)[20:].mean() for a in (wrong, predicted))
    assert (
        f"of 100 training rows with known true labels, {given:.1f} % of the given "
        f"and {made:.1f} % of the predicted labels are right\n" in told
    )
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["train_given_right"] == pytest.approx(given / 100)


def test_networks_and_named_sets_are_listed(tmp_path):
    shown = ytilde("methods", "backbones").stdout
    assert "resnet18" in shown and "width=64, stem=auto" in shown and "blocks=" not in shown
    shown = ytilde("data", cwd=tmp_path).stdout
    assert all(name in shown for name in datasets.NAMES) and not list(tmp_path.iterdir())
    assert "`ytilde data cifar100-coarse`" in shown and "www.cityscapes-dataset.com" in shown
    lines = [line.split("│") for line in ytilde("methods").stdout.splitlines()]
    told = {line[1].strip(): line[2] for line in lines if len(line) > 2}
    assert list(told) == list_methods() and len(set(told.values())) == len(told)
    for command in ("fit", "diagnose", "noise", "pretrain"):
        said = " ".join(ytilde(command, "--help").stdout.split())
        assert "label column; default: the one called label or y" in said


def test_pretraining_without_labels_does_not_advise_to_fit_the_same(tmp_path):
    data = pictures(tmp_path / "d")
    words = ["--epochs", "1", "--batch-size", "4", "--backbone", "mlp:width=8", "--out"]
    told = ytilde("pretrain", pictures(tmp_path / "d2"), *words, tmp_path / "e").stdout
    assert f"next: ytilde fit {tmp_path / 'd2'} --encoder {tmp_path / 'e'}\n" in told
    told = ytilde("pretrain", data / "a", *words, tmp_path / "e").stdout
    assert f"next: ytilde fit LABELLED_DATA --encoder {tmp_path / 'e'}\n" in told


def test_pretraining_leaves_out_what_cannot_be_read(tmp_path):
    """The encoder is that of the other pictures, to the bit."""
    words = ["--epochs", "2", "--batch-size", "4", "--backbone", "mlp:width=8", "--out"]
    told = ytilde("pretrain", pictures(tmp_path / "d"), *words, tmp_path / "e").stdout
    assert "unreadable" not in told
    (tmp_path / "d" / "b" / "9.png").write_bytes(b"junk")
    told = ytilde("pretrain", tmp_path / "d", *words, tmp_path / "e2").stdout
    assert "note: 1 unreadable image skipped\n" in told
    first, second = (Encoder.load(tmp_path / name).weights for name in ("e", "e2"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_encoder_that_changed_is_noticed(table, tmp_path):
    """Going on, or auditing, with another one would mix the two."""
    words = ["pretrain", table / "train.csv", "--epochs", "1", "--batch-size", "32"]
    words += ["--backbone", "mlp:width=16,depth=1", "--out", tmp_path / "e"]
    ytilde(*words)
    fit = ["fit", table / "train.csv", *FAST, "--encoder", tmp_path / "e", "--out", tmp_path / "r"]
    ytilde(*fit)
    ytilde(*fit, "--resume")
    ytilde(*words, "--seed", "1")
    refused(*fit, "--resume", match="was started with other weights in --encoder")
    refused("audit", tmp_path / "r", match="has changed since")
    ytilde("predict", tmp_path / "r", table / "new.csv", "--out", tmp_path / "p.csv")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, BadInput("no")], ids=("stop", "refusal"))
def test_a_pretraining_that_ends_early_tells_how_to_go_on(table, tmp_path, monkeypatch, stop):
    def ends(data, backbone, recipe, text, folder, show):
        folder.mkdir()
        raise stop

    monkeypatch.setattr("ytilde.fitting.load_or_pretrain", ends)
    done = ytilde("pretrain", table / "train.csv", "--out", tmp_path / "e", check=False)
    if stop is KeyboardInterrupt:
        assert (
            done.returncode == 130
            and "Interrupted; run the same command to continue" in done.stdout
        )
        assert (tmp_path / ".e.work").exists()
    else:
        assert done.returncode == 2 and not list(tmp_path.iterdir())


def test_pretraining_says_when_it_reads_no_labels(table, tmp_path):
    frame = pd.read_csv(table / "train.csv")
    frame["label"] = frame["label"].astype("category").cat.codes
    frame.rename(columns={"label": "target"}).to_csv(tmp_path / "t.csv", index=False)
    words = ["pretrain", tmp_path / "t.csv", "--epochs", "1", "--batch-size", "32"]
    told = ytilde(*words, "--out", tmp_path / "e").stdout
    assert "note: read as data without labels. There is no label column" in told
    told = ytilde(*words, "--label", "target", "--out", tmp_path / "e").stdout
    assert "without labels" not in told


def test_an_interrupted_fit_tells_how_to_go_on(table, tmp_path, monkeypatch):
    def ends(self, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "fit_data", ends)
    done = ytilde("fit", table / "train.csv", *FAST, "--out", tmp_path / "r", check=False)
    assert (
        done.returncode == 130
        and "before a model existed; run the same command with --resume" in done.stdout
    )


def test_a_report_without_results_says_why(tmp_path):
    shown = ytilde("bench", "report", "dtm_t1", cwd=tmp_path).stdout
    assert shown.startswith(f"no results: there is no folder {tmp_path / 'results'}\n")
    assert "--all" not in ytilde("bench", "list", "--help").stdout
    assert "--all" in ytilde("bench", "report", "--help").stdout


def test_a_model_file_alone_reads_a_table_as_its_run_does(tmp_path):
    """Without the columns of the training data categories were encoded anew."""
    frame = blobs(tmp_path / "d.csv", ["x", "y"], colour=["red", "blue"] * 60, id=range(120))
    ytilde("fit", tmp_path / "d.csv", *FAST, "--drop", "id", "--out", tmp_path / "r")
    frame[frame.columns[::-1]].head(9).assign(colour="red").to_csv(tmp_path / "n.csv", index=False)
    found = []
    for model in (tmp_path / "r", tmp_path / "r" / "model.safetensors"):
        ytilde("predict", model, tmp_path / "n.csv", "--out", tmp_path / "p.csv")
        found.append((tmp_path / "p.csv").read_text())
    assert found[0] == found[1]


def test_a_feature_called_y_is_one_for_predict_too(tmp_path):
    """Of a model that was fitted in Python, where no column holds the labels."""
    X = blobs(tmp_path / "d.csv", ["u", "v"], y=np.arange(120.0), colour=["red", "blue"] * 60)
    labels = X.pop("label")
    clf = Classifier("ce", epochs=2, device="cpu").fit(X, labels)
    clf.save(tmp_path / "m")
    X.to_csv(tmp_path / "d.csv", index=False)
    ytilde("predict", tmp_path / "m", tmp_path / "d.csv", "--out", tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv").predicted_label.tolist() == clf.predict(X).tolist()


def test_a_model_that_knows_no_more_than_the_largest_class_is_told_so(tmp_path):
    frame = blobs(tmp_path / "d.csv", ["x", "y"])
    words = [*FAST, "--out", tmp_path / "r", "--test", tmp_path / "d.csv", "--force"]
    assert "next: ytilde audit" in ytilde("fit", tmp_path / "d.csv", *words, "--lr", "0.1").stdout
    frame.assign(a=0, b=0, c=0, d=0).to_csv(tmp_path / "d.csv", index=False)
    told = ytilde("fit", tmp_path / "d.csv", *words).stdout
    assert "warning: by this accuracy the model is no better" in told and "next:" not in told


def test_a_failed_run_of_the_bench_is_a_failed_command(tmp_path, monkeypatch):
    def sweep(jobs, **_):
        return [{"hash": job.hash, "status": "failed", "error": "it broke"} for job in jobs]

    monkeypatch.setattr(pool, "sweep", sweep)
    words = ["bench", "run", "fashion_idn", "--only", "ce", "--scale", "tiny"]
    assert ytilde(*words, cwd=tmp_path, check=False).returncode == 1


def test_diagnose_says_how_many_rows_it_looked_at(table):
    words = ["diagnose", "train.csv", "--rows"]
    told = ytilde(*words, "120", cwd=table).stdout
    assert "note: 120 of 200 rows were examined; --rows takes more\n" in told
    assert "examined" not in ytilde(*words, "200", cwd=table).stdout
    refused(*words, "-1", match="--rows", cwd=table)


@pytest.mark.parametrize("command", [["audit"], ["predict", "train.csv"]])
def test_an_unfinished_run_is_called_so(command, table, run, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_bytes((run / "config.json").read_bytes())
    words = [command[0], tmp_path / "r", *command[1:]]
    told = refused(*words, match="r is unfinished", cwd=table).stderr
    assert "--resume" in told


def test_the_next_command_after_pretraining_reads_the_same_columns(tmp_path):
    frame = blobs(tmp_path / "d.csv", ["x", "y"], id=range(120)).rename(columns={"label": "the y"})
    frame.to_csv(tmp_path / "d.csv", index=False)
    words = ["--epochs", "1", "--label", "the y", "--drop", "id", "--out", tmp_path / "e"]
    told = ytilde("pretrain", tmp_path / "d.csv", *words).stdout
    assert f"next: ytilde fit {tmp_path / 'd.csv'} --label 'the y' --drop id --encoder" in told


def test_words_that_do_not_go_together_are_refused(table, tmp_path):
    told = refused("fit", "train.csv", "--method", "elr", "--tau", "0.5", match="elr has no --tau",
                   cwd=table).stderr  # fmt: skip
    assert "het_tau" in told and "beta" not in told
    words = ["noise", "train.csv", "--kind", "pair:0.2"]
    refused(*words, "--rate", "0.3", match="give different rates", cwd=table)
    broken = pictures(tmp_path / "d") / "a" / "2.png"
    broken.write_bytes(b"broken")
    told = refused("noise", "d", match="cannot read 1 image, the first d/a/2.png", cwd=tmp_path)
    assert "`ytilde fit --noise`" in told.stderr


def test_addresses_of_named_sets_are_whole_in_narrow_terminals():
    assert "…" not in ytilde("data", columns=60).stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--confusion x", "option --confusion takes a number, not 'x'"),
        ("--epochs z", "option --epochs takes a whole number, not 'z'"),
        ("--method ce --confusion 1", "ce has no --confusion; ensemble, second_opinion have it"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(words, told, tmp_path):
    refused("fit", "digits", *words.split(), "--out", tmp_path / "r", match=told)
    assert not (tmp_path / "r").exists()
