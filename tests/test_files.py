"""Nothing of the user's is lost: what outputs may replace, and how files are written."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from test_cli import FAST, blobs, refused, ytilde
from ytilde import Classifier, audit, files, outputs
from ytilde.cli.runs import Run
from ytilde.data import BadInput, readers
from ytilde.encoder import Encoder
from ytilde.runfolder import RunFolder


def snapshot(folder):
    """All that is below a folder: type, mode, and content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = path.readlink() if path.is_symlink() else None
        content = path.read_bytes() if stat.S_ISREG(mode) else content
        found[str(path.relative_to(folder))] = (mode, content)
    return found


# ---- how a file is written -----------------------------------------------------------------------


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "t.csv").write_text("old")
    (tmp_path / "link").symlink_to("there/t.csv")
    (tmp_path / "way").symlink_to("link")
    files.write_text(tmp_path / "way", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "way").is_symlink()
    assert (tmp_path / "there" / "t.csv").read_text() == "new"
    (tmp_path / "dangling").symlink_to("there/none.csv")
    files.write_text(tmp_path / "dangling", "new")
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "there" / "none.csv").read_text() == "new"
    assert sorted(os.listdir(tmp_path / "there")) == ["none.csv", "t.csv"]


def test_a_loop_of_links_is_one_sentence(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for ask in (files.check_writable, lambda path: files.write_text(path, "x")):
        with pytest.raises(BadInput, match="cannot write"):
            ask(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_an_existing_file_keeps_its_mode(mode, tmp_path):
    (tmp_path / "t").write_text("old")
    (tmp_path / "t").chmod(mode)
    files.write_text(tmp_path / "t", "new")
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == mode
    files.write_text(tmp_path / "new", "new")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_existing_file_keeps_its_owner(tmp_path):
    (tmp_path / "t").write_text("old")
    os.chown(tmp_path / "t", 1234, 2345)
    files.write_text(tmp_path / "t", "new")
    found = (tmp_path / "t").stat()
    assert (found.st_uid, found.st_gid) == (1234, 2345)


def test_a_device_is_written_into(tmp_path):
    before = os.stat("/dev/null")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in ("/dev/null", tmp_path / "null"):
        files.check_writable(Path(path))
        files.write_text(Path(path), "x")
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode) and (before.st_ino, before.st_mode) == (
        after.st_ino,
        after.st_mode,
    )
    with pytest.raises(BadInput, match="No space left"):
        files.write_text(Path("/dev/full"), "x")


def test_a_pipe_is_written_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    files.write_text(tmp_path / "pipe", "all of it")
    reader.join(120)
    assert read == ["all of it"] and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("into", ["file", "pipe"])
def test_standard_output_is_written_into(into, tmp_path):
    code = (
        "from pathlib import Path; from ytilde import files; print('first', flush=True);"
        "files.write_text(Path('/dev/stdout'), 'second\\n'); print('third')"
    )
    words = [sys.executable, "-c", code]
    if into == "pipe":
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert told == "first\nsecond\nthird\n"
        return
    with (tmp_path / "out").open("a") as file:
        subprocess.run(words, stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"


def test_what_cannot_be_written_into_is_refused(tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        old = Path.cwd()
        os.chdir(tmp_path)  # the name of a socket must be short
        listener.bind("socket")
        os.chdir(old)
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("folder")
        before = snapshot(tmp_path)
        for name in ("socket", "folder", "link", "."):
            for ask in (files.check_writable, lambda path: files.write_text(path, "x")):
                with pytest.raises(BadInput, match="cannot write"):
                    ask(tmp_path / name)
    assert snapshot(tmp_path) == before


def test_only_the_leader_of_a_team_writes(tmp_path, monkeypatch):
    from ytilde.engine import parallel

    monkeypatch.setattr(parallel, "_TEAM", parallel.Team(rank=1, size=2))
    files.write_text(tmp_path / "a", "x")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    files.write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"


def test_files_need_no_torch():
    code = "import sys, ytilde.files; sys.exit('torch' in sys.modules)"
    lean = "import sys, types; m = types.ModuleType('ytilde'); m.__path__ = [sys.argv[1]];"
    words = [sys.executable, "-c", f"{lean} sys.modules['ytilde'] = m; {code}"]
    subprocess.run([*words, str(Path(files.__file__).parent)], check=True)


def test_a_lock_does_not_empty_a_file(tmp_path):
    (tmp_path / "lock").write_text("mine")
    with files.locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "lock").read_text() == "mine"


# ---- what an output may replace ------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, audited, and the user's own files around it."""
    root = tmp_path_factory.mktemp("made")
    blobs(root / "d.csv", ["cat", "dog"])
    shutil.copy(root / "d.csv", root / "d2.csv")
    ytilde("fit", "d.csv", *FAST, "--out", "run", cwd=root)
    ytilde("audit", "run", "--folds", "2", "--fix-above", "0.5", cwd=root)
    ytilde("noise", "d.csv", "--kind", "symmetric:0.2", "--out", "z.npz", cwd=root)
    ytilde("fit", "z.npz", *FAST, "--out", "of-npz", cwd=root)
    (root / "mine.csv").write_text("name,age\nAda,36\n")
    (root / "mine.json").write_text('{"precious": 1}')
    (root / "mine.npz").write_bytes((root / "z.npz").read_bytes()[:-1])
    (root / "mine.xml").write_text("<View/>")
    (root / "mine.onnx").write_bytes(b"onnx")
    (root / "mine.md").write_text("# My thesis\n")
    return root


@pytest.fixture
def root(made, tmp_path):
    shutil.copytree(made, tmp_path / "root", symlinks=True)
    return tmp_path / "root"


PRETRAIN = ["pretrain", "d.csv", "--epochs", "1", "--batch-size", "4", "--backbone", "mlp:width=8"]
INPUTS = [
    ["predict", "run", "d.csv", "--out", "d.csv"],
    ["predict", "run", "d.csv", "--out", "run/../d.csv"],
    ["predict", "run", "d2.csv", "--out", "d.csv"],  # what the run was trained on
    ["predict", "run/model.safetensors", "d.csv", "--out", "run/model.safetensors"],
    ["review", "run", "--export", "d.csv"],
    ["diagnose", "d.csv", "--out", "d.csv"],
    ["audit", "run", "--label-studio", "d.csv"],
    ["audit", "run", "--argilla", "d.csv"],
    [*PRETRAIN, "--out", "d.csv"],
    ["noise", "z.npz", "--out", "z.npz"],
    ["relabel", "d.csv", "run/labels.csv", "--out", "d.csv"],
    ["relabel", "d.csv", "run/labels.csv", "--out", "run/labels.csv"],
]
RUN_FILES = [
    ["predict", "run", "d.csv", "--out", f"run/{name}"]
    for name in ("config.json", "metrics.jsonl", "predictions.csv", "stages/x.csv", "summary.json")
]
RUN_FILES += [
    ["review", "run", "--export", "run/issues.csv"],
    ["diagnose", "d.csv", "--out", "run/summary.json"],
    ["audit", "run", "--label-studio", "run/audit.json"],
    ["audit", "run", "--argilla", "of-npz/config.json"],
    [*PRETRAIN, "--out", "run/model.safetensors"],
    ["relabel", "d.csv", "run/labels.csv", "--out", "of-npz/predictions.csv"],
]
FOREIGN = [
    ["predict", "run", "d.csv", "--out", "mine.csv"],
    ["review", "run", "--export", "mine.csv"],
    ["diagnose", "d.csv", "--out", "mine.json"],
    ["audit", "run", "--label-studio", "mine.json"],
    ["audit", "run", "--label-studio", "new.json", "--argilla", "mine.json"],
    [*PRETRAIN, "--out", "mine.json"],
    ["noise", "d.csv", "--out", "mine.npz"],
    ["relabel", "d.csv", "run/labels.csv", "--out", "mine.csv"],
    ["export", "run", "--out", "mine.onnx"],
    ["bench", "report", "dtm_t4", "--markdown", "mine.md"],
    ["bench", "report", "dtm_t4", "--html", "mine.md"],
    ["bench", "report", "dtm_t4", "--latex", "mine.md"],
]


def named(words):
    return " ".join(words[:2] + words[-2:])


@pytest.mark.parametrize("words", INPUTS, ids=named)
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_an_output_is_never_an_input(words, force, root):
    before = snapshot(root)
    refused(*words, *force, match="give another name", cwd=root)
    assert snapshot(root) == before


@pytest.mark.parametrize("words", RUN_FILES, ids=named)
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_an_output_is_never_a_file_of_a_run(words, force, root):
    before = snapshot(root)
    refused(*words, *force, match="give another name", cwd=root)
    assert snapshot(root) == before


@pytest.mark.parametrize("words", FOREIGN, ids=named)
def test_a_foreign_file_is_refused_before_the_work(words, root, monkeypatch):
    def work(*_, **__):
        raise AssertionError("worked first")

    if words[0] in ("predict", "diagnose", "noise", "pretrain", "audit", "review"):
        monkeypatch.setattr(readers, "read", work)
    before = snapshot(root)
    refused(*words, match="--force", cwd=root)
    assert snapshot(root) == before


@pytest.mark.parametrize("way", ["link", "hard link"])
def test_an_input_under_another_name_is_an_input(way, root):
    (root / "other.csv").hardlink_to(root / "d.csv") if way == "hard link" else (
        root / "other.csv"
    ).symlink_to("d.csv")
    before = snapshot(root)
    for words in (["predict", "run", "d.csv", "--out"], ["review", "run", "--export"]):
        refused(*words, "other.csv", "--force", match="is an input", cwd=root)
    assert snapshot(root) == before


def test_an_output_of_the_same_kind_is_replaced_and_so_is_an_empty_file(root):
    (root / "p.csv").touch()
    for _ in range(2):
        ytilde("predict", "run", "d.csv", "--out", "p.csv", "--probabilities", cwd=root)
        ytilde("review", "run", "--export", "l.csv", cwd=root)
        ytilde("audit", "run", "--folds", "2", "--label-studio", "t.json", "--argilla", "a.json",
               "--fix-above", "0.5", cwd=root)  # fmt: skip
        ytilde("noise", "d.csv", "--kind", "symmetric:0.1", "--out", "z.npz", cwd=root)
        ytilde("bench", "report", "dtm_t4", "--markdown", "t.md", "--html", "t.html", "--latex",
               "t.tex", cwd=root)  # fmt: skip
    assert list(pd.read_csv(root / "p.csv"))[-2:] == ["prob_cat", "prob_dog"]
    before = {path: path.read_bytes() for path in root.iterdir() if path.is_file()}
    for words in (["predict", "run", "d.csv", "--out", "l.csv"], ["review", "run", "--export",
                  "p.csv"], ["diagnose", "d.csv", "--out", "t.json"]):  # fmt: skip
        refused(*words, match="no earlier output of this kind", cwd=root)
    assert {path: path.read_bytes() for path in root.iterdir() if path.is_file()} == before


def test_labels_that_somebody_edited_are_not_replaced(root):
    ytilde("review", "run", "--export", "l.csv", cwd=root)
    frame = pd.read_csv(root / "l.csv")
    frame.loc[0, "label"] = {"cat": "dog", "dog": "cat"}[frame.label[0]]
    frame.to_csv(root / "l.csv", index=False)
    refused("review", "run", "--export", "l.csv", match="--force", cwd=root)
    ytilde("review", "run", "--export", "l.csv", "--force", cwd=root)


def test_tasks_that_came_back_with_work_in_them_are_not_replaced(root):
    tasks = [{"data": {}, "predictions": [{"model_version": "ytilde"}]}]
    (root / "t.json").write_text(json.dumps(tasks))
    assert outputs.is_own(root / "t.json", "label studio")
    (root / "t.json").write_text(json.dumps([tasks[0] | {"annotations": [{"result": []}]}]))
    assert not outputs.is_own(root / "t.json", "label studio")
    record = {"suggestions": {"label": {"agent": "ytilde"}}, "responses": {}}
    (root / "a.json").write_text(json.dumps([record]))
    assert outputs.is_own(root / "a.json", "argilla")
    (root / "a.json").write_text(json.dumps([record | {"responses": {"label": "cat"}}]))
    assert not outputs.is_own(root / "a.json", "argilla")


@pytest.mark.parametrize("kind", sorted(outputs.KINDS))
def test_no_kind_takes_a_foreign_file_for_its_own(kind, tmp_path):
    contents = [
        b"x",
        b"[1]",
        b"{}",
        b"null",
        b"a,b\n1,2\n",
        b"\xff\xfe\x00",
        b"PK\x05\x06" + b"\0" * 18,
    ]
    contents += [
        b"[" * 100_000,
        b"\xff" * 16,
        (10**6).to_bytes(8, "little") + b"{}",
        b"<html></html>",
    ]
    contents += [b"index,label,fixed,given_label\n0,a\n", b'[{"predictions": [], "data": 1}]']
    for content in contents:
        (tmp_path / "f").write_bytes(content)
        assert not outputs.is_own(tmp_path / "f", kind), content
    with zipfile.ZipFile(tmp_path / "f", "w") as file:
        file.writestr("x.npy", "x")
    assert not outputs.is_own(tmp_path / "f", kind)


def test_two_outputs_have_two_names(root):
    before = snapshot(root)
    refused("audit", "run", "--label-studio", "t.xml", match="two outputs", cwd=root)
    words = ["audit", "run", "--label-studio", "t.json", "--argilla", "t.json"]
    refused(*words, match="two outputs", cwd=root)
    words = ["bench", "report", "dtm_t4", "--html", "t", "--markdown", "./t"]
    refused(*words, match="two outputs", cwd=root)
    assert snapshot(root) == before


def test_the_pictures_of_a_folder_or_a_table_are_inputs(tmp_path):
    for name in ("a", "b"):
        for k in range(6):
            (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
            shade = 40 + 170 * (name == "b") + k
            Image.new("L", (8, 8), shade).save(tmp_path / "pictures" / name / f"{k}.png")
    words = ["--epochs", "1", "--batch-size", "4", "--backbone", "mlp:width=8", "--method", "ce"]
    ytilde("fit", "pictures", *words, "--out", "run", cwd=tmp_path)
    files_ = [f"pictures/{name}/{k}.png" for name in "ab" for k in range(6)]
    pd.DataFrame({"file": files_, "label": list("aaaaaabbbbbb")}).to_csv(
        tmp_path / "t.csv", index=False
    )
    ytilde("fit", "t.csv", "--image-column", "file", *words, "--out", "of-table", cwd=tmp_path)
    (tmp_path / "link.csv").symlink_to(files_[0])
    before = snapshot(tmp_path)
    for run, source in (("run", "pictures"), ("of-table", "t.csv")):
        refused("predict", run, source, "--out", "link.csv", "--force",
                match="would be overwritten", cwd=tmp_path)  # fmt: skip
    refused("audit", "of-table", "--argilla", files_[0], "--force",
            match="would be overwritten", cwd=tmp_path)  # fmt: skip
    assert snapshot(tmp_path) == before


def test_an_output_may_be_a_link_a_device_or_a_private_file(root):
    (root / "secret.csv").touch(mode=0o600)
    (root / "link.csv").symlink_to("target.csv")
    for out in ("secret.csv", "link.csv", "/dev/null"):
        ytilde("predict", "run", "d.csv", "--out", out, cwd=root)
    assert stat.S_IMODE((root / "secret.csv").stat().st_mode) == 0o600
    assert (root / "link.csv").is_symlink() and len(pd.read_csv(root / "target.csv"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_among_the_files_of_a_run_is_not_written_through(root):
    for name in ("issues.csv", "report.html", "audit.json", "labels.csv", "audit.safetensors"):
        kept = (root / "run" / name).read_bytes()
        (root / "run" / name).unlink()
        (root / "run" / name).symlink_to("../mine.csv")
        before = snapshot(root)
        refused("audit", "run", "--folds", "2", match="is a link", cwd=root)
        assert snapshot(root) == before
        (root / "run" / name).unlink()
        (root / "run" / name).write_bytes(kept)
    (root / "run" / "review.sqlite").symlink_to("../mine.csv")
    refused("review", "run", "--export", "l.csv", match="is a link", cwd=root)


def test_python_does_not_overwrite_either(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.arange(30) % 2
    clf = Classifier("ce", "mlp:width=8,depth=1", epochs=1).fit(x, y)
    probs = np.where(np.eye(2)[y] > 0, 0.99, 0.01)
    found = audit(probs, np.where(np.arange(30) < 4, 1 - y, y))  # four labels are wrong
    assert found.issues.is_label_issue.any()
    encoder = Encoder("mlp", (2,), torch.zeros(2), torch.ones(2), {"w": torch.zeros(2)})
    writers = {
        "classifier": clf.save, "encoder": encoder.save, "csv": found.to_csv,
        "json": found.to_json, "html": found.to_html, "tasks": found.to_label_studio,
        "records": found.to_argilla,
    }  # fmt: skip
    for name, write in writers.items():
        mine = tmp_path / f"{name}.mine"
        mine.write_text("precious")
        with pytest.raises(BadInput, match="force=True"):
            write(mine)
        assert mine.read_text() == "precious"
        write(mine, force=True)
        assert mine.read_text(errors="replace") != "precious"
        for _ in range(2):
            write(tmp_path / f"{name}.new")


def test_pretraining_leaves_what_is_not_its_own(root):
    (root / ".e.work").mkdir()
    (root / ".e.work" / "mine").write_text("precious")
    ytilde(*PRETRAIN, "--out", "e", cwd=root)
    assert snapshot(root / ".e.work") == {
        "mine": ((root / ".e.work/mine").stat().st_mode, b"precious")
    }
    ytilde(*PRETRAIN, "--out", "f", cwd=root)
    assert not (root / ".f.work").exists()
    refused(*PRETRAIN, "--out", "/dev/null", match="give a regular file", cwd=root)


# ---- fit --force ---------------------------------------------------------------------------------


def project(folder, config):
    """A folder of the user's that has a config.json too."""
    (folder / "src").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "src" / "main.py").write_text("print()")
    (folder / ".git" / "HEAD").write_text("ref")
    (folder / "config.json").write_text(config)
    (folder / "d.csv").write_text("a,label\n1,x\n2,y\n")
    return folder


FOREIGN_CONFIGS = [
    "{}", "[]", "no json", '{"name": "my project"}', '{"digest": "0"}', '{"digest": 5}', "",
    json.dumps({"source": 1, "method": 1, "fields": 1, "backbone": 1, "recipe": 1,
                "fingerprint": 1, "versions": 1}),
]  # fmt: skip


@pytest.mark.parametrize("config", FOREIGN_CONFIGS)
def test_force_leaves_a_folder_that_ytilde_did_not_make(config, tmp_path):
    blobs(tmp_path / "d.csv", ["cat", "dog"])
    folder = project(tmp_path / "project", config)
    before = snapshot(tmp_path)
    for words in ([], ["--force"]):
        told = refused("fit", "d.csv", *FAST, "--out", folder, *words,
                       match="give --out another folder", cwd=tmp_path)  # fmt: skip
        assert "--force" not in told.stderr  # it would not help, and must not be advised
    refused("fit", "d.csv", *FAST, "--out", folder, "--resume", match="", cwd=tmp_path)
    assert snapshot(tmp_path) == before


def test_force_removes_the_files_of_a_run_and_no_others(root):
    run = root / "run"
    (run / "notes").mkdir()
    (run / "notes" / ".new-idea").write_text("precious")
    (run / ".new-idea").write_text("precious")
    (run / "checkpoint-best.safetensors").write_text("precious")
    (run / "stages").mkdir(exist_ok=True)
    (run / "stages" / "notes.txt").write_text("precious")
    (run / "cache").mkdir(exist_ok=True)
    (run / "cache" / "x-1.safetensors").write_text("old")
    (run / "link").symlink_to("../mine.csv")
    (run / ".new-abcd1234").write_text("half a file")
    kept = (".new-idea", "checkpoint-best.safetensors", "link")
    mine = {name: item for name, item in snapshot(run).items() if "notes" in name or name in kept}
    ytilde("fit", "d.csv", *FAST, "--seed", "7", "--out", "run", "--force", cwd=root)
    after = snapshot(run)
    assert {name: after[name] for name in mine} == mine
    for name in ("cache", "issues.csv", "report.html", "labels.csv", "audit.json",
                 "audit.safetensors", ".new-abcd1234"):  # fmt: skip
        assert name not in after
    assert json.loads(after["config.json"][1])["recipe"]["seed"] == 7


@pytest.mark.parametrize(
    "name", ["stages", "model.safetensors", "metrics.jsonl", ".lock", "pretrain"]
)
@pytest.mark.parametrize("how", ["link", "other type"])
@pytest.mark.parametrize("words", ["--force", "--resume"])
def test_a_run_with_links_in_it_is_left_whole(name, how, words, root):
    path = root / "run" / name
    (root / "stages.mine").mkdir()
    (root / "stages.mine" / "main.safetensors").write_text("precious")
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    folder = name in ("stages", "pretrain")
    if how == "link":
        path.symlink_to(root / ("stages.mine" if folder else "mine.csv"))
    elif folder:
        path.write_text("precious")
    else:
        path.mkdir()
    before = snapshot(root)
    refused("fit", "d.csv", *FAST, "--out", "run", words, match="is no plain", cwd=root)
    assert snapshot(root) == before


def test_force_does_not_remove_its_own_input(root):
    for words in (["fit", "run/predictions.csv", "--label", "given_label"],
                  ["fit", "d.csv", "--test", "run/labels.csv", "--label", "label"]):  # fmt: skip
        shutil.copy(root / "d.csv", root / "run" / Path(words[-1]).name)
        before = snapshot(root)
        done = ytilde(*words, *FAST, "--out", "run", "--force", cwd=root, check=False)
        assert done.returncode == 2 and snapshot(root) == before
    ytilde(*PRETRAIN, "--out", "e", cwd=root)
    (root / "run" / "audit.safetensors").unlink()
    (root / "run" / "audit.safetensors").hardlink_to(root / "e")
    before = snapshot(root)
    refused("fit", "d.csv", *FAST[:4], "--backbone", "mlp:width=8", "--encoder", "e", "--out",
            "run", "--force", match="is an input", cwd=root)  # fmt: skip
    assert snapshot(root) == before


def test_a_run_of_the_first_version_has_no_digest_and_can_be_replaced(root):
    path = root / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["digest"]
    path.write_text(json.dumps(config))
    (root / "run" / "mine.txt").write_text("precious")
    refused("fit", "d.csv", *FAST, "--out", "run", "--force", match="another folder", cwd=root)
    (root / "run" / "mine.txt").unlink()
    ytilde("fit", "d.csv", *FAST, "--out", "run", "--force", cwd=root)
    assert "digest" in json.loads(path.read_text())


def test_a_run_that_was_changed_by_hand_is_not_replaced(root):
    path = root / "run" / "config.json"
    path.write_text(path.read_text().replace('"method": "ce"', '"method": "elr"'))
    before = snapshot(root)
    refused("fit", "d.csv", *FAST, "--out", "run", "--force", match="was changed", cwd=root)
    assert snapshot(root) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock", "notes"])
def test_a_folder_without_a_run_is_not_begun_in(name, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / name).write_text("precious")
    with pytest.raises(BadInput, match="not empty"):
        Run.open(tmp_path / "r", {}, resume=False, force=True)
    assert [p.read_text() for p in (tmp_path / "r").iterdir()] == ["precious"]


def test_every_file_of_a_run_has_a_known_name(root):
    """Also those of methods in several stages, races, pre-training and images that are broken."""
    for k in range(12):
        (root / "pictures" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * k).save(root / "pictures" / "ab"[k % 2] / f"{k}.png")
    (root / "pictures" / "a" / "x.png").write_text("no picture")
    small = ["--epochs", "1", "--batch-size", "4", "--backbone", "mlp:width=8"]
    for source, words in {
        "d.csv": ["--method", "dual_t", "--pretrain", "simclr:epochs=1,batch_size=4"],
        "z.npz": ["--method", "auto"],
        "pictures": ["--method", "ce"],
    }.items():
        ytilde("fit", source, *small, *words, "--out", f"r-{source}", cwd=root)
        assert RunFolder(root / f"r-{source}").foreign() == []
        RunFolder(root / f"r-{source}").remove()
        assert not (root / f"r-{source}").exists()
    RunFolder(root / "run").remove()
    assert not (root / "run").exists()


def test_a_download_leaves_the_archive_that_the_user_put_there(tmp_path, monkeypatch):
    import hashlib
    import tarfile

    from ytilde import datasets

    (tmp_path / "VOCdevkit" / "VOC2012").mkdir(parents=True)
    (tmp_path / "to").mkdir()
    archive = tmp_path / "to" / "VOCtrainval_11-May-2012.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(tmp_path / "VOCdevkit", "VOCdevkit")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    datasets.download("voc2012", tmp_path / "to")
    assert (tmp_path / "to" / "VOCdevkit" / "VOC2012").is_dir()
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == digest
