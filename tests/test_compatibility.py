"""Run folders of ytilde 0.1 still predict, audit, open for review and resume to the same bits.

`fixtures/run-0.1/make.py` tells how they were made; they are never made again.
"""

import runpy
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from test_cli import ytilde
from ytilde import Classifier, checkpoint, create
from ytilde.cli.runs import Run
from ytilde.testing import blobs

FIXTURE = Path(__file__).parent / "fixtures" / "run-0.1"
MADE = runpy.run_path(str(FIXTURE / "make.py"))  # the commands, and `rounding`


@pytest.fixture
def old(tmp_path):
    """A copy of the folder: the originals stay as 0.1 left them."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "old"))


def tensors(path):
    return checkpoint.load(path)[0]


def assert_same_weights(found, expected, exactly):
    """exactly: bit for bit; machines whose kernels round otherwise come near."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        alike = torch.equal if exactly else torch.allclose
        assert alike(found[name], value), name


def assert_same_predictions(path, expected):
    found, then = pd.read_csv(path), pd.read_csv(expected)
    pd.testing.assert_frame_equal(found, then, check_exact=False, atol=2e-6)


def test_a_finished_run_predicts(old):
    ytilde("predict", "finished", "new.csv", "--probabilities", "--out", "p.csv", cwd=old)
    assert_same_predictions(old / "p.csv", old / "expected" / "finished.csv")


def test_a_finished_run_is_audited(old):
    for name in ("issues.csv", "audit.json"):
        (old / "finished" / name).unlink()
    ytilde("audit", "finished", "--folds", "0", cwd=old)
    issues = pd.read_csv(old / "finished" / "issues.csv").set_index("index").sort_index()
    then = pd.read_csv(FIXTURE / "finished" / "predictions.csv").set_index("index")
    assert issues.given_label.tolist() == then.given_label.tolist()
    sure = then.predicted_prob > 0.9
    assert sure.sum() > 20
    assert issues[sure].predicted_label.tolist() == then[sure].predicted_label.tolist()
    assert (old / "finished" / "report.html").exists()


def test_its_folds_can_be_trained(old):
    ytilde("audit", "finished", "--folds", "2", cwd=old)
    assert len(pd.read_csv(old / "finished" / "issues.csv")) == 120


def test_an_audit_of_then_opens_for_review(old):
    ytilde("review", "finished", "--export", "labels.csv", cwd=old)
    given = pd.read_csv(FIXTURE / "finished" / "predictions.csv").given_label
    assert pd.read_csv(old / "labels.csv").label.tolist() == given.tolist()


def test_a_finished_run_resumed_trains_nothing_again(old):
    done = ytilde(*MADE["FINISHED"], "--out", "finished", "--resume", cwd=old)
    assert "made again" not in done.stdout
    before = (FIXTURE / "finished" / "metrics.jsonl").read_text()
    assert (old / "finished" / "metrics.jsonl").read_text() == before
    now, then = (tensors(path / "finished" / "model.safetensors") for path in (old, FIXTURE))
    assert_same_weights(now, then, exactly=True)


def test_an_interrupted_run_resumes_to_the_same_bits(old):
    done = ytilde(*MADE["INTERRUPTED"], "--out", "interrupted", "--resume", cwd=old)
    assert "made again" not in done.stdout
    epochs = [record["epoch"] for record in Run.history(old / "interrupted")]
    assert epochs == [1, 2, 3, 4, 5, 6, 7, 8]
    exactly = MADE["rounding"]() == (FIXTURE / "expected" / "rounding.txt").read_text().strip()
    expected = tensors(FIXTURE / "expected" / "resumed.safetensors")
    assert_same_weights(tensors(old / "interrupted" / "model.safetensors"), expected, exactly)
    ytilde("predict", "interrupted", "new.csv", "--probabilities", "--out", "p.csv", cwd=old)
    assert_same_predictions(old / "p.csv", FIXTURE / "expected" / "interrupted.csv")


@pytest.mark.parametrize(("name", "old"), [("cores", "warmup"), ("mentornet", "burn_in")])
def test_a_model_with_an_old_name_of_a_field_loads(name, old, tmp_path):
    X, y = blobs(60).x.numpy(), blobs(60).y.numpy()
    clf = Classifier(create(name, warm_up=0.25), "mlp:width=8,depth=1", epochs=1).fit(X, y)
    clf.save(tmp_path / "model.safetensors")
    saved, meta = checkpoint.load(tmp_path / "model.safetensors")
    meta["fields"][old] = meta["fields"].pop("warm_up")
    checkpoint.save(tmp_path / "old.safetensors", saved, meta)
    then = Classifier.load(tmp_path / "old.safetensors")
    assert then.method_.warm_up == 0.25
    assert (then.predict_proba(X) == clf.predict_proba(X)).all()


def test_a_run_begun_with_an_old_name_of_a_field_goes_on(old):
    words = ["fit", "data.csv", "--method", "cores", "--warmup", "0.2", "--epochs", "2"]
    words += ["--backbone", "mlp:width=8,depth=1", "--out", "run"]
    ytilde(*words, cwd=old)
    ytilde(*words, "--resume", cwd=old)
    assert Run.config(old / "run")["fields"] == {"warmup": 0.2}
