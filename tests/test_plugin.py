"""Methods from outside: one new file is a whole method, and a bad one harms no other."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
import numpy as np
from ytilde import Classifier, create, list_methods
from ytilde.testing import check_method
assert "focal" in list_methods()
check_method("focal")
x = np.random.default_rng(0).normal(size=(60, 3)); y = (x[:, 0] > 0).astype(int)
assert Classifier(create("focal", gamma=1.0), epochs=30).fit(x, y).score(x, y) > 0.8
from ytilde import cli
for words in (["methods"], ["methods", "focal"],
              ["fit", "digits", "--method", "focal", "--gamma", "1.5", "--epochs", "1"]):
    sys.argv = ["ytilde", *words]
    cli.main()
"""


FOCAL = re.search(
    r"<!-- test: methods/focal.py -->\n```python\n(.*?)```",
    (ROOT / "CONTRIBUTING.md").read_text(),
    re.S,
)[1]
BASE = "from ytilde.method import Method, register\n"
CLASS = "class New(Method):\n    pass\n"


def run(*words, cwd, **env):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "200"} | env,
    )


def test_a_new_file_is_a_new_method(tmp_path):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "focal.py").write_text(FOCAL)
    done = run("-c", SCRIPT, cwd=tmp_path, YTILDE_METHODS=str(tmp_path / "methods"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Focal loss" in done.stdout
    assert "--gamma" in done.stdout
    assert "how much the easy examples count less" in done.stdout
    config = next((tmp_path / "runs").glob("*/config.json")).read_text()
    assert '"gamma": 1.5' in config


@pytest.fixture
def package(tmp_path):
    """A copy of the project with focal.py among ytilde's own methods, as yet without a range."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("benchmarks", "docs", "examples", "results", "src", "tests"):
        skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "fixtures")
        shutil.copytree(ROOT / name, root / name, ignore=skipped)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, root)
    first_try = FOCAL.replace('    ranges = "gamma >= 0"\n\n', "")
    assert first_try != FOCAL
    (root / "src" / "ytilde" / "methods" / "focal.py").write_text(first_try)
    return root


def pytest_in(root, *words, fail=False):
    """Run tests of the copy; what it says, with the reasons of skips."""
    words = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *words)
    done = run(*words, cwd=root, PYTHONPATH=str(root / "src"))
    assert done.returncode == int(fail), done.stdout + done.stderr
    return done.stdout


def test_one_file_in_the_package_passes(package):
    """The tests that look at all methods at once, and the cheap ones of focal itself."""
    files = ("tests/test_methods.py", "tests/test_docs.py")
    said = pytest_in(package, *files, "-k", "page or differ or file_names or (focal and not check)")
    assert "focal has no golden number yet: python tests/test_methods.py focal" in said
    assert "focal is not shipped yet, and says no range of {'gamma'}" in said


@pytest.mark.slow
def test_one_file_in_the_package_passes_all_that_methods_are_put_to(package):
    files = [f"tests/test_{name}.py" for name in ("methods", "docs", "cli", "ddp", "graph")]
    pytest_in(package, *files, "-k", "focal or docs or listed or differ or file_names")
    style = run("-m", "ruff", "check", "src/ytilde/methods/focal.py", cwd=package)
    assert style.returncode == 0 or "No module named ruff" in style.stderr, style.stdout


def test_a_shipped_method_is_still_held_to_its_page_and_number(package):
    """The tests that let a new file pass notice a change of one that is known."""
    path = package / "src" / "ytilde" / "methods" / "mae.py"
    path.write_text(path.read_text().replace("underfits", "overfits"))
    golden = package / "tests" / "golden.json"
    golden.write_text(golden.read_text().replace('"mae"', '"mae_"'))
    files = ("tests/test_methods.py", "tests/test_docs.py")
    assert "2 failed" in pytest_in(package, *files, "-k", "page or differ", fail=True)


FILES = {  # of a folder in $YTILDE_METHODS; what is said of those that are left out
    "broken": ("def loss(:\n", "SyntaxError"),
    "clash": (f'{BASE}@register("half")\n{CLASS}@register("elr")\n{CLASS}', "a method elr already"),
    "elr": (f'{BASE}@register("elr_of_mine")\n{CLASS}', "has the same file name"),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "lines": ("raise ValueError('one\\ntwo')\n", "ValueError: one two"),
    "no_default": (
        f"{BASE}from dataclasses import dataclass\n"
        f'@register("no_default")\n@dataclass(eq=False)\nclass New(Method):\n    q: float\n',
        "the field q of no_default needs a default",
    ),
    "no_method": (f'{BASE}@register("no_method")\nclass New:\n    pass\n', "a subclass of"),
    "no_name": (f'{BASE}@register("auto")\n{CLASS}', "'auto' cannot be the name"),
    "needs_broken": ("from . import broken\n", "SyntaxError"),
    "zz_twice": (f'{BASE}@register("focal")\n{CLASS}', "a method focal already"),
    "elr_slow": (
        f'{BASE}from ytilde.methods.elr import ELR\nregister("elr_slow", beta=0.9)(ELR)\n',
        None,
    ),
    "focal": (FOCAL, None),
    "_shared": ("raise AssertionError('no method: its name begins with an underscore')\n", None),
}
POINTS = """[ytilde.methods]
tiny = tiny_plugin
nowhere = there_is_no_such_module
"""
TAKES_PART = """
import ytilde
from ytilde import BadInput, Method, create, list_methods, register

assert create("elr").__module__ == "ytilde.methods.elr" and create("elr").name == "elr"
slow = create("elr_slow")
assert slow.beta == 0.9 and slow.name == "elr"  # a preset: its runs load without the plugin
assert {"focal", "tiny", "elr_slow"} <= set(list_methods())
assert not {"half", "elr_of_mine", "no_default", "no_method", "auto"} & set(list_methods())
try:
    create("broken")
except BadInput as error:
    assert "SyntaxError" in str(error), error
else:
    raise AssertionError("a broken plugin was created")

for _ in range(2):  # a cell of a notebook may be run again
    register("mine")(type("Mine", (Method,), {}))
ytilde.register_method("longer")(type("Mine", (Method,), {}))
assert ytilde.create_method("longer").get_params() == {} and "longer" in list_methods()
try:
    register("ln")(type("Mine", (Method,), {}))
except BadInput as error:
    assert "there is a method ln already (of ytilde)" in str(error), error
else:
    raise AssertionError("a method of ytilde was replaced")
assert create("ln").__module__ == "ytilde.methods.ln"
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """A folder of plugins, most of them bad, and an installed package with one good and one bad."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "methods").mkdir()
    for name, (code, _) in FILES.items():
        (folder / "methods" / f"{name}.py").write_text(code)
    package = folder / "site"
    (package / "tiny-1.0.dist-info").mkdir(parents=True)
    (package / "tiny-1.0.dist-info" / "METADATA").write_text("Name: tiny\nVersion: 1.0\n")
    (package / "tiny-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    (package / "tiny_plugin.py").write_text(FOCAL.replace('"focal"', '"tiny"'))
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    folders = os.pathsep.join([str(folder / "methods"), str(folder / "gone")])
    return {"cwd": folder, "PYTHONPATH": path, "YTILDE_METHODS": folders}


def test_bad_plugins_are_named_in_a_sentence_each_and_the_rest_works(plugins):
    done = run("-m", "ytilde", "methods", **plugins)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    expected = {
        f"the method file {name} in ": reason for name, (_, reason) in FILES.items() if reason
    }
    expected["YTILDE_METHODS names "] = "gone, which is no folder"
    expected["the entry point nowhere = there_is_no_such_module"] = "ModuleNotFoundError"
    assert len(lines) == len(expected), done.stderr
    for start, reason in expected.items():
        told = [line for line in lines if line.startswith(start)]
        assert len(told) == 1 and reason in told[0], (start, lines)
    for name in ("ce", "elr", "elr_slow", "focal", "tiny", "volminnet"):
        assert re.search(rf"^\W*{name}\b", done.stdout, re.M), name


def test_a_name_that_is_taken_is_refused(plugins):
    done = run("-c", TAKES_PART, **plugins)
    assert done.returncode == 0, done.stderr


def test_a_name_is_taken_before_anything_was_looked_up(tmp_path):
    """Ours stay, though the user's class comes first: nothing had been imported yet."""
    done = run(
        "-c", 'import ytilde\nytilde.register("elr")(type("E", (ytilde.Method,), {}))', cwd=tmp_path
    )
    assert "there is a method elr already (of ytilde)" in done.stderr
