"""The demo: it runs, writes only into its folder, and its figures are those of its files."""

import io
import json
import re
import time

import pandas as pd
import pytest
from rich.console import Console

from ytilde import datasets
from ytilde.cli import demo as module
from ytilde.cli.demo import _corrupt, run_demo
from ytilde.data import BadInput


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One epoch: quick, and the way through the code is the same."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        figures = run_demo(folder / "out", epochs=1)
    return folder, figures


def test_writes_only_into_its_folder(demo):
    folder, figures = demo
    assert [p.name for p in folder.iterdir()] == ["out"]
    assert {p.name for p in (folder / "out").iterdir()} == {
        "report.html", "issues.csv", "demo.json"}  # fmt: skip
    assert json.loads((folder / "out" / "demo.json").read_text()) == figures


def test_figures_are_those_of_the_csv(demo):
    folder, figures = demo
    data = _corrupt(datasets.load("fashion-mnist-small"))
    issues = pd.read_csv(folder / "out" / "issues.csv").sort_values("index", ignore_index=True)
    wrong = (data.y != data.clean).numpy()
    found = issues.is_label_issue.to_numpy()
    assert len(issues) == len(data) == 6000
    assert wrong.mean() == pytest.approx(0.4, abs=0.02)
    assert figures["wrong"] == wrong.sum() and figures["suspects"] == found.sum()
    assert figures["precision"] == pytest.approx((wrong & found).sum() / found.sum())
    assert figures["recall"] == pytest.approx((wrong & found).sum() / wrong.sum())
    truth = [data.class_name(k) for k in data.clean.tolist()]
    after = (issues.predicted_label == truth).mean()
    assert figures["labels right after"] == pytest.approx(after)
    assert figures["recall"] > figures["suspects"] / 6000  # better than pointing blindly


def test_report_holds_pictures_curves_and_measures(demo):
    folder, figures = demo
    text = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert text.count('<img src="data:image/png') == 84
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert len(data["suspects"]) == figures["suspects"]  # every one can be searched
    assert len(data["similar"]) == 60 and all(near[-1] for near in data["near"].values())
    assert "plain training" in text and "robust training" in text
    assert f"{100 * figures['recall']:.1f} %" in text
    assert len(text) < 3_000_000
    assert "ytilde review" not in text and "--method elr" not in text  # no run; and elr it was


def test_says_where_things_are(demo, capsys, monkeypatch):
    folder, figures = demo
    monkeypatch.setenv("COLUMNS", "80")
    module._say_results(Console(), folder / "out", figures)
    said = capsys.readouterr().out
    assert str(folder / "out" / "report.html") in said
    assert f"{100 * figures['precision']:.1f} %" in said
    assert re.search(r"ytilde audit \S+", said)


def test_refuses_a_folder_of_other_things(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(BadInput, match="not empty"):
        run_demo(tmp_path, epochs=1)
    with pytest.raises(BadInput, match="is a file"):
        run_demo(tmp_path / "thesis.txt", epochs=1)
    with pytest.raises(BadInput, match="no folder that can be written to"):
        run_demo(tmp_path / "thesis.txt" / "demo", epochs=1)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_step_is_one_line_that_shows_how_far_it_is(terminal):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, highlight=False)
    with module._step(console, "working", fits=2) as show:
        for epoch in range(2 * 15):
            show({"epoch": epoch % 15 + 1, "epochs": 15})
            if epoch == 14 and not terminal:
                assert file.getvalue() == "working ....."
        drawn = "30 of 30 epochs, about 0 s left"
        end = time.monotonic() + 60
        while terminal and drawn not in file.getvalue() and time.monotonic() < end:
            time.sleep(0.02)  # the line is drawn anew a few times a second
    said = file.getvalue()
    if terminal:
        assert drawn in said and re.search(r"working: \d+ s\s*$", said)
    else:
        assert re.fullmatch(r"working \.{10} \d+ s\n", said)
