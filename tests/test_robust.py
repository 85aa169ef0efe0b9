"""What goes wrong around a run: damaged files, full disks, signals, numbers that blow up."""

import errno
import importlib.util
import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from test_cli import FAST, PATIENCE, refused, wait_for, ytilde
from ytilde import Classifier, checkpoint, files
from ytilde.cli.runs import Run
from ytilde.data import BadInput, Data, images, readers
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.testing import blobs

RECIPE = Recipe(epochs=5, batch_size=32, optimizer="adam", lr=0.01, val=0.2, device="cpu")


def fit(folder, name="ce", resume=False, stop=None, **options):
    """A small fit; `stop` raises after so many epochs, as a crash would."""
    seen = []

    def on_record(record):
        seen.append(record)
        if len(seen) == stop:
            raise ZeroDivisionError

    method = create(name)
    options |= {"folder": folder, "resume": resume, "on_record": on_record}
    trainer = fit_method(method, blobs(rate=0.2), RECIPE, backbone="mlp:width=8,depth=1", **options)
    return {k: v.clone() for k, v in method.state_dict().items()}, trainer


def cut(folder, name="ce", stop=4):
    with pytest.raises(ZeroDivisionError):
        fit(folder, name, stop=stop)


def same(first, second):
    return set(first) == set(second) and all(torch.equal(first[k], second[k]) for k in first)


# ---- checkpoints ---------------------------------------------------------------------------------


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        path.write_bytes(content[:-5] + bytes([content[-5] ^ 4]) + content[-4:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("not a checkpoint")
    elif how == "foreign":
        checkpoint.save(path, {"method.other": torch.ones(3)}, {"count": 99, "stage": "main"})
    elif how == "a model":
        Classifier("ce", epochs=1).fit(np.eye(4), np.arange(4) % 2).save(path, force=True)


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "text", "foreign", "a model"])
def test_the_older_checkpoint_serves_and_the_user_is_told(tmp_path, how):
    whole, _ = fit(tmp_path / "whole")
    cut(tmp_path / "cut")
    paths = sorted((tmp_path / "cut").glob("checkpoint-*"))
    assert len(paths) == 2
    newer = max(paths, key=lambda path: checkpoint.load(path)[1]["count"])
    damaged(newer, how)
    state, trainer = fit(tmp_path / "cut", resume=True)
    assert same(whole, state)
    assert len(trainer.notes) == 1 and str(newer) in trainer.notes[0]
    assert [r["epoch"] for r in trainer.history] == [1, 2, 3, 4, 5]


def test_without_any_whole_checkpoint_the_stage_begins_again(tmp_path):
    whole, _ = fit(tmp_path / "whole")
    cut(tmp_path / "cut")
    for path in (tmp_path / "cut").glob("checkpoint-*"):
        damaged(path, "truncated")
    state, trainer = fit(tmp_path / "cut", resume=True)
    assert same(whole, state) and len(trainer.notes) == 2
    assert len(trainer.history) == 5


@pytest.mark.parametrize("part", ["stages/warm_up.safetensors", "cache/parts-*.safetensors"])
def test_a_damaged_part_of_a_pipeline_is_made_again(tmp_path, part):
    whole, before = fit(tmp_path / "whole", "ptd")
    cut(tmp_path / "cut", "ptd", stop=3)
    for path in (tmp_path / "cut").glob(part):
        damaged(path, "flipped")
    state, trainer = fit(tmp_path / "cut", "ptd", resume=True)
    assert same(whole, state)
    assert len(trainer.notes) == 1 and "made again" in trainer.notes[0]
    assert [r["stage"] for r in trainer.history] == [r["stage"] for r in before.history]


