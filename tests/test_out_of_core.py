"""Audits of files: in parts, they say what an audit in memory says, to the last bit."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from ytilde import BadInput, audit
from ytilde.auditing import blocks, inputs, passes, sample
from ytilde.auditing.audit import audit_files
from ytilde.cli import app
from ytilde.data.readers.stream import ProbabilityFiles

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["cat", "dog", "owl", "elk"]


def made(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """float32 probabilities and labels, a tenth of them wrong, a few missing."""
    rng = np.random.default_rng(seed)
    true = rng.integers(4, size=n)
    z = rng.normal(size=(n, 4)) + 3 * rng.random((n, 1)) * np.eye(4)[true]
    p = np.exp(2 * z)
    y = np.where(rng.random(n) < 0.1, rng.integers(4, size=n), true)
    return (p / p.sum(1, keepdims=True)).astype(np.float32), np.where(rng.random(n) < 0.03, -1, y)


def table(p: np.ndarray, y: np.ndarray, first: int = 0) -> "pa.Table":
    labels = [NAMES[label] if label >= 0 else None for label in y]
    ids = [f"row-{first + k}" for k in range(len(y))]
    columns = {f"p_{name}": p[:, k] for k, name in enumerate(NAMES)}
    return pa.table({"name": ids, **columns, "label": labels})


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks in each part."""
    monkeypatch.setattr(inputs, "CHUNK", 4 * 333)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts, and a sample that is not all rows."""
    monkeypatch.setattr(blocks, "PART", 1500)
    monkeypatch.setattr(passes, "PART", 1500)
    monkeypatch.setattr("ytilde.auditing.issues.PART", 1500)
    monkeypatch.setattr(sample, "ROWS", 2500)
    monkeypatch.setattr(sample, "FEWEST", 2500)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """4,000 rows in three files whose row groups end anywhere."""
    p, y = made(4000)
    out = tmp_path / "probs"
    out.mkdir()
    for k, (first, stop) in enumerate(((0, 700), (700, 3100), (3100, 4000))):
        part = table(p[first:stop], y[first:stop], first)
        pq.write_table(part, out / f"part-{k}.parquet", row_group_size=610)
    (out / "_SUCCESS").touch()
    return out


def refused(words: list[str]) -> str:
    """The sentence with which a command refuses."""
    with pytest.raises(BadInput) as error:
        CliRunner().invoke(app, words, catch_exceptions=False)
    return str(error.value)


def assert_same(found, expected) -> None:
    assert found.noise_rate == expected.noise_rate
    assert found.noise_rate.low == expected.noise_rate.low
    assert found.noise_rate.high == expected.noise_rate.high
    np.testing.assert_array_equal(found.transition, expected.transition)
    pd.testing.assert_frame_equal(found.per_class, expected.per_class, check_exact=True)
    pd.testing.assert_frame_equal(found.pairs, expected.pairs, check_exact=True)
    assert found.notes == expected.notes and found.summary() == expected.summary()
    assert found.unjudged == expected.unjudged > 0


@pytest.mark.usefixtures("small_parts", "small_blocks")
def test_files_are_judged_as_in_memory_to_the_last_bit(folder: Path, tmp_path: Path) -> None:
    p, y = made(4000)
    expected = audit(p, y, names=NAMES)
    expected.to_parquet(tmp_path / "memory.parquet")
    found = audit(folder, out=tmp_path / "issues.parquet")
    assert (tmp_path / "issues.parquet").read_bytes() == (tmp_path / "memory.parquet").read_bytes()
    assert_same(found, expected)
    whole = pd.read_parquet(tmp_path / "issues.parquet")
    assert len(whole) == (y >= 0).sum() and whole.p_wrong.dtype == np.float32
    np.testing.assert_array_equal(whole.p_wrong, expected.issues.p_wrong.astype(np.float32))
    assert whole.given_label.astype(str).tolist() == expected.issues.given_label.tolist()


def test_200_rows_are_few_enough_to_need_no_sample(tmp_path: Path) -> None:
    p, y = made(200)
    pq.write_table(table(p, y), tmp_path / "probs.parquet")
    found = audit(str(tmp_path / "probs.parquet"), "label")
    assert_same(found, audit(p, y, names=NAMES))
    assert found.whole is not None and found.totals.rows[0] == (y >= 0).sum()


@pytest.mark.usefixtures("small_parts")
def test_the_sample_is_the_same_however_the_rows_come(folder: Path) -> None:
    files = ProbabilityFiles(folder, "p_*")
    parts = [passes.sample_part(files, *cut) for cut in ((0, 1500), (1500, 3000), (3000, 4000))]
    one, other = (sample.Sample.together(each).evidence() for each in (parts, parts[::-1]))
    np.testing.assert_array_equal(one.p, other.p)
    assert len(one.rows) == 2500


@pytest.mark.usefixtures("small_parts")
def test_a_column_of_lists_is_the_same_as_columns(folder: Path, tmp_path: Path) -> None:
    p, y = made(4000)
    expected = audit(p, y, names=["0", "1", "2", "3"])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(p.ravel()), 4)
    pq.write_table(pa.table({"probs": lists, "y": y}), tmp_path / "lists.parquet")
    assert_same(audit(tmp_path / "lists.parquet", probabilities="probs"), expected)


@pytest.mark.usefixtures("small_parts", "small_blocks")
def test_the_command_writes_rows_figures_and_report(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "issues.parquet"
    words = ["audit", str(folder), "--probabilities", "p_*", "--id", "name", "--out", str(out)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "4000 rows; 4 classes" in told.output and "labels are wrong" in told.output
    rows = pd.read_parquet(out)
    assert (rows.id == "row-" + rows["index"].astype(str)).all()
    figures = json.loads(out.with_suffix(".json").read_text())
    assert figures["rows"] == len(rows)
    assert len(figures["issues"]) == rows.is_label_issue.sum()
    report = out.with_suffix(".html").read_text()
    assert "issues.parquet" in report and "issues.csv" not in report
    assert rows.id[rows.p_wrong.idxmax()] in report
    assert CliRunner().invoke(app, words).exit_code == 0  # its own files may be replaced
    pq.write_table(pa.table({"mine": [1]}), out)
    assert refused(words) and refused(words).startswith(str(out))
    assert pq.read_table(out).column_names == ["mine"]


@pytest.mark.parametrize("ids", [[], ["--id", "name"]])
def test_nothing_suspicious_is_an_answer_too(ids: list[str], tmp_path: Path) -> None:
    y = np.arange(400) % 4
    pq.write_table(table(0.96 * np.eye(4)[y] + 0.01, y), tmp_path / "p.parquet")
    words = ["audit", str(tmp_path / "p.parquet"), "--probabilities", "p_*", *ids, "--out"]
    told = CliRunner().invoke(app, [*words, str(tmp_path / "i.parquet")])
    assert told.exit_code == 0, told.output
    assert not pq.read_table(tmp_path / "i.parquet")["is_label_issue"].to_pandas().any()
    assert json.loads((tmp_path / "i.json").read_text())["issues"] == []
    assert (tmp_path / "i.html").read_text().rstrip().endswith("</html>")


def test_no_part_is_lost_or_counted_twice(folder: Path, tmp_path: Path) -> None:
    """A linked folder was passed over, and what Spark left half-written was read."""
    (tmp_path / "elsewhere").mkdir()
    for k, name in enumerate(("elsewhere/part-1.parquet", "probs/part-2.PARQUET"), 1):
        (folder / f"part-{k}.parquet").rename(tmp_path / name)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(folder)
    for name in ("_temporary", ".ipynb_checkpoints"):
        (folder / name).mkdir()
        shutil.copy(folder / "part-0.parquet", folder / name)
    assert ProbabilityFiles(folder, "p_*").rows == 4000
    (folder / "gone.parquet").symlink_to("nowhere.parquet")
    with pytest.raises(BadInput, match=r"gone\.parquet cannot be read: it leads to nothing"):
        ProbabilityFiles(folder, "p_*")


def test_an_output_is_no_part_of_its_source(folder: Path, tmp_path: Path) -> None:
    """The next audit would read it as one."""
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "link").symlink_to(folder)
    for place in (folder, tmp_path / "link"):
        words = ["audit", str(folder), "--probabilities", "p_*", "--out"]
        told = CliRunner().invoke(app, [*words, str(place / "issues.parquet"), "--force"])
        assert isinstance(told.exception, BadInput)
        assert "would lie among the files of" in str(told.exception)
    (tmp_path / "link").unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_function_overwrites_neither_an_input_nor_what_is_not_its_own(
    folder: Path, tmp_path: Path
) -> None:
    part, other = folder / "part-0.parquet", tmp_path / "mine.parquet"
    other.write_bytes(b"precious")
    before = part.read_bytes()
    with pytest.raises(BadInput, match="is an input and would be overwritten"):
        audit(part, out=part, force=True)
    with pytest.raises(BadInput, match="is no earlier output of this kind"):
        audit(part, out=other)
    assert part.read_bytes() == before and other.read_bytes() == b"precious"
    found = audit(part, out=other, force=True)
    assert len(pd.read_parquet(other)) == int(found.per_class.given.sum())
    assert audit(part, out=other).noise_rate == found.noise_rate  # now it is its own


def test_what_cannot_be_judged_is_refused_with_its_row(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "issues.parquet"
    with pytest.raises(BadInput, match=r"no column of .* is called q_"):
        audit(folder, probabilities="q_*", out=out)
    with pytest.raises(BadInput, match="There is no label column 'kind'"):
        audit(folder, "kind", out=out)
    with pytest.raises(BadInput, match="no id column 'key'"):
        audit(folder, id_column="key", out=out)
    p, y = made(300)
    p[7] = 0.4
    pq.write_table(table(p, y, 4000), folder / "part-3.parquet")
    with pytest.raises(BadInput, match=r"in row 4007 .* of .* do not sum to 1 \(but to 1.6\)"):
        audit(folder, out=out)
    good = table(*made(300))
    bad = good.set_column(5, "label", pa.array(["cat"] * 299 + ["cow"]))
    pq.write_table(bad, folder / "part-3.parquet")
    with pytest.raises(BadInput, match="There is 'cow' in row 4299"):
        audit(folder, out=out)
    pq.write_table(good.drop_columns(["p_owl"]), folder / "part-3.parquet")
    with pytest.raises(BadInput, match=r"part-3\.parquet has no column p_owl"):
        audit(folder, out=out)
    assert not out.exists()


def test_what_only_memory_can_do_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "--out issues.parquet" in refused(["audit", str(folder), "--probabilities", "p_*"])
    words = ["audit", str(folder), "--probabilities", "p_*", "--out", str(tmp_path / "a.parquet")]
    assert "--fix-above" in refused([*words, "--fix-above", "0.9"])
    with pytest.raises(BadInput, match="keeps some rows only"):
        audit(folder).fixed_labels(0.9)
    with pytest.raises(BadInput, match="audit of files"):
        audit(*made(50), out=tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="audit of files"):
        audit(folder, names=NAMES)


def test_without_ray_one_sentence_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(BadInput, match="pip install 'ytilde"):
        audit(folder, ray=True)


class Deadly(ProbabilityFiles):
    """Files whose first reader of the third part in the second pass is killed."""

    marks: Path

    def blocks(self, cuts):
        for block in super().blocks(cuts):
            if block.first >= 3000:
                seen = len(list(self.marks.iterdir()))
                (self.marks / f"{os.getpid()}-{seen}").touch()
                if seen == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield block


@pytest.mark.usefixtures("small_parts")
def test_ray_finds_the_same_when_a_worker_is_killed(folder: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ytilde[ray]'")
    source = str(Path(__file__).parents[1] / "src")
    environment = {"env_vars": {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    try:
        table = Deadly(folder, "p_*")
        table.marks = tmp_path / "marks"
        table.marks.mkdir()
        found = audit_files(table, tmp_path / "ray.parquet", ray=True)
        assert len(list(table.marks.iterdir())) > 2  # the part was worked on once more
    finally:
        ray.shutdown()
    expected = audit(folder, out=tmp_path / "threads.parquet")
    assert (tmp_path / "ray.parquet").read_bytes() == (tmp_path / "threads.parquet").read_bytes()
    assert_same(found, expected)
    pd.testing.assert_frame_equal(found.issues, expected.issues, check_exact=True)
