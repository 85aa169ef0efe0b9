"""The benchmark: tables as printed, runs exactly once whatever is killed, reports that add up."""

import io
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats as scipy_stats
from typer.testing import CliRunner

from ytilde import bench, bench_cli, bench_report, bench_tables
from ytilde.bench import Job, Place
from ytilde.data import BadInput

ROOT = Path(__file__).parents[1]

TOML = """
title = "A table of two"
source = "Nobody, Table 0"
protocol = "last"
seeds = 3
reduced_epochs = 2

[recipe]
optimizer = "adam"
lr = 0.001
epochs = 4
batch_size = 50
schedule = "constant"
val = 0.1

[[groups]]
name = "MNIST"
data = "mnist"
backbone = "lenet5"
columns = [{ name = "sym 40%", noise = "symmetric:0.4" }, { name = "0%" }]

[[rows]]
name = "CE"
method = "ce"
[rows.paper]
"MNIST" = ["70.67 ± 1.30", "99.27 ± 0.07"]

[[rows]]
name = "LN"
method = "ln"
[rows.paper]
"MNIST" = ["97.21 ± 0.38", "99.38"]
[rows.grid]
"MNIST" = { tau = [0.1, 1.0] }
"""


@pytest.fixture
def table(tmp_path):
    return written(tmp_path, TOML)


def written(folder, text):
    (folder / "two.toml").write_text(text)
    return bench_tables.read_table(folder / "two.toml")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "results", tmp_path / "work", commit="abc")


def lines_of(place):
    return [json.loads(line) for line in (place.results / "two.jsonl").read_text().splitlines()]


def figures_of(lines):
    """What must be the same however often the runs were disturbed."""
    timing = ("seconds", "commit")
    return {line["hash"]: {k: v for k, v in line.items() if k not in timing} for line in lines}


# ---- the papers' tables -------------------------------------------------------------------------


def test_every_table_has_the_papers_rows_and_columns():
    printed = {
        "causal_nl_t1": 9 * 5 + 5,  # and a row of ours, as the authors' code
        "causal_nl_t2": 9 * 5, "causal_nl_t3": 9 * 5, "causal_nl_t4": 9 * 5, "causal_nl_t5": 8,
        "logistic_normal_t1": 9 * 27, "logistic_normal_t2": 9 * 7, "logistic_normal_t3": 5 * 2,
        "softmax_temperature_t1": 6 * 3, "softmax_temperature_t2": 3 * 4,
        "softmax_temperature_t3": 3 * 3, "softmax_temperature_t4": 6 * 3,
        "softmax_temperature_t5": 6 * 3, "softmax_temperature_t6": 6 * 3,
        "dtm_t1": 10 * 10, "dtm_t2": 8 * 6, "dtm_t3": 8 * 2, "dtm_t4": 4 * 4,
    }  # fmt: skip
    assert printed == {name: len(bench.cells(bench.load_table(name))) for name in printed}