def test_a_thousand_corrupted_checkpoints(tmp_path):
    """None is believed: a run's own checkpoint, cut, flipped, filled and shuffled at random."""
    cut(tmp_path, stop=2)
    path = next(tmp_path.glob("checkpoint-*"))
    content, bad, rng = path.read_bytes(), tmp_path / "bad", random.Random(0)
    for k in range(1000):
        wrong, place = bytearray(content), rng.randrange(len(content))
        if k % 4 == 0:
            del wrong[place:]
        elif k % 4 == 1:
            wrong[place] ^= 1 << rng.randrange(8)
        elif k % 4 == 2:
            wrong[place : place + 64] = rng.randbytes(64)
        else:
            wrong[place:place] = wrong[: rng.randrange(1, 64)]
        bad.write_bytes(wrong)
        with pytest.raises(BadInput) as error:
            checkpoint.load(bad)
        assert str(bad) in str(error.value) and "\n" not in str(error.value)


# ---- disks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data = blobs(200, rate=0.1)
    frame = pd.DataFrame(data.x.numpy(), columns=list("abcdef")).assign(label=data.y)
    frame.to_csv(folder / "d.csv", index=False)
    return folder / "d.csv"


def test_a_full_disk_ends_in_a_sentence_and_the_run_goes_on_later(table, tmp_path, monkeypatch):
    words = ["fit", table, *FAST]
    ytilde(*words, "--out", tmp_path / "whole")
    write, count = files._write, iter(range(100))

    def full(path, content):
        if next(count) < 2:  # the config and a checkpoint still fit
            return write(path, content)
        path.write_bytes(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_write", full)
    refused(*words, "--out", tmp_path / "cut", match="No space left")
    monkeypatch.undo()
    names = {path.name for path in (tmp_path / "cut").iterdir()}
    assert "config.json" in names and not any(name.startswith(".new-") for name in names)
    checkpoint.load(next((tmp_path / "cut").glob("checkpoint-*")))
    ytilde(*words, "--out", tmp_path / "cut", "--resume")
    model = "model.safetensors"
    assert (tmp_path / "cut" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_full_disk_under_the_metrics(table, tmp_path, monkeypatch):
    def full(self, record):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "log", full)
    refused("fit", table, *FAST, "--out", tmp_path / "r", match="No space left")


def test_folders_that_cannot_be_written(table, tmp_path):
    for out in ("/proc/run", "/proc/self/run"):
        refused("fit", table, *FAST, "--out", out, match="cannot write")
    ytilde("fit", table, *FAST, "--out", tmp_path / "r")
    for out in ("/proc/predictions.csv", table / "below-a-file.csv"):
        refused("predict", tmp_path / "r", table, "--out", out, match="cannot write")
    refused("noise", table, "--out", "/proc/noisy.npz", match="cannot write")


def test_what_a_killed_writer_left_is_swept_up(table, tmp_path):
    folder = tmp_path / "r"
    ytilde("fit", table, *FAST, "--out", folder)
    (folder / "stages" / ".new-abc").write_text("half a file")
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text()[:-20])
    ytilde("fit", table, *FAST, "--out", folder, "--resume")
    assert not list(folder.rglob(".new-*"))
    assert [r["epoch"] for r in Run.history(folder)] == [1, 2]  # the last line was cut off
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("[]\n{}\nnull\n")
    assert len(Run.history(folder)) == 2


def test_a_changed_digit_is_noticed(table, tmp_path):
    """In what an audit reads of a run, and a review of an audit."""
    folder = tmp_path / "r"
    ytilde("fit", table, *FAST, "--out", folder)
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole.replace('"epoch": 1', '"epoch": 2'))
    said = ytilde("audit", folder, "--folds", "0").stdout
    assert f"note: 1 damaged line of {metrics} left out" in said
    metrics.write_text(whole)
    assert "damaged" not in ytilde("audit", folder, "--folds", "0").stdout
    audit = folder / "audit.json"
    ytilde("review", folder, "--export", tmp_path / "a.csv")
    audit.write_text(audit.read_text().replace('"p_wrong": 0.', '"p_wrong": 0.0', 1))
    match = f"{audit} cannot be read"
    refused("review", folder, "--export", tmp_path / "b.csv", match=match)


