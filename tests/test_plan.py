"""What the planner chooses, what it expects it to cost, and that kills neither lose nor double."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ytilde import bench
from ytilde.bench import Job, RunPaths, tables
from ytilde.bench.cost import GUESS, Costs, rough_seconds
from ytilde.bench.plan import Plan, run_plan
from ytilde.bench.run import failure, is_running, run_job, seconds_spent
from ytilde.checkpoint import locked
from ytilde.cli.bench import bench_app
from ytilde.data import BadInput

TOML = """
title = "Digits"
source = "Nobody, Table 0"
protocol = "last"
seeds = 2
reduced_epochs = 2
headline = { rows = ["LN"], columns = ["sym 40%"] }

[recipe]
optimizer = "adam"
lr = 0.001
epochs = 4
batch_size = 50
schedule = "constant"
val = 0.1

[[groups]]
name = "digits"
data = "digits"
backbone = "mlp"
columns = [{ name = "sym 40%", noise = "symmetric:0.4" }, { name = "0%" }]

[[rows]]
name = "CE"
method = "ce"
[rows.paper]
"digits" = ["70.67", "99.27"]

[[rows]]
name = "LN"
method = "ln"
[rows.paper]
"digits" = ["97.21", "99.38"]
"""


def written(folder, text=TOML, name="two"):
    (folder / f"{name}.toml").write_text(text)
    return tables.read_table(folder / f"{name}.toml")


@pytest.fixture
def table(tmp_path):
    return written(tmp_path)


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "results", tmp_path / "work", device="cpu", commit="abc")


def planned(table, paths, **options):
    return Plan([(table, cell) for cell in bench.cells(table)], paths, **options)


def line_of(job, seconds, **own):
    """Of a run that never took place."""
    figures = {"test_accuracy": 0.9, "test_nll": 1.0}
    line = {"hash": job.hash, "status": "done", "experiment": tables.experiment(job.inputs)}
    line |= {"inputs": job.inputs, "seed": job.seed, "noise_rate": None, "seconds": seconds}
    return line | {"device": "cpu", "commit": "abc", "last": figures} | own


def job_of(table, row="CE", column="0%", seed=0, scale="full"):
    (cell,) = bench.choose(bench.cells(table), [row], [column])
    return Job(cell, scale, seed)


def add(paths, *lines):
    paths.results.mkdir(exist_ok=True)
    with (paths.results / "two.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def names(wanted):
    return [(each.job.cell.row, each.job.cell.column, each.job.seed) for each in wanted]


# ---- what a run costs ---------------------------------------------------------------------------


def test_the_seconds_of_runs_alike_are_expected(table):
    job = job_of(table)
    lines = [line_of(job_of(table, seed=seed), seconds) for seed, seconds in enumerate((7, 40, 9))]
    expected = Costs(lines, "cpu").expected(job.inputs)
    assert expected == (pytest.approx(9), "runs of it")
    other_noise = Costs(lines, "cpu").expected(job_of(table, column="sym 40%").inputs)
    assert other_noise == (pytest.approx(9), "runs like it")
    for elsewhere in (Costs(lines, "NVIDIA H200"), Costs(lines, "cpu", compile=True)):
        assert elsewhere.expected(job.inputs).basis == GUESS


def test_seconds_grow_with_epochs_rows_and_network(table):
    seen = line_of(job_of(table), 60.0)

    def expected(**changes):
        run_inputs = json.loads(json.dumps(seen["inputs"]))
        run_inputs["recipe"] |= changes.pop("recipe", {})
        return Costs([seen], "cpu").expected(run_inputs | changes)

    longer = expected(recipe={"epochs": 4000})
    assert longer.basis == "other epochs" and longer.seconds > 20 * 60
    assert expected(rows=100).seconds < 60 < expected(backbone="mlp:width=4096").seconds
    assert expected(data="mnist", backbone="lenet5").basis == "other runs"
    assert expected(recipe={"epochs": 4000, "patience": 5}).seconds < longer.seconds / 10


def test_a_line_that_makes_no_run_any_more_tells_nothing(table):
    strange = [{"method": "gone"}, {"backbone": "gone"}, {"recipe": {"gone": 1}}, {"fields": 3}]
    lines = [line_of(job_of(table), 50.0) for _ in strange]
    for line, change in zip(lines, strange, strict=True):
        line["inputs"] = line["inputs"] | change
        assert rough_seconds(line["inputs"], "cpu") is None
    assert Costs(lines, "cpu").expected(job_of(table).inputs).basis == GUESS


def test_the_pace_of_this_session_counts(table):
    """Four at once take longer than the one at a time that the old lines tell of."""
    ce, ln = job_of(table).inputs, job_of(table, "LN").inputs
    costs = Costs([line_of(job_of(table), 10), line_of(job_of(table, "LN"), 20)], "cpu")
    costs.add(line_of(job_of(table, seed=1), 30))
    assert costs.expected(ce).seconds == pytest.approx(30)
    assert costs.expected(ln).seconds == pytest.approx(60)
    costs.add(failure(job_of(table, seed=2), RunPaths(), "it broke"))
    assert costs.expected(ln).seconds == pytest.approx(60)


# ---- what is chosen -----------------------------------------------------------------------------


def test_headline_cells_come_first_and_then_other_seeds(table, paths):
    add(paths, *(line_of(job_of(table, row, seed=9), 10) for row in ("CE", "LN")))
    order = planned(table, paths).order()
    assert names(order) == [
        ("LN", "sym 40%", 0),
        ("LN", "sym 40%", 1),
        ("CE", "sym 40%", 0), ("LN", "0%", 0),
        ("CE", "sym 40%", 1), ("LN", "0%", 1),
        ("CE", "0%", 0), ("CE", "0%", 1),
    ]  # fmt: skip


def test_what_is_cheap_comes_before_what_is_dear(table, paths):
    add(paths, line_of(job_of(table, "LN", "sym 40%", 9), 1000))
    add(paths, line_of(job_of(table, "CE", "0%", 9), 10))
    order = planned(table, paths, seeds=1).order()
    assert [row for row, *_ in names(order)] == ["CE", "CE", "LN", "LN"]


def test_breadth_is_a_seed_of_every_cell_first(table, paths):
    add(paths, *(line_of(job_of(table, row, seed=9), 10) for row in ("CE", "LN")))
    plan = planned(table, paths, breadth=True)
    first = [("LN", "sym 40%"), ("CE", "sym 40%"), ("LN", "0%"), ("CE", "0%")]
    assert names(plan.order()) == [(*cell, seed) for seed in (0, 1) for cell in first]
    assert names([plan.take(600)]) == [("LN", "sym 40%", 0)]
    plan.put_back(job_of(table, "LN", "sym 40%"))
    assert names(plan.order())[0] == ("LN", "sym 40%", 0)


def test_what_is_done_failed_or_running_is_not_chosen(table, paths):
    add(paths, line_of(job_of(table, "LN", "sym 40%"), 5))
    add(paths, failure(job_of(table, "CE", "sym 40%"), paths, "it broke"))
    plan = planned(table, paths, seeds=1)
    assert names(plan.order()) == [("LN", "0%", 0), ("CE", "0%", 0)] and len(plan.failed) == 1
    job = job_of(table, "LN", "0%")
    assert not is_running(job, paths)
    with locked(paths.work / f"{job.hash}.lock"):
        assert is_running(job, paths)
        assert names([plan.take(600)]) == [("CE", "0%", 0)] and plan.take(600) is None
    assert names([plan.take(600)]) == [("LN", "0%", 0)] and plan.take(600) is None


def test_a_run_that_two_tables_share_is_worth_both(table, paths, tmp_path):
    own = written(tmp_path, TOML.replace('"LN"], columns = ["sym 40%"', '"CE"], columns = ["0%"'))
    pairs = [(each, cell) for each in (table, own) for cell in bench.cells(each)]
    plan = Plan(pairs, paths, seeds=1)
    assert len(plan.jobs) == 4
    shared = {each.job.cell.key: each.value for each in plan.order()}
    assert shared["LN | digits | sym 40%"] == 9 + 1 and shared["CE | digits | sym 40%"] == 3 + 3


def test_nothing_is_started_that_would_not_be_finished(table, paths):
    add(paths, *(line_of(job_of(table, row, seed=9), 100) for row in ("CE", "LN")))
    plan = planned(table, paths)
    assert plan.take(100) is None
    assert names([plan.take(140)]) == [("LN", "sym 40%", 0)]
    for workers, count in ((1, 4), (2, 7)):
        assert len(plan.schedule(450, workers)) == count
    assert len(plan.jobs) == 7  # a schedule takes nothing


def test_data_that_is_not_at_hand_is_told(tmp_path, paths):
    away = TOML.replace('"digits"\nbackbone = "mlp"', '"mnist"\nbackbone = "lenet5"')
    missing = RunPaths(paths.results, paths.work, tmp_path / "nowhere", "cpu")
    table = written(tmp_path, away)
    with pytest.raises(BadInput, match=r"not in .*nowhere: mnist"):
        planned(table, missing)
    pairs = [(t, c) for t in (table, written(tmp_path, name="here")) for c in bench.cells(t)]
    plan = Plan(pairs, missing)
    assert plan.lacking == {"mnist": 4} and len(plan.jobs) == 8
    assert len(planned(table, missing, scale="tiny").jobs) == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [('rows = ["LM"]', "no row of the table: 'LM'"), ('cells = ["LN"]', "not 'cells'"),
     ('rows = "LN"', "another type"), ('columns = ["sym"]', "no column of the table: 'sym'")],
)  # fmt: skip
def test_a_headline_names_rows_and_columns_of_its_table(tmp_path, wrong, said):
    with pytest.raises(BadInput, match=said):
        written(tmp_path, TOML.replace('rows = ["LN"], columns = ["sym 40%"]', wrong))


def test_every_table_of_a_paper_has_a_headline():
    for name in bench.list_tables():
        table = bench.load_table(name)
        published = any(row.paper for row in table.rows)
        headline = [c for c in bench.cells(table) if c.row in table.headline.get("rows", [])]
        columns = table.headline.get("columns", [])
        assert published == any(cell.column_names & set(columns) for cell in headline), name


# ---- runs ---------------------------------------------------------------------------------------


def test_an_interrupted_run_costs_what_is_left_of_it(table, paths, monkeypatch):
    """Its line told only the seconds after it went on."""
    module = import_module("ytilde.bench.run")
    fit, measure = module.fit_method, module.measure
    monkeypatch.setattr(  # a checkpoint after every epoch
        module, "fit_method", lambda *a, **k: fit(*a, **k | {"checkpoint_every": 0})
    )
    job = job_of(table)

    def stop(kind, _, value):
        if kind == "epoch" and value["epoch"] == 3:
            raise KeyboardInterrupt

    paths.results.mkdir()
    began = time.perf_counter()
    with monkeypatch.context() as slow:
        slow.setattr(module, "measure", lambda *a: time.sleep(1) or measure(*a))
        with pytest.raises(KeyboardInterrupt):
            run_job(job, paths, stop)
    spent = seconds_spent(job, paths)  # of two epochs: the third was not saved
    assert 2 <= spent < time.perf_counter() - began - 1  # the third's second
    assert seconds_spent(job_of(table, seed=1), paths) == 0
    add(paths, line_of(job_of(table, seed=9), 1000))
    left = {each.job.hash: each.left for each in planned(table, paths).order()}
    assert left[job.hash] == pytest.approx(1000 - spent)
    assert left[job_of(table, seed=1).hash] == pytest.approx(1000)
    told, began = [], time.perf_counter()
    run_job(job, paths, lambda kind, _, value: told.append(value))
    assert [value["epoch"] for value in told[:-1]] == [3, 4]
    assert spent < told[-1]["seconds"] <= spent + time.perf_counter() - began + 0.005  # rounded
    fresh = bench.run_cell(job, RunPaths(paths.results, paths.work / "fresh", device="cpu"))
    assert told[-1]["last"] == fresh["last"]


LONG = TOML.replace("epochs = 4\n", "epochs = 100000\n")


def test_the_time_is_kept(tmp_path, paths, monkeypatch):
    """A run that takes longer than runs like it did is stopped, and no failure."""
    table = written(tmp_path, LONG)
    add(paths, line_of(job_of(table, seed=9), 1))
    plan = planned(table, paths)
    told, now = [], time.monotonic()  # the worker goes by the real one

    class Clock:
        """The epochs tell the time, however fast they are: the third is one too many."""

        def monotonic(self):
            return now

    def say(kind, job, value):
        nonlocal now
        told.append(kind)
        now += 400 * (kind == "epoch")

    for name in ("plan", "pool"):
        monkeypatch.setattr(import_module(f"ytilde.bench.{name}"), "time", Clock())
    outcome = run_plan(plan, 1000, 1, say)
    assert told.count("epoch") == 3
    assert outcome.lines == [] and len(outcome.interrupted) == 1
    assert len(bench.load_results(paths.results)) == 1
    assert not is_running(outcome.interrupted[0], paths)


PLAN = """
import sys
from pathlib import Path
from ytilde.bench import RunPaths, cells, tables
from ytilde.bench.plan import Plan, run_plan
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    table = tables.read_table(folder / "two.toml")
    paths = RunPaths(folder / "results", folder / "work", device="cpu", commit="abc")
    pairs = [(table, cell) for cell in cells(table)]
    plan = Plan(pairs, paths, scale="tiny", seeds=int(sys.argv[2]))
    run_plan(plan, float(sys.argv[3]), 2)