@pytest.mark.parametrize(
    ("table", "row", "column", "printed"),
    [
        ("causal_nl_t1", "CausalNL", "IDN-45%", "88.75 ± 0.81"),
        ("causal_nl_t4", "CausalNL", "IDN-50%", "32.129 ± 2.23"),
        ("causal_nl_t5", "T-Revision", "noisy 1M", "70.97"),
        ("logistic_normal_t1", "LN", "MNIST/asym 40%", "96.54 ± 1.20"),
        ("logistic_normal_t1", "LN", "CIFAR-10/asym 40%", "82.18 ± 1.30"),
        ("logistic_normal_t1", "CE", "CIFAR-10/asym 40%", "71.89 ± 1.67"),
        ("logistic_normal_t1", "GCE", "CIFAR-10/sym 40%", "84.72 ± 0.82"),
        ("logistic_normal_t2", "Het-τ-Σ_full", "Clothing1M", "72.41 ± 0.15"),
        ("logistic_normal_t3", "Full, no dummy class", "CIFAR-100N", "26.31 ± 1.43"),
        ("softmax_temperature_t1", "Het-τ* (theirs)", "SVHN", "-0.622, 0.839, 0.955"),
        ("softmax_temperature_t2", "τ = 1", "PASCAL VOC/test", "83.93"),
        ("softmax_temperature_t3", "Homoscedastic", "MNIST", "-0.019, 0.994"),
        ("softmax_temperature_t6", "MentorNet", "CIFAR-10", "-3.115, 0.583, 0.797"),
        ("dtm_t1", "CC", "CIFAR-10/IDN-40%", "94.97 ± 0.09"),
        ("dtm_t2", "DTM", "Worst", "94.93 ± 0.21"),
        ("dtm_t3", "ELR+", "WebVision", "77.78, 70.29"),
        ("dtm_t4", "w/o diffusion", "CIFAR-100/IDN-40%", "73.51"),
    ],
)
def test_cells_hold_what_the_papers_print(table, row, column, printed):
    found = bench.choose(bench.cells(bench.load_table(table)), [row], [column])
    assert len(found) == 1
    assert found[0].paper == bench_tables.figures(printed)


@pytest.mark.parametrize(
    ("table", "row", "column", "fields"),
    [  # logistic-normal paper, Tables 4, 5 and 6
        ("logistic_normal_t1", "LN", "MNIST/sym 60%", {"tau": 0.5, "lam": 0.1}),
        ("logistic_normal_t1", "LN", "CIFAR-100/asym 30%", {"tau": 0.5, "lam": 1.0}),
        ("logistic_normal_t1", "Het-τ-Σ_full", "CIFAR-10/sym 60%", {"tau": 10.0, "rank": 2}),
        ("logistic_normal_t1", "Bi-tempered", "CIFAR-10/asym 30%", {"t1": 0.9, "t2": 2.0}),
        ("logistic_normal_t1", "GCE", "CIFAR-10/asym 40%", {"q": 0.1}),
        ("logistic_normal_t2", "NAN", "Worst", {"sigma": 0.75}),
        ("logistic_normal_t2", "LN", "Clothing1M", {"tau": 1.0, "lam": 1.0, "smoothing": 0.1}),
    ],
)
def test_cells_hold_the_papers_hyper_parameters(table, row, column, fields):
    found = bench.choose(bench.cells(bench.load_table(table)), [row], [column])
    assert found[0].fields == fields