def test_what_a_killed_audit_or_review_left_is_swept_up(table, tmp_path):
    folder = tmp_path / "r"
    ytilde("fit", table, *FAST, "--out", folder)
    names = (".new-abcd_123", ".new-0123456789abcdef", ".new-0123456789abcdef-journal")
    left = [folder / name for name in names]
    for words in (["audit", folder, "--folds", "0"],
                  ["fit", table, *FAST, "--out", folder, "--force"]):  # fmt: skip
        for path in left:
            path.write_text("half a file")
        ytilde(*words)
        assert not any(path.exists() for path in left)
    ytilde("audit", folder, "--folds", "0")
    left[1].write_text("half a file")
    ytilde("review", folder, "--export", tmp_path / "labels.csv")  # it is in nobody's way


@pytest.mark.parametrize(
    "error",
    [MemoryError("no"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")],
    ids=["numpy", "torch"],
)
def test_short_of_memory_a_checkpoint_is_not_taken_for_a_damaged_one(
    error, table, tmp_path, monkeypatch
):
    ytilde("fit", table, *FAST, "--out", tmp_path / "r")
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*.safetensors")}

    def fail(content):
        raise error

    monkeypatch.setattr(checkpoint, "load_tensors", fail)
    (path, *_) = before
    with pytest.raises(type(error)):
        checkpoint.newest([path], lambda tensors, meta: True)
    with pytest.raises(type(error)):
        Classifier.load(tmp_path / "r" / "model.safetensors")


def test_a_program_without_docstrings_works(table, tmp_path):
    """`python -OO` removes them, and assertions."""
    words = ["fit", table, *FAST, "--out", tmp_path / "r"]
    code = "import sys; from ytilde.cli import main; main()"
    command = [sys.executable, "-OO", "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = "from ytilde.backbones import *; print([about_backbone(n) for n in list_backbones()])"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- signals -------------------------------------------------------------------------------------


def test_sigterm_saves_and_exits_with_143(table, tmp_path):
    words = ["fit", str(table), "--epochs", "30", *FAST[2:], "--optimizer", "adam"]
    ytilde(*words, "--out", tmp_path / "whole")
    command = [sys.executable, "-m", "ytilde", *words, "--out", str(tmp_path / "cut")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "cut" / "metrics.jsonl", lines=2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143 and "--resume" in said
    ytilde(*words, "--out", tmp_path / "cut", "--resume")
    model = "model.safetensors"
    assert (tmp_path / "cut" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_kills_of_a_pipeline(tmp_path):
    """The benchmark of 1,000 kills, with a few: see benchmarks/kill_resume.py."""
    script = Path(__file__).parents[1] / "benchmarks" / "kill_resume.py"
    command = [sys.executable, script, "--kills", "4", "--kinds", "fit ptd,review"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["kills"] == 4 and line["same_bytes"] == line["runs"] >= 1


def test_flipped_bits(tmp_path):
    """The benchmark of 10,000 flips, with a few: see benchmarks/bit_flips.py."""
    script = Path(__file__).parents[1] / "benchmarks" / "bit_flips.py"
    command = [sys.executable, script, "--flips", "60", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done
    line = json.loads(done.stdout.splitlines()[-1])
    assert len(line["files"]) == 17 and line["refused"] > 20 and line["same"] > 10
    assert line["noted"] and "defect" not in line


# ---- numbers -------------------------------------------------------------------------------------


def test_a_loss_that_blows_up(table, tmp_path):
    words = ["fit", table, "--epochs", "4", "--batch-size", "32", "--backbone", FAST[5]]
    words += ["--method", "ce", "--optimizer", "sgd", "--lr", "1e20", "--out", tmp_path / "r"]
    done = ytilde(*words, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "epoch 1, batch" in done.stderr and "--clip 1" in done.stderr


def test_the_last_good_checkpoint_is_kept(tmp_path):
    method = create("ce")
    plain = method.loss

    def loss(batch, step):
        return plain(batch, step) * torch.where(step.epoch >= 2, torch.inf, 1.0)

    method.loss = loss
    with pytest.raises(RuntimeError, match="epoch 3, batch 1 of"):
        fit_method(method, blobs(), RECIPE, backbone="mlp:width=8,depth=1", folder=tmp_path)
    paths = sorted(tmp_path.glob("checkpoint-*"))
    assert sorted(checkpoint.load(path)[1]["epoch"] for path in paths) == [1, 2]


def test_weights_that_blow_up_in_the_very_last_step_are_noticed():
    method = create("ce")
    plain = method.loss

    def loss(batch, step):  # a finite loss with an infinite gradient
        last = (step.epoch >= 4) & (batch.index == batch.index).all()
        w = next(method.net.parameters())
        return plain(batch, step) + torch.where(last, (w - w.detach()).sum() * 3e38 * 3, 0.0)

    method.loss = loss
    with pytest.raises(RuntimeError, match=r"finite number.* epoch 5"):
        fit_method(method, blobs(32), RECIPE, backbone="mlp:width=8,depth=1")


# ---- another model's data ------------------------------------------------------------------------


def test_labels_that_the_model_does_not_know():
    data = blobs(90)
    x, y = data.x.numpy(), np.array(["ant", "bee", "cow"])[data.y.numpy()]
    clf = Classifier("ce", "mlp:width=8,depth=1", epochs=1).fit(x, y)
    with pytest.raises(BadInput, match=r"'dog', which the model was not fitted on.* ant, bee, cow"):
        clf.audit(x, np.where(y == "cow", "dog", y), folds=0)
    with pytest.raises(BadInput, match="4 classes, but the model was fitted on 3"):
        clf.audit_data(blobs(90, num_classes=4), folds=0)
    assert len(clf.audit(x, y, folds=0).issues) == 90


def test_data_that_changed_under_a_run(table, tmp_path):
    copy = tmp_path / "d.csv"
    shutil.copy(table, copy)
    ytilde("fit", copy, *FAST, "--out", tmp_path / "r")
    frame = pd.read_csv(copy)
    frame.loc[0, "label"] = 2 if frame.label[0] != 2 else 1
    frame.to_csv(copy, index=False)
    refused("fit", copy, *FAST, "--out", tmp_path / "r", "--resume", match="with other data")
    refused("audit", tmp_path / "r", "--folds", "0", match="has changed")
    frame.assign(label=lambda f: f.label + 5).to_csv(tmp_path / "other.csv", index=False)
    test = ["--test", tmp_path / "other.csv", "--out", tmp_path / "s"]
    refused("fit", table, *FAST, *test, match="not one of the 3 classes")


# ---- data larger than memory ---------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """Twenty JPEGs of two classes, one of them cut short."""
    rng = np.random.default_rng(0)
    for k in range(20):
        array = rng.integers(0, 100, (12, 12, 3)) + 150 * (k % 2)
        path = tmp_path / "pictures" / "ab"[k % 2] / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array.astype(np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    return tmp_path / "pictures"


def test_an_unreadable_image_takes_no_part_and_is_named(pictures, tmp_path):
    words = [
        "fit",
        pictures,
        *FAST[:4],
        "--method",
        "elr",
        "--backbone",
        "lenet5",
        "--workers",
        "1",
    ]
    done = ytilde(*words, "--out", tmp_path / "r")
    assert "1 unreadable file skipped: " in done.stdout and "19.jpg" in done.stdout
    assert Path((tmp_path / "r" / "unreadable.txt").read_text().strip()).name == "19.jpg"
    assert len(pd.read_csv(tmp_path / "r" / "predictions.csv")) == 20
    refused(*words, "--strict", "--out", tmp_path / "s", match="19.jpg cannot be read")
    ytilde("predict", tmp_path / "r", pictures, "--out", tmp_path / "p.csv")
    for path in (tmp_path / "r" / "predictions.csv", tmp_path / "p.csv"):
        assert pd.read_csv(path).predicted_label.isna().sum() == 1


def test_a_parquet_of_paths_is_read_lazily(pictures, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(images, "LIMIT", 100)
    paths = [p for p in sorted(pictures.glob("*/*.jpg")) if p.name != "19.jpg"]
    frame = pd.DataFrame({"file": [str(p) for p in paths], "label": [p.parent.name for p in paths]})
    frame.to_parquet(tmp_path / "d.parquet")
    data = readers.read(tmp_path / "d.parquet").data
    assert data.lazy and len(data) == 19
    method, recipe = create("ce"), Recipe(epochs=2, batch_size=4, workers=2, val=0.0, device="cpu")
    seen = []
    plain = method.loss
    method.loss = lambda batch, step: seen.append(batch) or plain(batch, step)
    fit_method(method, data, recipe, backbone="lenet5")
    assert all(batch.x.shape[1:] == (3, 12, 12) and batch.x.max() <= 1 for batch in seen)
    assert sum(len(batch.x) for batch in seen) >= 2 * 16


def test_an_unreadable_row_has_the_label_of_nothing(pictures):
    data = readers.read(pictures, lazy=True).data
    recipe = Recipe(batch_size=4, workers=0, device="cpu")
    trainer = Trainer(create("ce"), recipe)
    y = trainer.map(lambda batch: batch.y, data)
    bad = [i for i, path in enumerate(data.x.paths) if path.endswith("19.jpg")]
    assert (y == -1).nonzero().flatten().tolist() == bad
    (note,) = trainer.notes
    assert note.startswith("1 unreadable file skipped: ") and note.endswith("19.jpg")
    trainer.map(lambda batch: batch.y, data)
    assert len(trainer.notes) == 1  # told once
    assert (data.y >= 0).all()  # the data itself is not touched


# ---- the GPU's check, tried without one ----------------------------------------------------------


def test_gpu_check_finds_every_draw():
    """Draws by twins on the CPU are the plain ones, and the generator itself is left alone."""
    path = Path(__file__).parents[1] / "benchmarks" / "gpu_equals_cpu.py"
    spec = importlib.util.spec_from_file_location("gpu_equals_cpu", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    data = blobs(96, rate=0.2)
    for name in ("het", "mixup", "causal_nl"):
        assert script.difference(name, data, "cpu") == (0.0, "")
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    with script.Twins() as twins:
        drawn = torch.rand(4, generator=generator, device="cpu")
    assert torch.equal(before, generator.get_state()) and len(twins.twins) == 1
    assert torch.equal(drawn, torch.rand(4, generator=generator))


def test_force_does_not_throw_a_review_away(tmp_path):
    folder = tmp_path / "run"
    with Run.open(folder, {"a": 1}, resume=False, force=False):
        pass
    (folder / "review.sqlite").write_bytes(b"decisions")
    with pytest.raises(BadInput, match="--export"):
        Run.open(folder, {"a": 2}, resume=False, force=True)
    assert (folder / "review.sqlite").read_bytes() == b"decisions"
    (folder / "review.sqlite").unlink()
    with Run.open(folder, {"a": 2}, resume=False, force=True):
        assert Run.config(folder) == {"a": 2}


@pytest.mark.parametrize(
    ("y", "message"),
    [([0, 1, 3], "labels run from 0 to 3"), ([0, -2, 1], "from -2 to 1"),
     ([-1, -1, -1], "every label is -1"), ([0, 1], "3 inputs and 2 labels")],
)  # fmt: skip
def test_labels_outside_of_the_classes_are_refused_before_training(y, message):
    data = Data(torch.rand(3, 2), torch.tensor(y), 3)
    with pytest.raises(BadInput, match=message):
        fit_method(create("ce"), data, Recipe(epochs=1), backbone="mlp:width=8,depth=1")
