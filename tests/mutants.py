"""Changes the code in one place at a time and asks whether the module's own tests notice.

For developers: `make mutants`, or `make mutants MODULES="transition elr" N=10`. A change swaps an
operator, makes a comparison strict (or not), drops a sign or multiplies a constant by 1.5. It is
applied to a copy of `src`; the checkout is never touched. A change that survives either alters
nothing that matters (a starting value, a tolerance) or names a property that no test states.
`--at transition.py:40` tries every change of that line instead of a sample.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "ytilde"
BLOCKS = (
    "auditing.audit", "auditing.baselines", "auditing.readings", "auditing.verdict", "augment",
    "bench.stats", "diffusion", "encoders", "generative", "heads", "losses", "metrics", "mixing",
    "noise", "selection", "transition", "uncertainty",
)  # fmt: skip
# Where test_NAME.py is missing or not all. The golden numbers and common checks of
# test_methods.py notice almost anything and explain nothing: they are left out.
TESTED_IN = {
    "_shared": ("loss_methods", "selection_methods", "transition_methods", "dtm"),
    "audit": ("auditing",), "augment": ("augment", "policies"), "baselines": ("auditing",),
    "bi_tempered": ("loss_methods", "tables"), "bootstrap": ("loss_methods",),
    "ce": ("engine",), "crowd": ("annotators",),
    "encoders": ("contrastive",), "gce": ("loss_methods", "tables"),
    "het": ("heads", "tables"), "het_xl": ("heads",), "ln": ("heads", "tables"), "lra": ("dtm",),
    "mixing": ("losses",), "noise_against_noise": ("loss_methods", "tables"),
    "readings": ("auditing",), "pgdf": ("pgdf", "selection_methods"),
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
    """All but annotations, messages and the defaults of fields, which are settings."""
    for name, part in ast.iter_fields(tree):
        for node in part if isinstance(part, list) else [part]:
            if not isinstance(node, ast.AST) or name in ("annotation", "returns"):
                continue
            if isinstance(node, ast.JoinedStr | ast.Raise):
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


def outcome(tests: tuple[Path, ...], change: Change | None, limit: float | None = None) -> str:
    """SURVIVED, noticed, or slow: they took so long that something went round in circles."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(PACKAGE.parent, source, ignore=shutil.ignore_patterns("__pycache__"))
        if change:
            (source / change.file.relative_to(PACKAGE.parent)).write_bytes(change.source())
        own = {"PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *map(str, tests)]
        command = [sys.executable, "-m", "pytest", *options]
        try:
            run = subprocess.run(
                command, env={**os.environ, **own}, cwd=TESTS.parent, timeout=limit,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "slow"
        return "noticed" if run.returncode else "SURVIVED"


@cache
def seconds(tests: tuple[Path, ...]) -> float:
    """How long the tests take without any change."""
    start = time.monotonic()
    if outcome(tests, None) != "SURVIVED":
        names = ", ".join(path.name for path in tests)
        sys.exit(f"{names}: the tests fail without any change; mend that first.")
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="default: the blocks and all methods")
    parser.add_argument("-n", type=int, default=4, help="changes a module (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", metavar="FILE:LINE", help="every change of this line of a module")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    for module in given.modules or (*BLOCKS, *methods()):
        tests = tests_of(module)
        pool = [change for file in files_of(module) for change in changes(file)]
        if given.at:
            sample = [c for c in pool if str(c).startswith(f"{given.at}:")]
        else:
            sample = random.Random(f"{given.seed} {module}").sample(pool, min(given.n, len(pool)))
        for change in sample:
            told = outcome(tests, change, 60 + 5 * seconds(tests))
            counts[told] += 1
            print(f"{told:8} {change}", flush=True)
    total, noticed = max(1, counts.total()), counts["noticed"] + counts["slow"]
    slow = f", {counts['slow']} of them by the time that they took" if counts["slow"] else ""
    print(f"{noticed} of {counts.total()} noticed ({noticed / total:.0%}){slow}")


if __name__ == "__main__":
    main()
