"""The benchmark: tables as printed, runs exactly once whatever is killed, reports that add up."""

import io
import json
import math
import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from scipy import stats as scipy_stats
from typer.testing import CliRunner

from ytilde import bench, datasets, stats
from ytilde.bench import Job, RunPaths, figures, pool, render, results, stand_ins, tables
from ytilde.bench.report import entry as entry_of
from ytilde.bench.run import circumstances, failure, run_job
from ytilde.bench.tune import narrowed
from ytilde.cli.bench import RunOptions, bench_app
from ytilde.cli.bench_choice import run_paths
from ytilde.data import BadInput
from ytilde.engine import Diverged
from ytilde.protocols import best_epoch

ROOT = Path(__file__).parents[1]
# `bench.run` and `bench.tune` are the functions
run_module, tune_module = (import_module(f"ytilde.bench.{name}") for name in ("run", "tune"))

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
    return tables.read_table(folder / "two.toml")


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "results", tmp_path / "work", commit="abc")


def lines_of(paths):
    return [json.loads(line) for line in (paths.results / "two.jsonl").read_text().splitlines()]


def figures_of(lines):
    """What must be the same however often the runs were disturbed."""
    timing = ("seconds", "train_seconds", "commit", "digest")
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
        "cifar_n": 8 * 6 * 2,  # all rows, and a tenth held out
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
        ("cifar_n", "CE", "CIFAR-10N/Worst", "77.69 ± 1.55"),
        ("cifar_n", "ProMix", "CIFAR-10N/Worst", "96.34"),
    ],
)
def test_cells_hold_what_the_papers_print(table, row, column, printed):
    found = bench.choose(bench.cells(bench.load_table(table)), [row], [column])
    assert len(found) == 1
    assert found[0].paper == tables.paper_values(printed)


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
        ("cifar_n", "ProMix", "CIFAR-10N/Random 1", {"warm_up": 0.0167}),  # 10 of 600 epochs
        ("cifar_n", "ProMix", "CIFAR-100N", {"warm_up": 0.05, "threshold": 0.95, "delta": 0.5}),
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
        ('backbone = "lenet5"', 'backbone = "lenet5"\nprotocol = "best"', "protocol"),
        ('"MNIST" = ["97.21', '"MNSIT" = ["97.21', "unknown groups .'MNSIT'"),
        ("seeds = 3", "seeds = ", "TOML"),
        ("seeds = 3", "seed = 3", "seed"),
        ('name = "LN"', 'name = "CE"', "one name"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(tmp_path, old, new, said):
    assert old in TOML
    with pytest.raises(BadInput, match=said.replace("(", ".")):
        written(tmp_path, TOML.replace(old, new))


def test_what_nobody_published_is_told_from_what_somebody_did(tmp_path):
    other = TOML.replace('"99.27 ± 0.07"', '"–"').replace('"MNIST" = ["97.21 ± 0.38", "99.38"]', "")
    table = written(tmp_path, other)
    known = [not math.isnan(cell.paper[0].mean) for cell in bench.cells(table)]
    assert known == [True, False, False, False]
    page = render.markdown([bench.report(table, made(table, "CE", "0%", "full", [98.0]))])
    assert "98.00 (1)<br>–" in page and "nan" not in page


def test_a_group_may_report_another_epoch_than_its_table(tmp_path):
    group = TOML[TOML.index("[[groups]]") : TOML.index("[[rows]]")]
    held_out = group.replace('name = "MNIST"', 'name = "held out"\nprotocol = "chosen"')
    held_out += "recipe = { val = 0.2 }\n\n"  # another run
    table = written(tmp_path, TOML.replace("[[rows]]", held_out + "[[rows]]", 1))
    lines = []
    for column in ("MNIST/0%", "held out/0%"):
        (line,) = made(table, "CE", column, "full", [98.0])
        chosen = {key: value - 0.01 for key, value in line["last"].items()}
        lines.append(line | {"chosen": chosen})
    report = bench.report(table, lines)
    found = [report.entries[group, "0%", "CE"].measured[0].mean for group in ("MNIST", "held out")]
    assert found == pytest.approx([98.0, 97.0])
    titles = [block["title"] for block in render.blocks(report)]
    assert titles == ["MNIST", "held out, chosen by noisy validation"]


def test_what_decides_a_run_is_its_name(table):
    cell = bench.cells(table)[0]
    jobs = [Job(cell, "full", 0), Job(cell, "full", 1), Job(cell, "reduced", 0)]
    jobs += [Job(cell, "tiny", 0), Job(cell.with_fields({"tau": 3}), "full", 0)]
    assert len({job.hash for job in jobs}) == 5
    assert jobs[0].inputs["recipe"]["epochs"] == 4
    assert jobs[2].inputs["recipe"]["epochs"] == 2
    names = [tables.experiment(job.inputs) for job in jobs]
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
    assert best_epoch(history, "nll")["epoch"] == 2 and best_epoch(warm)["epoch"] == 1
    assert best_epoch([]) is None and best_epoch([{"stage": "main", "epoch": 1}]) is None


def test_old_names_still_work():
    with pytest.warns(DeprecationWarning, match="RunPaths"):
        assert bench.Place is RunPaths
    assert stats.welch_t is import_module("ytilde.bench.stats").welch_t


def test_runs_what_is_missing_once_and_goes_on_after_a_failure(tmp_path, paths):
    broken = TOML.replace('backbone = "lenet5"', 'backbone = "lenet5:variant=odd"')
    lines = bench.run(written(tmp_path, broken), only=["CE"], scale="tiny", paths=paths)
    assert [line["status"] for line in lines] == ["failed"] * 2
    assert "odd" in lines[0]["error"]
    table = written(tmp_path, TOML)
    first = bench.run(table, only=["ce"], scale="tiny", seeds=2, paths=paths)
    assert [line["status"] for line in first] == ["done"] * 4
    again = bench.run(table, only=["ce"], scale="tiny", seeds=2, paths=paths)
    assert again == first
    kept = [line for line in lines_of(paths) if line["status"] == "done"]
    assert len(kept) == 4 and not any(paths.work.iterdir())
    line = kept[0]
    assert line["scale"] == "tiny" and line["commit"] == "abc" and line["versions"]["torch"]
    assert line["noise_rate"] == pytest.approx(0.36, abs=0.1)
    assert {"test_accuracy", "test_nll"} == set(line["last"]) == set(line["chosen"])
    fresh = bench.run_cell(Job(bench.cells(table)[0], "tiny", 0), paths)
    assert figures_of([fresh]) == figures_of(first[:1])


def test_a_failed_run_goes_on_from_its_checkpoint_unless_it_would_fail_again(
    table, paths, monkeypatch
):
    fit, said = run_module.fit_method, []
    monkeypatch.setattr(  # a checkpoint after every epoch
        run_module, "fit_method", lambda *a, **k: fit(*a, **k | {"checkpoint_every": 0})
    )
    job = Job(bench.cells(table)[0], "tiny", 0)

    def run(error=None):
        said.clear()

        def say(kind, _, value):
            said.append(value["epoch"] if kind == "epoch" else value["status"])
            if error is not None and said == [1, 2]:
                raise error

        run_job(job, paths, say)
        return list(said)

    assert run(Diverged("no number")) == [1, 2, "failed"]
    assert not any(paths.work.iterdir())
    assert run(MemoryError("late")) == [1, 2, "failed"]
    assert run() == [2, 3, "done"]  # epoch 2 was not saved when it was told of
    assert not any(paths.work.iterdir())
    fresh = bench.run_cell(job, paths)
    assert figures_of(lines_of(paths)[-1:]) == figures_of([fresh])


def test_a_line_tells_of_compiled_networks(paths):
    assert "compile" not in circumstances(paths)
    compiled = circumstances(RunPaths(compile=True, commit="abc"))
    assert compiled == circumstances(paths) | {"compile": True}


def test_noisy_test_and_pixel_metrics_are_measured(paths):
    chosen = bench.choose(
        bench.cells(bench.load_table("softmax_temperature_t1")), ["Homoscedastic"], ["MNIST"]
    )
    line = bench.run_cell(Job(chosen[0], "tiny", 0), paths)
    entry = entry_of(bench.load_table("softmax_temperature_t1"), chosen[0], [line], "tiny", None)
    ll, noisy, clean = (measured.mean for measured in entry.measured)
    assert ll < 0 and noisy < 0.95 and line["chosen"]["noisy_test_nll"] == -ll
    assert clean == line["chosen"]["test_accuracy"]


def test_mean_iou_of_pixel_labels(paths):
    table = bench.load_table("softmax_temperature_t2")
    cell = bench.choose(bench.cells(table), ["Homoscedastic"], ["PASCAL VOC/validation"])[0]
    line = bench.run_cell(Job(cell, "tiny", 0), paths)
    measured = entry_of(table, cell, [line], "tiny", None).measured[0]
    assert 0 <= measured.mean <= 100 * line["last"]["test_accuracy"] + 100 / 21
    assert line["last"]["test_miou"] * 100 == measured.mean


def test_a_line_is_added_once_and_a_cut_one_does_no_harm(table, tmp_path):
    path, result = tmp_path / "t.jsonl", made(table, "CE", "0%", "full", [9.0])[0]
    path.write_text('{"hash": "c", "status": "done", "exp')  # what a crash may leave
    for name in ("b", "b", "c"):
        results.append(path, result | {"hash": name})
    results.append(path, result | {"hash": "d", "status": "failed", "error": "it broke"})
    results.append(path, result | {"hash": "d"})
    assert [line["hash"] for line in bench.load_results(tmp_path)] == ["b", "c", "d", "d"]
    assert set(results.done(tmp_path)) == {"b", "c", "d"}


def test_a_superseded_line_is_kept_but_does_not_count(table, tmp_path):
    path = tmp_path / "two.jsonl"
    first, second = made(table, "CE", "0%", "full", [8.0, 9.0])
    for line in (first, second):
        results.append(path, line)
    reason = "the method changed"
    assert results.supersede(path, lambda line: line["seed"] == second["seed"], reason) == 1
    told = []
    assert bench.load_results(tmp_path, told.append) == [first] and not told
    assert set(results.done(tmp_path)) == {first["hash"]}
    report = bench.report(table, bench.load_results(tmp_path))
    assert len(report.entries["MNIST", "0%", "CE"].runs) == 1
    results.append(path, second)  # it was made again
    assert bench.load_results(tmp_path) == [first, second]
    assert [json.loads(text).get("superseded") for text in path.read_text().splitlines()] == [
        None, reason, None,
    ]  # fmt: skip
    assert results.supersede(path, lambda line: line["seed"] == 7, reason) == 0


@pytest.mark.parametrize(
    "change",
    [
        b"\xff\xfe", b"[1, 2]", b"null", b'{"hash": "x", "status": "done"}',
        pytest.param(b"[" * 100_000, id="deep"),
        {"hash": ["x"]}, {"status": ["done"]}, {"experiment": None}, {"seed": "0"},
        {"seconds": None},
        {"noise_rate": "0.3"}, {"device": 1}, {"commit": []}, {"inputs": None},
        {"inputs": {"miou": True}}, {"inputs": {"noisy_test": True}}, {"inputs": {"tests": 3}},
        {"inputs": {"tests": ["webvision", "ilsvrc12"]}},
        {"last": None}, {"last": {}}, {"last": {"test_accuracy": None, "test_nll": 1.0}},
        {"chosen": {}}, {"val_last": {"val_nll": 1.0}}, {"val_chosen": 3},
        {"status": "failed"}, {"status": "failed", "error": None},
    ],
)  # fmt: skip
def test_a_broken_line_is_passed_over_and_its_run_made_again(table, tmp_path, change, monkeypatch):
    """`report` and `list` ended with a traceback."""
    monkeypatch.setattr(tables, "load_table", lambda name: table)
    first, sound = made(table, "CE", "0%", "full", [8.0, 9.0], val=0.5)
    text = change if isinstance(change, bytes) else json.dumps(sound | change).encode()
    path = tmp_path / "two.jsonl"
    path.write_bytes(json.dumps(first).encode() + b"\n" + text + b"\n")
    assert bench.load_results(tmp_path) == [first]
    for command in ("report", "list"):
        told = CliRunner().invoke(bench_app, [command, "two", "--results", str(tmp_path)])
        assert told.exit_code == 0, told.exception
    results.append(path, sound)
    assert bench.load_results(tmp_path) == [first, sound]


def test_a_changed_digit_in_a_line_is_noticed(table, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "load_table", lambda name: table)
    first, second = made(table, "CE", "0%", "full", [8.0, 9.0])
    path = tmp_path / "two.jsonl"
    for line in (first, second):
        results.append(path, line)
    assert bench.load_results(tmp_path) == [first, second]
    words = ["report", "two", "--results", str(tmp_path)]
    assert "damaged" not in CliRunner().invoke(bench_app, words).output
    path.write_text(path.read_text().replace('"test_accuracy": 0.09', '"test_accuracy": 0.19'))
    assert bench.load_results(tmp_path) == [first]
    assert "note: 1 damaged line of" in CliRunner().invoke(bench_app, words).output
    results.append(path, second)  # it was run again
    assert bench.load_results(tmp_path) == [first, second]


def test_tiny_figures_do_not_depend_on_the_threads_at_hand(paths, tmp_path):
    cell = bench.choose(bench.cells(bench.load_table("causal_nl_t3")), ["CE"], ["IDN-20%"])[0]
    job, threads = Job(cell, "tiny", 0), torch.get_num_threads()
    alone = bench.run_cell(job, paths)
    torch.set_num_threads(2)
    try:
        beside = bench.run_cell(job, RunPaths(tmp_path / "other", tmp_path / "other", commit="abc"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert figures_of([beside]) == figures_of([alone])


def test_all_tables_are_one_sweep_and_share_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "list_tables", lambda: ["causal_nl_t1", "fashion_idn"])
    words = ["run", "--all", "--only", "ce", "--columns", "IDN-30%", "--scale", "tiny"]
    for _ in range(2):  # the second time nothing is missing
        told = CliRunner().invoke(bench_app, words)
        assert told.exit_code == 0, told.output
        assert "causal_nl_t1: 1 runs done" in told.output
        assert "fashion_idn: 1 runs done" in told.output
    assert len(bench.load_results(tmp_path / "runs" / "tiny")) == 1


def test_seeds_share_what_pre_training_makes(paths, monkeypatch):
    monkeypatch.delenv("YTILDE_CACHE", raising=False)
    cell = bench.choose(bench.cells(bench.load_table("dtm_t1")), ["DTM"], ["CIFAR-10/IDN-20%"])[0]
    stages = [[], []]
    for seed, seen in enumerate(stages):
        bench.run_cell(Job(cell, "tiny", seed), paths, lambda r, seen=seen: seen.append(r["stage"]))
    assert "simclr" in stages[0] and "simclr" not in stages[1] and "main" in stages[1]
    assert "YTILDE_CACHE" not in os.environ


def test_killed_workers_change_nothing(table, paths, tmp_path):
    calm = bench.run(table, only=["CE"], scale="tiny", seeds=3, paths=paths)
    moves = random.Random(0)
    kills = Counter()

    def kill(kind, job, value):
        workers = multiprocessing.active_children()
        if kind == "epoch" and value["epoch"] == 2 and kills["in a run"] < 2:
            workers = [moves.choice(workers)]
            kills["in a run"] += 1
        elif kind == "done" and not kills["between two runs"]:
            kills["between two runs"] += 1  # of the worker that said it, in a run of the other one
        else:
            return
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()

    stormy = RunPaths(tmp_path / "stormy", tmp_path / "work", commit="abc")
    after = bench.run(table, only=["CE"], scale="tiny", seeds=3, workers=2, paths=stormy, say=kill)
    assert kills == {"in a run": 2, "between two runs": 1}
    assert len((stormy.results / "two.jsonl").read_text().splitlines()) == 6
    assert figures_of(after) == figures_of(calm)


def test_a_worker_killed_between_two_runs_costs_no_run_a_life(table, paths, monkeypatch):
    monkeypatch.setattr(pool, "LIVES", 1)
    told = []

    def kill(kind, job, value):
        if kind == "done":
            told.append(value["status"])
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()

    paths.results.mkdir()
    jobs = [Job(bench.cells(table)[0], "tiny", seed) for seed in range(3)]
    pool.run_processes(jobs, paths, kill, workers=1)
    assert told == ["done"] * 3 and set(results.done(paths.results)) == {job.hash for job in jobs}


@pytest.mark.parametrize(
    ("device", "cluster", "share"),
    [("auto", {"CPU": 8.0, "GPU": 2.0}, 0.25), ("auto", {"CPU": 8.0}, 0), ("cpu", {"GPU": 1.0}, 0)],
)
def test_ray_tasks_get_whole_paths_and_a_share_of_the_clusters_gpus(
    table, monkeypatch, tmp_path, device, cluster, share
):
    asked, places = [], []

    def remote(**options):
        asked.append(options)
        return lambda task: SimpleNamespace(remote=task)

    fake = SimpleNamespace(
        is_initialized=lambda: True, cluster_resources=lambda: cluster, remote=remote,
        wait=lambda references: (references[:1], references[1:]), get=lambda reference: reference,
    )  # fmt: skip

    def run_job(job, paths, say):
        places.append(paths)
        say("done", job, job.hash)

    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(pool, "run_job", run_job)
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(Path("results"), Path("work"), Path("data"), device)
    job, told = Job(bench.cells(table)[0], "tiny", 0), []
    pool.run_ray([job], paths, lambda *said: told.append(said), workers=4)
    assert told == [("done", job, job.hash)] and asked[0]["num_gpus"] == share
    folders = (places[0].results, places[0].work, places[0].data_root)
    assert folders == (tmp_path / "results", tmp_path / "work", tmp_path / "data")


SWEEP = """
import sys
from pathlib import Path
from ytilde import bench
from ytilde.bench import tables
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    paths = bench.RunPaths(folder / "results", folder / "work", commit="abc")
    table = tables.read_table(folder / "two.toml")
    bench.run(table, scale="tiny", seeds=10, workers=2, paths=paths)
"""


@pytest.mark.slow
def test_forty_runs_survive_random_kills_of_workers_and_parents(table, tmp_path):
    calm = RunPaths(tmp_path / "calm", tmp_path / "calm-work", commit="abc")
    undisturbed = bench.run(table, scale="tiny", seeds=10, paths=calm)
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
from ytilde import bench
from ytilde.bench import tables

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
    paths = bench.RunPaths(folder / "results", folder / "work", commit="abc")
    threading.Thread(target=kill, args=(stop,), daemon=True).start()
    table = tables.read_table(folder / "two.toml")
    bench.run(table, scale="tiny", seeds=10, ray=True, workers=2, paths=paths)
    stop.set()
    print(len(kills))
"""


@pytest.mark.slow
def test_forty_runs_on_ray_survive_killed_workers(table, tmp_path):
    pytest.importorskip("ray")
    calm = RunPaths(tmp_path / "calm", tmp_path / "calm-work", commit="abc")
    undisturbed = bench.run(table, scale="tiny", seeds=10, paths=calm)
    (tmp_path / "sweep.py").write_text(RAY)
    command = [sys.executable, str(tmp_path / "sweep.py"), str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(said.split()[-1]) >= 3, "nobody was killed"
    lines = (tmp_path / "results" / "two.jsonl").read_text().splitlines()
    assert len(lines) == 40
    assert figures_of(json.loads(line) for line in lines) == figures_of(undisturbed)


def test_optuna_proposes_from_the_grid_and_remembers(table, paths):
    pytest.importorskip("optuna")
    options = {"columns": ["sym 40%"], "scale": "tiny", "trials": 2, "paths": paths}
    best = bench.tune(table, **options)
    tried = lines_of(paths)
    assert {line["inputs"]["fields"]["tau"] for line in tried} <= {0.1, 1.0}
    assert best["LN | MNIST | sym 40%"]["tau"] in {0.1, 1.0}
    assert (paths.work / "optuna.journal").exists()
    assert bench.tune(table, **options) == best and lines_of(paths) == tried


@pytest.mark.parametrize("damage", [(b'"op_code"', b'"op_kode"'), (b"{", b"[")])
def test_a_damaged_journal_is_one_sentence(table, paths, damage):
    pytest.importorskip("optuna")
    options = {"columns": ["sym 40%"], "scale": "tiny", "trials": 1, "paths": paths}
    best, journal = bench.tune(table, **options), paths.work / "optuna.journal"
    journal.write_bytes(journal.read_bytes().replace(*damage, 1))
    with pytest.raises(BadInput, match=r"optuna.journal cannot be read .* delete it") as told:
        bench.tune(table, **options)
    assert "\n" not in str(told.value)
    journal.unlink()
    assert bench.tune(table, **options) == best


def test_optuna_searches_anew_for_other_results_and_another_grid(table, paths, tmp_path):
    pytest.importorskip("optuna")
    options = {"columns": ["sym 40%"], "scale": "tiny", "trials": 1}
    first = bench.tune(table, **options, paths=paths)
    other = RunPaths(tmp_path / "other", paths.work, commit="abc")
    assert bench.tune(table, **options, paths=other) == first
    assert figures_of(bench.load_results(other.results)) == figures_of(lines_of(paths))
    (paths.results / "two.jsonl").unlink()  # as are runs that somebody removed
    assert bench.tune(table, **options, paths=paths) == first
    for tau in (0.1, 1.0):
        best = bench.tune(table, **options, grid={"tau": [tau]}, paths=paths)
        assert best == {"LN | MNIST | sym 40%": {"tau": tau}}


def one_of_each():
    """For each method its cell of the smallest inputs; and one for each data set left out."""
    tables = map(bench.load_table, bench.list_tables())
    ready = [c for table in tables for c in bench.cells(table) if c.reason is None]
    size = {name: math.prod(shape) for name, (shape, _, _) in stand_ins.SIZES.items()}
    by_method, by_data = {}, {}
    for cell in sorted(ready, key=lambda cell: size.get(cell.data.split("-")[0], 0)):
        by_method.setdefault(cell.method, cell)
    seen = {cell.data for cell in by_method.values()}
    for cell in ready:
        if cell.data not in seen:
            by_data.setdefault(cell.data, cell)
    return [*by_data.values(), *by_method.values()]


@pytest.mark.parametrize("cell", one_of_each(), ids=lambda cell: f"{cell.method}-{cell.data}")
def test_a_tiny_cell_of_every_method_and_data_set_runs(cell, paths):
    line = bench.run_cell(Job(cell, "tiny", 0), paths)
    entry = entry_of(bench.load_table(cell.table), cell, [line], "tiny", None)
    assert entry.note is None and all(np.isfinite(measured.mean) for measured in entry.measured)


def test_tune_goes_by_noisy_validation_and_the_other_seeds_follow(table, paths):
    best = bench.tune(table, columns=["sym 40%"], scale="tiny", paths=paths)
    tried = {line["inputs"]["fields"]["tau"]: line for line in lines_of(paths)}
    assert set(tried) == {0.1, 1.0}
    winner = max(tried, key=lambda tau: tried[tau]["val_last"]["val_accuracy"])
    assert best == {"LN | MNIST | sym 40%": {"tau": winner}}
    options = {"only": ["LN"], "columns": ["sym 40%"], "scale": "tiny", "seeds": 2}
    lines = bench.run(table, **options, tuned=True, paths=paths)
    assert [line["inputs"]["fields"]["tau"] for line in lines] == [winner] * 2
    assert len(lines_of(paths)) == 3  # seed 0 was there
    shown = bench.report(table, bench.load_results(paths.results), "tiny")
    entry = shown.entries["MNIST", "sym 40%", "LN"]
    assert entry.note == "tuned" and len(entry.runs) == 2


# ---- reports ------------------------------------------------------------------------------------


def made(table, row, column, scale, values, fields=None, val=None):
    """Lines of runs that never took place."""
    cell = bench.choose(bench.cells(table), [row], [column])[0].with_fields(fields or {})
    lines = []
    for seed, value in enumerate(values):
        job = Job(cell, scale, seed)
        figures = {"test_accuracy": value / 100, "test_nll": 1.0}
        lines.append(
            {"hash": job.hash, "status": "done", "experiment": tables.experiment(job.inputs)}
            | {
                "inputs": job.inputs,
                "seed": seed,
                "scale": scale,
                "noise_rate": 0.36,
                "seconds": 7,
                "device": "cpu",
            }
            | {"commit": "abc", "last": figures, "mean_of_last_ten": figures}
            | ({} if val is None else {"val_last": {"val_accuracy": val, "val_nll": 1 - val}})
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
    told = [d["scale"] for d in render.details(report) if d["cell"].startswith("CE, MNIST sy")]
    assert told == ["full", "reduced"]  # the details tell of both
    p = report.p_value("MNIST", "sym 40%", "CE", 0)
    assert p == pytest.approx(scipy_stats.ttest_ind(ln, ce, equal_var=False).pvalue)
    text = render.markdown([report])
    assert "| CE | 71.00 ± 1.00 (3)<br>70.67 ± 1.30 +0.33 ≈ | 98.00 (1) r<br>99.27 ± 0.07" in text
    assert "| LN | **97.00 ± 1.00 (3)**<br>97.21 ± 0.38 -0.21 ≈ | –<br>99.38 |" in text
    assert "| CE, MNIST sym 40% | full | 3 | 71.00 | – | 71.00 |" in text
    latex = render.latex([report])
    assert r"\textbf{97.00 $\pm$ 1.00 (3)}" in latex and r"sym 40\%" in latex
    assert r"(70.67 $\pm$ 1.30) +0.33 $\approx$" in latex
    shown = terminal(report)
    assert "3 of 4 cells measured, 1 empty" in shown and "99.38" in shown


THREE = TOML.replace("tau = [0.1, 1.0]", "tau = [0.1, 1.0, 5.0]")  # values of tau
_ROW = '[[rows]]\nname = "{}"\nmethod = "{}"\n[rows.paper]\n"MNIST" = ["1", "2"]\n\n'
_MORE = _ROW.format("GCE", "gce") + _ROW.format("MAE", "mae")
FOUR = TOML.replace('[[rows]]\nname = "LN"', _MORE + '[[rows]]\nname = "LN"')  # rows


def measured_everywhere(table):
    """Full, reduced and tuned cells, full ones with reduced runs beside them; and all hashes."""
    lines = made(table, "CE", "sym 40%", "full", [70.0, 72.0, 71.0])
    lines += made(table, "CE", "sym 40%", "reduced", [1.0])
    lines += made(table, "CE", "0%", "reduced", [98.0, 97.0])
    for tau, val, values in ((0.1, 0.2, [90.0]), (1.0, 0.5, [95.0, 96.0])):
        lines += made(table, "LN", "sym 40%", "full", values, {"tau": tau}, val)
    return lines + made(table, "LN", "0%", "full", [99.0, 98.0, 97.0])


def test_the_printed_commands_make_the_measured_runs_again(tmp_path, monkeypatch):
    table = written(tmp_path, THREE)
    lines = measured_everywhere(table)
    page = render.markdown([bench.report(table, lines)])
    commands = page.partition("```bash\n")[2].partition("```")[0].splitlines()
    assert len(commands) <= 6
    known = {line["hash"]: line for line in lines}
    planned: dict[str, list[str]] = {"run": [], "tune": []}

    def sweep(jobs, **options):
        planned[words[4]] += [job.hash for job in jobs]
        return [known[job.hash] for job in jobs]

    for module in (tune_module, pool):
        monkeypatch.setattr(module, "sweep", sweep)
    monkeypatch.setattr(tables, "load_table", lambda name: table)
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for command in commands:
        words = shlex.split(command)
        assert words[:4] == ["python", "-m", "ytilde", "bench"] and words[5] == "two"
        told = CliRunner().invoke(bench_app, [*words[4:], "--results", str(tmp_path)])
        assert told.exit_code == 0, (command, told.output, told.exception)
    tried = made(table, "LN", "sym 40%", "full", [90.0], {"tau": 0.1})
    best = made(table, "LN", "sym 40%", "full", [95.0], {"tau": 1.0})
    assert planned["tune"] == [tried[0]["hash"], best[0]["hash"]]
    assert sorted(planned["run"]) == sorted(set(known) - {tried[0]["hash"]})


def test_commands_name_no_more_than_they_must(table):
    lines = [
        line
        for row in ("CE", "LN")
        for column in ("sym 40%", "0%")
        for line in made(table, row, column, "full", [9.0, 8.0])
    ]
    again = "python -m ytilde bench run two {}--scale full{} --seeds 2"
    assert render.commands(bench.report(table, lines)) == [again.format("", "")]
    of_ce = render.commands(bench.report(table, lines[:4]))
    assert of_ce == [again.format("--only CE ", "")]
    compiled = [line | {"compile": True} for line in lines]
    assert render.commands(bench.report(table, compiled)) == [again.format("", " --compile")]


def test_a_grid_is_narrowed_to_its_own_values(table):
    cell = bench.choose(bench.cells(table), ["LN"], ["0%"])[0]
    assert narrowed(cell, {"tau": [1]}).grid == {"tau": [1.0]}
    narrow = [Job(point, "full", 0).hash for point in narrowed(cell, {"tau": [1]}).points()]
    assert narrow == [Job(cell.with_fields({"tau": 1.0}), "full", 0).hash]
    for wrong in ({"tau": [3.0]}, {"lam": [1.0]}):
        with pytest.raises(BadInput, match=r"has no (?:tau|lam) = "):
            narrowed(cell, wrong)
    words = ["tune", "digits_temperature", "--grid", "tau"]
    assert "FIELD=VALUE" in str(CliRunner().invoke(bench_app, words).exception)


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Runs `bench` in an empty folder; its output in wide lines, or the refusal."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        told = CliRunner().invoke(bench_app, words)
        if isinstance(told.exception, BadInput):
            assert not list(Path().iterdir()), "a refusal writes nothing"
            return f"refused: {told.exception}"
        assert told.exit_code == 0, told.exception
        return told.output

    return call


@pytest.mark.parametrize("command", ["run", "tune"])
def test_an_unknown_device_is_refused(command, commands):
    """It was a failed run, with a line in the results."""
    words = [command, "digits_temperature", "--scale", "tiny", "--device", "zork"]
    assert "refused: unknown device 'zork'" in commands(*words)
    assert "refused: unknown device 'zork'" in commands(*words, "--ray")


def test_the_gpus_of_a_cluster_are_not_looked_for_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = RunOptions(scale="tiny", device="cuda")
    assert run_paths(options, ray=True).device == "cuda"
    with pytest.raises(BadInput, match="no CUDA device"):
        run_paths(options)


@pytest.mark.parametrize("words", [["list"], ["list", "dtm_t4"], ["report", "dtm_t4"]])
def test_an_unknown_scale_is_refused(words, commands):
    assert "refused: unknown scale 'zork'" in commands(*words, "--scale", "zork")


def test_nothing_to_tune_is_refused(table, paths, commands, monkeypatch):
    for words in (["dtm_t4"], ["dtm_t4", "--grid", "foo=1"], ["dtm_t4", "--trials", "1"]):
        assert "refused: there is nothing to tune" in commands("tune", *words)
    monkeypatch.setattr(tables, "list_tables", lambda: ["dtm_t4", "fashion_idn"])
    assert "refused: there is nothing to tune" in commands("tune", "--all")
    assert "has no foo = 1" in commands("tune", "digits_temperature", "--grid", "foo=1")
    with pytest.raises(BadInput, match="nothing to tune"):
        bench.tune(table, only=["CE"], paths=paths)
    assert not paths.results.exists()


def serve(monkeypatch, table, lines):
    """The commands find this table alone; in place of runs they get these lines."""
    known = {line["hash"]: line for line in lines}
    monkeypatch.setattr(tables, "load_table", lambda name: table)
    for module in (tune_module, pool):
        monkeypatch.setattr(module, "sweep", lambda jobs, **_: [known[job.hash] for job in jobs])
    path = Path("results/two.jsonl")
    path.parent.mkdir()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_best_is_of_the_grid_that_was_asked_for(table, commands, monkeypatch):
    points = ((0.1, 0.2), (1.0, 0.5))
    lines = [made(table, "LN", "0%", "full", [9.0], {"tau": t}, val)[0] for t, val in points]
    lines += [made(table, "LN", "sym 40%", "full", [9.0], {"tau": t})[0] for t, _ in points]
    serve(monkeypatch, table, lines)
    told = commands("tune", "two", "--grid", "tau=0.1")
    assert 'two: LN | MNIST | 0%: {"tau": 0.1}' in told
    assert "two: LN | MNIST | sym 40%: no run has a noisy validation accuracy" in told
    assert 'two: LN | MNIST | 0%: {"tau": 1.0}' in commands("tune", "two")


def test_tuned_runs_tell_what_is_not_tuned(table, commands, monkeypatch):
    lines = made(table, "LN", "0%", "full", [9.0], {"tau": 1.0}, val=0.5)
    for row in ("CE", "LN"):
        for column in ("0%", "sym 40%"):
            lines += made(table, row, column, "full", [9.0])
    serve(monkeypatch, table, lines)
    told = commands("run", "two", "--seeds", "1", "--tuned")
    assert "two: not tuned, run with the table's own fields: CE (2 cells), LN (1 cell)\n" in told
    words = ["run", "two", "--seeds", "1", "--only", "LN", "--columns", "0%", "--tuned"]
    assert "not tuned" not in commands(*words)
    assert "not tuned" not in commands("run", "two", "--seeds", "1")


def test_a_name_is_unknown_only_where_no_table_has_it(commands, monkeypatch):
    seen = []
    monkeypatch.setattr(pool, "sweep", lambda jobs, **_: seen.extend(jobs) or [])
    monkeypatch.setattr(pool, "jobs_of", lambda table, found, *_: seen.extend(found) or [])
    told = commands("run", "--all", "--only", "DTM", "--only", "CausalNL", "--scale", "tiny")
    assert "dtm_t1: 0 runs" in told and "causal_nl_t1: 0 runs" in told
    assert "logistic_normal_t1" not in told
    assert {cell.row for cell in seen} == {"DTM", "CausalNL"}
    assert "refused: unknown row 'DTMM'" in commands("run", "--all", "--only", "DTMM")
    words = ["--all", "--only", "DTM", "--columns", "SVHN/heteroscedastic noise"]
    assert "refused: no table has both" in commands("run", *words)


def test_a_page_tells_what_it_was_made_by(commands):
    commands("report", "dtm_t4", "--scale", "tiny", "--markdown", "t.md")
    said = "Made by `python -m ytilde bench report dtm_t4 --scale tiny --markdown t.md` from "
    assert said + "`runs/tiny/*.jsonl`;" in Path("t.md").read_text()
    commands("report", "dtm_t4", "--results", "my r", "--markdown", "t.md")
    said = "bench report dtm_t4 --results 'my r' --markdown t.md` from `my r/*.jsonl`;"
    assert said in Path("t.md").read_text()
    commands("report", "--all", "--markdown", "docs/results.md")
    said = f"Made by `{render.COMMAND}` from `results/*.jsonl`;"
    assert said in Path("docs/results.md").read_text()


def test_p_values_are_corrected_for_the_rows_of_a_column(tmp_path):
    rows = ("CE", "GCE", "MAE")
    table = written(tmp_path, FOUR)
    values = {"CE": [70.0, 72.0, 71.0], "GCE": [75.0, 79.0, 77.0], "MAE": [73.0, 76.0, 78.5]}
    best = [79.0, 78.0, 80.0]
    lines = [line for r in rows for line in made(table, r, "0%", "full", values[r])]
    report = bench.report(table, lines + made(table, "LN", "0%", "full", best))
    raw = [scipy_stats.ttest_ind(best, values[r], equal_var=False).pvalue for r in rows]
    order = sorted(range(3), key=lambda k: raw[k])
    expected, largest = {}, 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (3 - place) * raw[k]))
        expected[rows[k]] = largest
    found = {r: report.p_value("MNIST", "0%", r, 0) for r in rows}
    assert found == pytest.approx(expected) and report.p_value("MNIST", "0%", "LN", 0) is None
    assert "p against the best (Holm)" in render.markdown([report])
    assert "p against the best (Holm)" in render.html([report])


def test_why_cells_are_empty_is_on_every_page(tmp_path, paths):
    text = TOML.replace('{ name = "0%" }', '{ name = "0%", unserved = "a secret" }')
    table = written(tmp_path, text)
    lines = [failure(Job(bench.cells(table)[0], "full", 0), paths, "it broke")]
    lines += made(table, "LN", "sym 40%", "full", [96.0])
    report = bench.report(table, lines)
    told = ["failed: it broke: CE in MNIST/sym 40%", "a secret: all rows in MNIST/0%"]
    assert render.reasons(report, table.groups) == told
    page = render.markdown([report])
    assert all(f"\n- {each}\n" in page for each in told)
    latex = render.latex([report])
    assert r"Empty: failed: it broke: CE in MNIST/sym 40\%." in latex and "a secret" in latex
    assert "Empty:" not in render.markdown([bench.report(written(tmp_path, TOML), [])])


def test_figures_of_ranks_and_of_a_tuned_number(tmp_path):
    table = written(tmp_path, THREE)
    lines = made(table, "CE", "sym 40%", "full", [70.0, 72.0])
    runs = {0.1: [90.0, 91.0], 1.0: [95.0, 96.0, 97.0], 5.0: [80.0]}
    for tau, values in runs.items():
        lines += made(table, "LN", "sym 40%", "full", values, {"tau": tau}, val=min(values) / 100)
    report = bench.report(table, lines)
    assert figures.draw_ranks(report) is None  # two rows
    axes = figures.draw_curves(report, "tau").axes
    curve = next(line for line in axes[0].lines if line.get_label() == "LN")
    assert curve.get_xydata().tolist() == [[0.1, 90.5], [1.0, 96.0], [5.0, 80.0]]
    bars = axes[0].collections[1].get_segments()
    assert [bar[:, 1].tolist() for bar in bars[:2]] == [
        list(stats.bootstrap_interval(runs[tau])) for tau in (0.1, 1.0)
    ]
    assert [line.get_ydata()[0] for line in axes[0].lines if line.get_label() == "CE (2)"] == [71.0]
    paths = figures.write(report, tmp_path / "figures")
    assert [path.name for path in paths] == ["two_tau.png"]
    assert Image.open(paths[0]).width > 500
    two_values = [line for line in lines if line["hash"] != lines[-1]["hash"]]
    assert figures.write(bench.report(table, two_values), tmp_path) == []


def test_ranks_are_of_rows_measured_alike_in_every_column(tmp_path):
    table = written(tmp_path, FOUR)
    means = {"CE": (71.0, 60.0), "GCE": (77.0, 80.0), "LN": (79.0, 70.0)}
    lines = made(table, "MAE", "0%", "full", [50.0]) + made(
        table, "MAE", "sym 40%", "reduced", [9.0]
    )
    for row, values in means.items():
        for column, value in zip(("sym 40%", "0%"), values, strict=True):
            lines += made(table, row, column, "full", [value])
    shown = figures.draw_ranks(bench.report(table, lines))
    words = {text.get_text().strip() for text in shown.axes[0].texts}
    assert {"CE (3.00)", "GCE (1.50)", "LN (1.50)"} <= words
    assert not any(word.startswith("MAE") for word in words)
    assert "2 columns, full" in " ".join(shown.axes[0].get_title().split())
    assert figures.draw_ranks(bench.report(table, lines[2:-1])) is None  # LN in one column


def terminal(report):
    console = Console(width=80, record=True, file=io.StringIO())
    render.show(report, console)
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
    page = render.html([bench.report(table, [])])
    assert "<script>" not in page and "&lt;script&gt;" in page and "70.67" in page


def test_failures_show_in_the_report(table, paths):
    job = Job(bench.cells(table)[0], "full", 0)
    report = bench.report(table, [failure(job, paths, "it broke")])
    assert report.entries["MNIST", "sym 40%", "CE"].note == "failed: it broke"


def test_the_page_of_results_is_fresh():
    lines = bench.load_results(ROOT / "results")
    fresh = render.markdown([bench.report(name, lines) for name in bench.list_tables()])
    page = (ROOT / "docs" / "results.md").read_text()
    assert page == fresh, f"docs/results.md is stale; run {render.COMMAND}"


@pytest.mark.parametrize("width", ["80", "40"])
def test_names_in_lists_are_whole_in_narrow_terminals(width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", width)
    listed = CliRunner().invoke(bench_app, ["list"]).output
    assert f"there is no folder {tmp_path / 'results'}\n" in listed
    assert all(f" {name} " in listed for name in bench.list_tables())
    (tmp_path / "results").mkdir()
    shown = CliRunner().invoke(bench_app, ["list", "softmax_temperature_t2"]).output
    assert "no folder" not in shown
    assert "│ Het-τ* (theirs) │ PASCAL VOC │ validation │ het_tau │" in shown


def test_the_list_counts_what_the_report_shows(tmp_path, monkeypatch, paths):
    table = written(tmp_path, THREE)
    lines = measured_everywhere(table)
    lines.append(failure(Job(bench.cells(table)[1], "full", 0), paths, "it broke"))
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(tables, "load_table", lambda name: table)
    monkeypatch.setattr(tables, "list_tables", lambda: ["two"])
    monkeypatch.setenv("COLUMNS", "120")
    words = ["list", "two", "--results", str(tmp_path)]
    shown = " ".join(CliRunner().invoke(bench_app, words).output.split())
    assert "│ CE │ MNIST │ sym 40% │ ce │ 3 │ done │" in shown
    assert "│ CE │ MNIST │ 0% │ ce │ 0 │ failed: it broke │" in shown
    assert "│ LN │ MNIST │ sym 40% │ ln │ 2 │ done, tuned │" in shown
    listed = CliRunner().invoke(bench_app, ["list", "--results", str(tmp_path)]).output
    assert "│ two │ A table of two │ 4 │ 4 │ 3 │" in " ".join(listed.split())


def test_commands(tmp_path):
    runner = CliRunner()
    listed = runner.invoke(bench_app, ["list"])
    assert listed.exit_code == 0 and "dtm_t3" in listed.output
    cells = runner.invoke(bench_app, ["list", "softmax_temperature_t2"])
    assert "not public" in " ".join(cells.output.split())
    target = tmp_path / "t.html"
    told = runner.invoke(bench_app, ["report", "dtm_t4", "--html", str(target)])
    assert told.exit_code == 0 and "94.82" in target.read_text()
    words = ["report", "dtm_t4", "--results", str(tmp_path), "--figures", str(tmp_path)]
    assert "nothing to draw" in runner.invoke(bench_app, words).output
    for words in (["run"], ["run", "dtm_t4", "--all"], ["run", "dtm_t5"]):
        assert isinstance(runner.invoke(bench_app, words).exception, BadInput)
    wrong = runner.invoke(bench_app, ["run", "dtm_t4", "--scale", "huge"])
    assert isinstance(wrong.exception, BadInput) and "huge" in str(wrong.exception)


def test_runs_whose_data_is_missing_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("YTILDE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    words = ["causal_nl_t1", "--data-root", "d"]
    told = CliRunner().invoke(bench_app, ["run", *words, "--only", "ce", "--seeds", "1"])
    assert isinstance(told.exception, BadInput) and not list(tmp_path.iterdir())
    assert "not in d: fashion-mnist (`ytilde data fashion-mnist`)" in str(told.exception)
    listed = CliRunner().invoke(bench_app, ["list", *words]).output
    assert "needs data: fashion-mnist" in listed and " ready " not in listed
    folder = tmp_path / "d" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train-images-idx3", "t10k-images-idx3"):
        (folder / f"{part}-ubyte").write_bytes(b"broken")
    assert datasets.at_hand("mnist", tmp_path / "d", "test")
    assert not datasets.at_hand("fashion-mnist", tmp_path / "d")
    for seeds in ("0", "-1"):
        told = CliRunner().invoke(bench_app, ["run", *words, "--seeds", seeds])
        assert told.exit_code == 2 and "--seeds" in told.output


def test_at_hand_tells_of_every_set_what_its_reader_would(tmp_path):
    made = {name for name in datasets.NAMES if "made here" in datasets.origin(name)}
    found = {n for n in datasets.NAMES for s in ("train", "test")
             if datasets.at_hand(n, tmp_path, s)}  # fmt: skip
    assert found == made
