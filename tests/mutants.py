"""Changes the code in one place at a time and asks whether the module's own tests notice.

For developers: `make mutants`, or `make mutants MODULES="transition elr" N=10`; `blocks` and
`methods` stand for all of them. A change swaps an operator, makes a comparison strict (or not),
drops a sign or multiplies a constant by 1.5. It is applied to a copy of `src`; the checkout is
never touched. A change that survives either alters nothing that matters (a starting value, a
tolerance) or names a property that no test states. `--at transition.py:40` tries every change of
that line instead of a sample.

To save time, the tests that call the changed function come first, the fastest of them leading; what
they do not notice is put to all tests of the module. Each run is a fork of this process, which has
imported torch already.
"""

import argparse
import ast
import copy
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import matplotlib.figure  # noqa: F401  (what is imported here is imported once for all forks)
import pandas  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
import typer  # noqa: F401

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "ytilde"
BLOCKS = (
    "annotators", "auditing.audit", "auditing.baselines", "auditing.checked", "auditing.kernel",
    "auditing.neighbourhood", "auditing.panel", "auditing.readings", "auditing.recalibration",
    "auditing.verdict", "augment", "backbones.patches", "bench.stats", "data.tfidf", "diffusion",
    "encoders", "engine.muon", "generative", "heads", "losses", "metrics", "mixing", "noise",
    "selection", "transition", "uncertainty",
)  # fmt: skip
# Where test_NAME.py is missing or not all. The golden numbers and common checks of
# test_methods.py notice almost anything and explain nothing: they are left out.
TESTED_IN = {
    "_shared": ("loss_methods", "selection_methods", "transition_methods", "dtm"),
    "audit": ("auditing", "out_of_core"), "augment": ("augment", "policies"),
    "baselines": ("auditing",),
    "bi_tempered": ("loss_methods", "tables"), "bootstrap": ("loss_methods",),
    "ce": ("engine",), "crowd": ("annotators",),
    "encoders": ("contrastive", "patches", "embed"), "gce": ("loss_methods", "tables"),
    "het": ("heads", "tables"), "het_xl": ("heads",), "kernel": ("diagnosis", "panel"),
    "ln": ("heads", "tables"), "lra": ("dtm",),
    "mixing": ("losses",), "noise_against_noise": ("loss_methods", "tables"),
    "readings": ("auditing",), "recalibration": ("checked",), "pgdf": ("pgdf", "selection_methods"),
    "selection": ("selection", "promix"),
    "tfidf": ("text",),
    "transition": ("transition", "transition_methods"), "verdict": ("auditing",),
}  # fmt: skip
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


class Change(NamedTuple):
    file: Path
    node: Any  # what the change replaces
    text: str  # what it puts there

    def __str__(self) -> str:
        was = " ".join(ast.unparse(self.node).split())
        return f"{self.file.relative_to(PACKAGE)}:{self.node.lineno}: {was} -> {self.text}"

    def source(self) -> bytes:
        lines = self.file.read_bytes().splitlines(keepends=True)
        first, last = self.node.lineno - 1, self.node.end_lineno - 1
        head, tail = lines[first][: self.node.col_offset], lines[last][self.node.end_col_offset :]
        lines[first : last + 1] = [head + f"({self.text})".encode() + tail]
        return b"".join(lines)


def nodes(tree: ast.AST) -> Iterator[Any]:
    """All but annotations, messages, drawing, and the defaults of fields, which are settings."""
    for name, part in ast.iter_fields(tree):
        for node in part if isinstance(part, list) else [part]:
            if not isinstance(node, ast.AST) or name in ("annotation", "returns"):
                continue
            if isinstance(node, ast.JoinedStr | ast.Raise):
                continue
            if isinstance(node, ast.FunctionDef) and node.name.startswith("plot_"):
                continue
            if isinstance(tree, ast.ClassDef) and isinstance(node, ast.AnnAssign):
                continue
            yield node
            yield from nodes(node)


def variants(node: Any) -> Iterator[Any]:
    new = copy.deepcopy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
        yield new
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new.ops[0] = SWAPS[type(node.ops[0])]()
        yield new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if not isinstance(node.operand, ast.Constant):  # else an axis, an index, a marker
            yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value >= 1e-4:
        yield ast.Constant(node.value * 1.5)  # smaller ones are tolerances


def changes(file: Path) -> list[Change]:
    tree = ast.parse(file.read_bytes())
    return [Change(file, node, ast.unparse(new)) for node in nodes(tree) for new in variants(node)]


def files_of(module: str) -> list[Path]:
    for path in (PACKAGE / module.replace(".", "/"), PACKAGE / "methods" / module):
        if path.is_dir():
            return sorted(path.rglob("*.py"))
        if path.with_suffix(".py").is_file():
            return [path.with_suffix(".py")]
    sys.exit(f"There is no module {module}; known: {' '.join((*BLOCKS, *methods()))}.")


def methods() -> list[str]:
    return [p.stem for p in sorted((PACKAGE / "methods").glob("*.py")) if p.stem != "__init__"]


def tests_of(module: str) -> tuple[Path, ...]:
    name = module.rpartition(".")[2]
    found = [TESTS / f"test_{stem}.py" for stem in TESTED_IN.get(name, (name,))]
    if not found[0].exists():  # a method: the test file of its kind that names it
        found = [p for p in sorted(TESTS.glob("test_*_methods.py")) if f'"{name}"' in p.read_text()]
    return tuple(found) or sys.exit(f"There is no test file for {module}; name one in TESTED_IN.")