def test_cells_that_nothing_serves_are_listed_with_the_reason(tmp_path):
    found = bench.cells(bench.load_table("softmax_temperature_t2"))
    hidden = [cell for cell in found if cell.column == "test"]
    assert len(hidden) == 6 and all("not public" in (cell.reason or "") for cell in hidden)
    other = TOML.replace('method = "ln"', 'method = "lm"').replace('data = "mnist"', 'data = "x"')
    reasons = [cell.reason for cell in bench.cells(written(tmp_path, other))]
    assert reasons == ["no data set x yet"] * 2 + ["no method lm yet"] * 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["70.67 ± 1.30", "99.27 ± 0.07"]', '["70.67"]', "1 cells of the paper"),
        ("99.27 ± 0.07", "99.27 + 0.07", "not a figure"),
        ("99.27 ± 0.07", "99.27, 98", "figures"),
        ("lr = 0.001", "learning_rate = 0.001", "learning_rate"),
        ('protocol = "last"', 'protocol = "best"', "protocol"),
        ("symmetric:0.4", "symetric:0.4", "symetric"),
        ("seeds = 3", "seeds = ", "TOML"),
        ("seeds = 3", "seed = 3", "seed"),
        ('name = "LN"', 'name = "CE"', "one name"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(tmp_path, old, new, said):
    assert old in TOML
    with pytest.raises(BadInput, match=said.replace("(", ".")):
        written(tmp_path, TOML.replace(old, new))


def test_what_decides_a_run_is_its_name(table):
    cell = bench.cells(table)[0]
    jobs = [Job(cell, "full", 0), Job(cell, "full", 1), Job(cell, "reduced", 0)]
    jobs += [Job(cell, "tiny", 0), Job(cell.with_fields({"tau": 3}), "full", 0)]
    assert len({job.hash for job in jobs}) == 5
    assert jobs[0].inputs["recipe"]["epochs"] == 4
    assert jobs[2].inputs["recipe"]["epochs"] == 2
    names = [bench.experiment(job.inputs) for job in jobs]
    assert names[0] == names[1] and len(set(names)) == 4


# ---- runs ---------------------------------------------------------------------------------------


def test_protocols_by_hand():
    warm = [{"stage": "warm", "epoch": 1, "val_accuracy": 0.99, "val_nll": 0, "test_accuracy": 0.1}]
    history = warm + [
        {"stage": "main", "epoch": e + 1, "val_accuracy": v, "val_nll": 1 - v, "test_accuracy": t}
        for e, (v, t) in enumerate(zip([0.2, 0.7, 0.7, 0.1] * 3, range(12), strict=True))
    ]
    found = bench.protocols(history)
    assert found["last"] == {"test_accuracy": 11}
    assert found["mean_of_last_ten"]["test_accuracy"] == pytest.approx(np.mean(range(2, 12)))
    assert found["chosen"] == {"test_accuracy": 1} and found["chosen_epoch"] == 2
    assert found["val_last"]["val_accuracy"] == 0.1 and found["epochs"] == 13


def test_runs_what_is_missing_once_and_goes_on_after_a_failure(tmp_path, place):
    broken = TOML.replace('backbone = "lenet5"', 'backbone = "lenet5:variant=odd"')
    lines = bench.run(written(tmp_path, broken), only=["CE"], scale="tiny", place=place)
    assert [line["status"] for line in lines] == ["failed"] * 2
    assert "odd" in lines[0]["error"]
    table = written(tmp_path, TOML)
    first = bench.run(table, only=["ce"], scale="tiny", seeds=2, place=place)
    assert [line["status"] for line in first] == ["done"] * 4
    again = bench.run(table, only=["ce"], scale="tiny", seeds=2, place=place)
    assert again == first
    kept = [line for line in lines_of(place) if line["status"] == "done"]
    assert len(kept) == 4 and not any(place.work.iterdir())
    line = kept[0]
    assert line["scale"] == "tiny" and line["commit"] == "abc" and line["versions"]["torch"]
    assert line["noise_rate"] == pytest.approx(0.36, abs=0.1)
    assert {"test_accuracy", "test_nll"} == set(line["last"]) == set(line["chosen"])
    fresh = bench.run_cell(Job(bench.cells(table)[0], "tiny", 0), place)
    assert figures_of([fresh]) == figures_of(first[:1])


def test_noisy_test_and_pixel_metrics_are_measured(place):
    chosen = bench.choose(
        bench.cells(bench.load_table("softmax_temperature_t1")), ["Homoscedastic"], ["MNIST"]
    )
    line = bench.run_cell(Job(chosen[0], "tiny", 0), place)
    entry = bench_report.entry(
        bench.load_table("softmax_temperature_t1"), chosen[0], [line], "tiny", None
    )
    ll, noisy, clean = (measured.mean for measured in entry.measured)
    assert ll < 0 and noisy < 0.95 and line["chosen"]["noisy_test_nll"] == -ll
    assert clean == line["chosen"]["test_accuracy"]


def test_mean_iou_of_pixel_labels(place):
    table = bench.load_table("softmax_temperature_t2")
    cell = bench.choose(bench.cells(table), ["Homoscedastic"], ["PASCAL VOC/validation"])[0]
    line = bench.run_cell(Job(cell, "tiny", 0), place)
    measured = bench_report.entry(table, cell, [line], "tiny", None).measured[0]
    assert 0 <= measured.mean <= 100 * line["last"]["test_accuracy"] + 100 / 21
    assert line["last"]["test_miou"] * 100 == measured.mean


def test_a_line_is_added_once_and_a_cut_one_does_no_harm(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"hash": "a", "sta')  # what a crash may leave
    for name in ("b", "b", "c"):
        bench.append(path, {"hash": name, "status": "done"})
    bench.append(path, {"hash": "d", "status": "failed"})
    bench.append(path, {"hash": "d", "status": "done"})
    assert [line["hash"] for line in bench.load_results(tmp_path)] == ["b", "c", "d", "d"]
    assert set(bench.done(tmp_path)) == {"b", "c", "d"}


def test_tiny_figures_do_not_depend_on_the_threads_at_hand(place, tmp_path):
    cell = bench.choose(bench.cells(bench.load_table("causal_nl_t3")), ["CE"], ["IDN-20%"])[0]
    job, threads = Job(cell, "tiny", 0), torch.get_num_threads()
    alone = bench.run_cell(job, place)
    torch.set_num_threads(2)
    try:
        beside = bench.run_cell(job, Place(tmp_path / "other", tmp_path / "other", commit="abc"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert figures_of([beside]) == figures_of([alone])


def test_all_tables_are_one_sweep_and_share_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_cli, "list_tables", lambda: ["causal_nl_t1", "fashion_idn"])
    words = ["run", "--all", "--only", "ce", "--columns", "IDN-30%", "--scale", "tiny"]
    for _ in range(2):  # the second time nothing is missing
        told = CliRunner().invoke(bench_cli.bench_app, words)
        assert told.exit_code == 0, told.output
        assert "causal_nl_t1: 1 runs done" in told.output
        assert "fashion_idn: 1 runs done" in told.output
    assert len(bench.load_results(tmp_path / "runs" / "tiny")) == 1


def test_killed_workers_change_nothing(table, place, tmp_path):
    calm = bench.run(table, only=["CE"], scale="tiny", seeds=3, place=place)
    moves = random.Random(0)
    kills = []

    def kill(kind, job, value):
        if kind == "epoch" and value["epoch"] == 2 and len(kills) < 2:
            worker = moves.choice(multiprocessing.active_children())
            os.kill(worker.pid, signal.SIGKILL)
            kills.append(worker.pid)

    stormy = Place(tmp_path / "stormy", tmp_path / "work", commit="abc")
    after = bench.run(table, only=["CE"], scale="tiny", seeds=3, workers=2, place=stormy, say=kill)
    assert len(kills) == 2
    assert len((stormy.results / "two.jsonl").read_text().splitlines()) == 6
    assert figures_of(after) == figures_of(calm)


SWEEP = """
import sys
from pathlib import Path
from ytilde import bench, bench_tables
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    place = bench.Place(folder / "results", folder / "work", commit="abc")
    table = bench_tables.read_table(folder / "two.toml")
    bench.run(table, scale="tiny", seeds=10, workers=2, place=place)
"""


@pytest.mark.slow
def test_forty_runs_survive_random_kills_of_workers_and_parents(table, tmp_path):
    calm = Place(tmp_path / "calm", tmp_path / "calm-work", commit="abc")
    undisturbed = bench.run(table, scale="tiny", seeds=10, place=calm)
    (tmp_path / "sweep.py").write_text(SWEEP)
    moves, deaths = random.Random(1), 0
    command = [sys.executable, str(tmp_path / "sweep.py"), str(tmp_path)]
    while deaths < 8:
        parent = subprocess.Popen(command)
        time.sleep(moves.uniform(8, 20))
        listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        for child in moves.sample(listed, min(1, len(listed))):
            os.kill(int(child), signal.SIGKILL)
            deaths += 1
        time.sleep(moves.uniform(0, 10))
        parent.kill()  # its workers finish their run, and then end
        parent.wait()
        deaths += 1
    subprocess.run(command, check=True)
    lines = (tmp_path / "results" / "two.jsonl").read_text().splitlines()
    assert len(lines) == 40
    assert figures_of(json.loads(line) for line in lines) == figures_of(undisturbed)


RAY = """
import random, sys, threading, time, os, signal, glob
from pathlib import Path
import ray
from ytilde import bench, bench_tables

def kill(stop, moves=random.Random(2)):
    while not stop.wait(moves.uniform(2, 5)):
        busy = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                if Path(path).read_bytes().startswith(b"ray::task"):
                    busy.append(int(path.split("/")[2]))
            except OSError:
                pass
        if busy and len(kills) < 5:
            os.kill(moves.choice(busy), signal.SIGKILL)
            kills.append(1)

if __name__ == "__main__":
    folder, kills, stop = Path(sys.argv[1]), [], threading.Event()
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    place = bench.Place(folder / "results", folder / "work", commit="abc")
    threading.Thread(target=kill, args=(stop,), daemon=True).start()
    table = bench_tables.read_table(folder / "two.toml")
    bench.run(table, scale="tiny", seeds=10, ray=True, workers=2, place=place)
    stop.set()
    print(len(kills))
"""


@pytest.mark.slow
def test_forty_runs_on_ray_survive_killed_workers(table, tmp_path):
    pytest.importorskip("ray")
    calm = Place(tmp_path / "calm", tmp_path / "calm-work", commit="abc")
    undisturbed = bench.run(table, scale="tiny", seeds=10, place=calm)
    (tmp_path / "sweep.py").write_text(RAY)
    command = [sys.executable, str(tmp_path / "sweep.py"), str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(said.split()[-1]) >= 3, "nobody was killed"
    lines = (tmp_path / "results" / "two.jsonl").read_text().splitlines()
    assert len(lines) == 40
    assert figures_of(json.loads(line) for line in lines) == figures_of(undisturbed)


def test_optuna_proposes_from_the_grid_and_remembers(table, place):
    pytest.importorskip("optuna")
    options = {"columns": ["sym 40%"], "scale": "tiny", "trials": 2, "place": place}
    best = bench.tune(table, **options)
    tried = lines_of(place)
    assert {line["inputs"]["fields"]["tau"] for line in tried} <= {0.1, 1.0}
    assert best["LN | MNIST | sym 40%"]["tau"] in {0.1, 1.0}
    assert (place.work / "optuna.journal").exists()
    assert bench.tune(table, **options) == best and lines_of(place) == tried


def one_of_each():
    """For each method its cell of the smallest inputs; and one for each data set left out."""
    tables = map(bench.load_table, bench.list_tables())
    ready = [c for table in tables for c in bench.cells(table) if c.reason is None]
    size = {name: math.prod(shape) for name, (shape, _, _) in bench._SIZES.items()}
    by_method, by_data = {}, {}
    for cell in sorted(ready, key=lambda cell: size.get(cell.data.split("-")[0], 0)):
        by_method.setdefault(cell.method, cell)
    seen = {cell.data for cell in by_method.values()}
    for cell in ready:
        if cell.data not in seen:
            by_data.setdefault(cell.data, cell)
    return [*by_data.values(), *by_method.values()]


@pytest.mark.parametrize("cell", one_of_each(), ids=lambda cell: f"{cell.method}-{cell.data}")
def test_a_tiny_cell_of_every_method_and_data_set_runs(cell, place):
    line = bench.run_cell(Job(cell, "tiny", 0), place)
    entry = bench_report.entry(bench.load_table(cell.table), cell, [line], "tiny", None)
    assert entry.note is None and all(np.isfinite(measured.mean) for measured in entry.measured)


def test_tune_goes_by_noisy_validation_and_the_other_seeds_follow(table, place):
    best = bench.tune(table, columns=["sym 40%"], scale="tiny", place=place)
    tried = {line["inputs"]["fields"]["tau"]: line for line in lines_of(place)}
    assert set(tried) == {0.1, 1.0}
    winner = max(tried, key=lambda tau: tried[tau]["val_last"]["val_accuracy"])
    assert best == {"LN | MNIST | sym 40%": {"tau": winner}}
    options = {"only": ["LN"], "columns": ["sym 40%"], "scale": "tiny", "seeds": 2}
    lines = bench.run(table, **options, tuned=True, place=place)
    assert [line["inputs"]["fields"]["tau"] for line in lines] == [winner] * 2
    assert len(lines_of(place)) == 3  # seed 0 was there
    shown = bench.report(table, bench.load_results(place.results), "tiny")
    entry = shown.entries["MNIST", "sym 40%", "LN"]
    assert entry.note == "tuned" and len(entry.runs) == 2


# ---- reports ------------------------------------------------------------------------------------


def made(table, row, column, scale, values):
    """Lines of runs that never took place."""
    cell = bench.choose(bench.cells(table), [row], [column])[0]
    lines = []
    for seed, value in enumerate(values):
        job = Job(cell, scale, seed)
        figures = {"test_accuracy": value / 100, "test_nll": 1.0}
        lines.append(
            {"hash": job.hash, "status": "done", "experiment": bench.experiment(job.inputs)}
            | {"seed": seed, "scale": scale, "noise_rate": 0.36, "seconds": 7, "device": "cpu"}
            | {"commit": "abc", "last": figures, "mean_of_last_ten": figures}
        )
    return lines


def test_report_compares_and_hides_nothing(table):
    ce, ln = [70.0, 72.0, 71.0], [96.0, 97.0, 98.0]
    lines = made(table, "CE", "sym 40%", "full", ce) + made(table, "LN", "sym 40%", "full", ln)
    lines += made(table, "CE", "sym 40%", "reduced", [1.0])  # full runs come first
    lines += made(table, "CE", "0%", "reduced", [98.0]) + made(table, "LN", "0%", "tiny", [5.0])
    report = bench.report(table, lines)
    measured = report.entries["MNIST", "sym 40%", "CE"].measured[0]
    assert measured.mean == pytest.approx(71) and measured.sd == pytest.approx(1)
    assert measured.difference == pytest.approx(71 - 70.67) and measured.within
    assert report.bold("MNIST", "sym 40%", 0) == {"LN"}
    told = [
        d["scale"] for d in bench_report.details(report) if d["cell"].startswith("CE, MNIST sy")
    ]
    assert told == ["full", "reduced"]  # the details tell of both
    p = report.p_value("MNIST", "sym 40%", "CE", 0)
    assert p == pytest.approx(scipy_stats.ttest_ind(ln, ce, equal_var=False).pvalue)
    text = bench_report.markdown([report])
    assert "| CE | 71.00 ± 1.00 (3)<br>70.67 ± 1.30 +0.33 ≈ | 98.00 (1) r<br>99.27 ± 0.07" in text
    assert "| LN | **97.00 ± 1.00 (3)**<br>97.21 ± 0.38 -0.21 ≈ | –<br>99.38 |" in text
    assert "| CE, MNIST sym 40% | full | 3 | 71.00 | – | 71.00 |" in text
    assert "bench run two --scale full" in text
    latex = bench_report.latex([report])
    assert r"\textbf{97.00 $\pm$ 1.00 (3)}" in latex and r"sym 40\%" in latex
    shown = terminal(report)
    assert "3 of 4 cells measured, 1 empty" in shown and "99.38" in shown


def terminal(report):
    console = Console(width=80, record=True, file=io.StringIO())
    bench_report.show(report, console)
    return console.export_text()


def test_tiny_runs_are_marked_and_not_compared_with_the_paper(table):
    lines = made(table, "CE", "sym 40%", "tiny", [70.67])
    shown = terminal(bench.report(table, lines, "tiny"))
    assert "70.67 (1) t" in shown and "t = tiny" in " ".join(shown.split())
    assert "+0.00" not in shown and "1 of 4 cells measured, 3 empty" in shown
    full = terminal(bench.report(table, made(table, "CE", "sym 40%", "full", [70.67])))
    assert "+0.00 ≈" in full and "t = tiny" not in full


def test_the_terminal_shows_every_cell_of_every_table_and_why_it_is_empty():
    for name in bench.list_tables():
        table = bench.load_table(name)
        shown = " ".join(terminal(bench.report(table, [])).split())
        found = bench.cells(table)
        assert f"0 of {len(found)} cells measured, {len(found)} empty" in shown
        for cell in found:
            assert cell.row.split()[0] in shown and cell.column.split()[0] in shown
            figures = (f"{f.mean:.{2 if table.percent else 3}f}" for f in cell.paper)
            assert all(figure in shown for figure in figures if figure != "nan")
            assert cell.reason is None or cell.reason.split()[-1] in shown


def test_a_column_that_nobody_can_measure_stays_empty(tmp_path):
    hidden = TOML.replace(
        '{ name = "0%" }', '{ name = "0%" }, { name = "new", unserved = "secret" }'
    )
    hidden = hidden.replace('99.27 ± 0.07"]', '99.27 ± 0.07", "1"]').replace(
        '99.38"]', '99.38", "1"]'
    )
    table = written(tmp_path, hidden)
    report = bench.report(table, made(table, "CE", "0%", "full", [98.0]))  # the inputs of "new" too
    assert len(report.entries["MNIST", "0%", "CE"].runs) == 1
    assert report.entries["MNIST", "new", "CE"].runs == ()
    assert report.entries["MNIST", "new", "CE"].note == "secret"


def test_html_escapes(tmp_path):
    table = written(tmp_path, TOML.replace("A table of two", "<script>x</script>"))
    page = bench_report.html([bench.report(table, [])])
    assert "<script>" not in page and "&lt;script&gt;" in page and "70.67" in page


def test_failures_show_in_the_report(table, place):
    job = Job(bench.cells(table)[0], "full", 0)
    report = bench.report(table, [bench.failure(job, place, "it broke")])
    assert report.entries["MNIST", "sym 40%", "CE"].note == "it broke"


def test_the_page_of_results_is_fresh():
    lines = bench.load_results(ROOT / "results")
    fresh = bench_report.markdown([bench.report(name, lines) for name in bench.list_tables()])
    page = (ROOT / "docs" / "results.md").read_text()
    assert page == fresh, f"docs/results.md is stale; run {bench_report.COMMAND}"


@pytest.mark.parametrize("width", ["80", "40"])
def test_names_in_lists_are_whole_in_narrow_terminals(width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_cli, "out", Console(highlight=False, width=int(width)))
    listed = CliRunner().invoke(bench_cli.bench_app, ["list"]).output
    assert f"there is no folder {tmp_path / 'results'}\n" in listed
    assert all(f" {name} " in listed for name in bench.list_tables())
    (tmp_path / "results").mkdir()
    shown = CliRunner().invoke(bench_cli.bench_app, ["list", "softmax_temperature_t2"]).output
    assert "no folder" not in shown
    assert "│ Het-τ* (theirs) │ PASCAL VOC │ validation │ het_tau │" in shown


def test_commands(tmp_path):
    runner = CliRunner()
    listed = runner.invoke(bench_cli.bench_app, ["list"])
    assert listed.exit_code == 0 and "dtm_t3" in listed.output
    cells = runner.invoke(bench_cli.bench_app, ["list", "softmax_temperature_t2"])
    assert "not public" in " ".join(cells.output.split())
    target = tmp_path / "t.html"
    told = runner.invoke(bench_cli.bench_app, ["report", "dtm_t4", "--html", str(target)])
    assert told.exit_code == 0 and "94.82" in target.read_text()
    for words in (["run"], ["run", "dtm_t4", "--all"], ["run", "dtm_t5"]):
        assert isinstance(runner.invoke(bench_cli.bench_app, words).exception, BadInput)
    wrong = runner.invoke(bench_cli.bench_app, ["run", "dtm_t4", "--scale", "huge"])
    assert isinstance(wrong.exception, BadInput) and "huge" in str(wrong.exception)