"""


def locks(folder):
    """Of runs that were begun, and when."""
    found = set()
    for path in (folder / "work").glob("*.lock"):
        with suppress(FileNotFoundError):  # it ended just now
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def running(parent):
    """The child processes that train."""
    try:
        return Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    except OSError:
        return []


@pytest.mark.parametrize(("seeds", "kills"), [(1, 2), pytest.param(10, 20, marks=pytest.mark.slow)])
def test_kills_at_random_neither_lose_nor_double_a_run(table, tmp_path, seeds, kills):
    calm = RunPaths(tmp_path / "calm", tmp_path / "calm-work", device="cpu", commit="abc")
    undisturbed = bench.run(table, scale="tiny", seeds=seeds, paths=calm)
    stormy = RunPaths(tmp_path / "results", tmp_path / "work", device="cpu")
    every = [(cell, seed) for cell in bench.cells(table) for seed in range(seeds)]
    (tmp_path / "plan.py").write_text(PLAN)
    command = [sys.executable, str(tmp_path / "plan.py"), str(tmp_path), str(seeds)]
    moves, deaths = random.Random(seeds), 0
    while deaths < kills:
        before = locks(tmp_path)
        parent = subprocess.Popen([*command, "120"])
        while parent.poll() is None and locks(tmp_path) <= before:
            time.sleep(0.02)
        time.sleep(moves.uniform(0, 0.4))
        if deaths % 2 == 0:  # a worker, and then the parent, whose other worker goes on alone
            for child in moves.sample(found := running(parent), min(1, len(found))):
                os.kill(int(child), signal.SIGKILL)
            time.sleep(moves.uniform(0, 0.2))
        parent.kill()
        parent.wait()
        deaths += 1
    while any(is_running(Job(cell, "tiny", seed), stormy) for cell, seed in every):
        time.sleep(0.1)  # the last orphans
    subprocess.run([*command, "3000"], check=True)
    whole = bench.load_results(stormy.results)
    assert sorted(line["hash"] for line in whole) == sorted(line["hash"] for line in undisturbed)
    same = ("last", "chosen", "mean_of_last_ten", "val_last", "status", "inputs")
    known = {line["hash"]: line for line in undisturbed}
    for line in whole:
        assert {k: line[k] for k in same} == {k: known[line["hash"]][k] for k in same}


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, tmp_path, table):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(tables, "load_table", lambda name: table)

    def call(*words):
        told = CliRunner().invoke(bench_app, ["plan", *words, "--device", "cpu"])
        if isinstance(told.exception, BadInput):
            assert not list(Path().iterdir()), "a refusal writes nothing"
            return f"refused: {told.exception}"
        assert told.exit_code == 0, told.exception
        return told.output

    return call


def test_the_plan_is_printed_and_nothing_written(command):
    told = command("two", "--minutes", "2", "--seeds", "1")
    assert not list(Path().iterdir())
    rows = [line.split("│")[2].strip() for line in told.splitlines() if "│ two" in line]
    assert rows[0] == "LN | digits | sym 40%" and len(rows) == 4
    assert "4 runs of 4 cells," in told and "0 more runs to do" in told
    assert "nothing fits" in command("two", "--minutes", "0.01")


def test_a_plan_that_cannot_be_is_refused(command, monkeypatch):
    for minutes in ("0", "-1", "nan", "inf"):
        assert "refused: --minutes must be a positive" in command("two", "--minutes", minutes)
    assert "refused: unknown row 'LM'" in command("two", "--only", "LM")
    assert "refused: unknown scale 'huge'" in command("two", "--scale", "huge")
    monkeypatch.setattr(tables, "load_table", bench.load_table)
    assert "refused: unknown table 'tow'" in command("tow")


def test_the_command_runs_its_plan(command):
    words = ("two", "--minutes", "2", "--seeds", "1", "--scale", "tiny", "--run")
    told = command(*words, "--only", "LN", "--workers", "2")
    assert "2 runs done, in runs/tiny; 0 runs to do" in told
    assert len(bench.load_results(Path("runs/tiny"))) == 2
    assert "2 runs of 2 cells" in command(*words[:-1])  # CE's
    assert "0 runs of 0 cells" in command(*words, "--only", "LN")