class Recorder:
    """A pytest plugin: which functions of the package each test calls, how long it takes, and the
    first test that fails."""

    def __init__(self, package: Path, trace: bool) -> None:
        self.package, self.trace = f"{package}{os.sep}", trace
        self.tests: dict[str, tuple[float, list[tuple[str, int]]]] = {}
        self.failed = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        called: set[tuple[str, int]] = set()

        def on_call(frame: Any, event: str, value: Any) -> None:
            name = frame.f_code.co_filename
            if name.startswith(self.package):
                called.add((name.removeprefix(self.package), frame.f_code.co_firstlineno))

        start = time.monotonic()
        if self.trace:
            sys.settrace(on_call)
        try:
            return (yield)
        finally:
            if self.trace:
                sys.settrace(None)
            self.tests[item.nodeid] = (time.monotonic() - start, sorted(called))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} cannot be imported"


def fork(tests: list[str], folder: str, trace: bool) -> None:
    """Runs the tests in this process, a fork, against folder/src; what came out is in a file."""
    source = Path(folder) / "src"
    os.environ.update(PYTHONPATH=str(source), HYPOTHESIS_STORAGE_DIRECTORY=folder)
    os.chdir(TESTS.parent)
    sys.path.insert(0, str(source))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    recorder = Recorder(source / "ytilde", trace)
    hypothesis.settings.register_profile("mutants", deadline=None)
    hypothesis.settings.load_profile("mutants")
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
    code = pytest.main([*options, *tests], plugins=[recorder])
    out = {"code": int(code), "failed": recorder.failed, "tests": recorder.tests}
    (Path(folder) / "out.json").write_text(json.dumps(out))


def run(
    tests: list[str], change: Change | None, limit: float | None = None, trace: bool = False
) -> dict[str, Any]:
    """The exit code of the tests, the first that failed, and what each of them called."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "src"
        shutil.copytree(PACKAGE.parent, copied)  # with its compiled files, which stay valid
        if change:
            (copied / change.file.relative_to(PACKAGE.parent)).write_bytes(change.source())
        process = multiprocessing.get_context("fork").Process(
            target=fork, args=(tests, folder, trace)
        )
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
            process.join()
            return {"code": 1, "failed": "slow"}
        result = Path(folder) / "out.json"
        if not result.exists():
            return {"code": 1, "failed": "the process died"}
        return json.loads(result.read_text())


@cache
def called_by(tests: tuple[Path, ...]) -> dict[str, tuple[float, list[list[Any]]]]:
    """Each test: its seconds without any change, and the functions that it calls.

    Kept in build/ until the package or these tests change. Nothing, where a test fails.
    """
    digest = hashlib.sha256()
    for path in (*tests, *sorted(PACKAGE.rglob("*.py"))):
        digest.update(path.read_bytes())
    kept = TESTS.parent / "build" / "mutants" / f"{digest.hexdigest()[:16]}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    result = run([str(path) for path in tests], None, trace=True)
    if result["code"]:
        print(f"{result['failed']}: fails without any change; mend that first.", flush=True)
        return {}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result["tests"]))
    return result["tests"]


def function_of(change: Change) -> list[Any] | None:
    """File and first line of the function that holds the change; None outside of functions."""
    holding = [
        node
        for node in ast.walk(ast.parse(change.file.read_bytes()))
        if isinstance(node, ast.FunctionDef)
        and node.body[0].lineno <= change.node.lineno <= (node.end_lineno or 0)
    ]
    if not holding:
        return None
    inner = max(holding, key=lambda node: node.lineno)
    first = min([inner.lineno, *(each.lineno for each in inner.decorator_list)])
    return [str(change.file.relative_to(PACKAGE)), first]


def outcome(tests: tuple[Path, ...], change: Change) -> tuple[str, str]:
    """SURVIVED, noticed, or slow: they took so long that something went round in circles.

    And the test that noticed it.
    """
    known, function = called_by(tests), function_of(change)
    near = sorted((took, name) for name, (took, calls) in known.items() if function in calls)
    everything = (sum(took for took, _ in known.values()), [str(path) for path in tests])
    for took, chosen in ((sum(t for t, _ in near), [name for _, name in near]), everything):
        if not chosen:
            continue
        result = run(chosen, change, 900 + 10 * took)  # the machine may be busy
        if result["code"]:
            return "slow" if result["failed"] == "slow" else "noticed", result["failed"]
    return "SURVIVED", f"{len(near)} tests call it"


def sampled(module: str, given: argparse.Namespace) -> list[Change]:
    pool = [change for file in files_of(module) for change in changes(file)]
    if given.at:
        return [change for change in pool if str(change).startswith(f"{given.at}:")]
    return random.Random(f"{given.seed} {module}").sample(pool, min(given.n, len(pool)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=["blocks", "methods"], help="default: all")
    parser.add_argument("-n", type=int, default=4, help="changes a module (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", metavar="FILE:LINE", help="every change of this line of a module")
    given = parser.parse_args()
    groups = {"blocks": list(BLOCKS), "methods": methods()}
    counts: Counter[str] = Counter()
    for module in (one for each in given.modules for one in groups.get(each, [each])):
        tests = tests_of(module)
        for change in sampled(module, given) if called_by(tests) else ():
            told, by = outcome(tests, change)
            counts[told] += 1
            print(f"{told:8} {change}  [{by}]", flush=True)
    total, noticed = max(1, counts.total()), counts["noticed"] + counts["slow"]
    slow = f", {counts['slow']} of them by the time that they took" if counts["slow"] else ""
    print(f"{noticed} of {counts.total()} noticed ({noticed / total:.0%}){slow}")


if __name__ == "__main__":
    main()
