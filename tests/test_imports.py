"""Every module can be the first that is imported: no circle of imports depends on who begins."""

import subprocess
import sys
from pathlib import Path

import pytest

import ytilde
from ytilde import engine

ROOT = Path(ytilde.__file__).parent
ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    for known in [m for m in sys.modules if m.partition(".")[0] == "ytilde"]:
        del sys.modules[known]
    importlib.import_module(name)
"""


def test_every_module_imports_on_its_own():
    """One process for all, in which none of ytilde is loaded before each; torch takes seconds."""
    files = [path for path in ROOT.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    names = [".".join(("ytilde", *p.relative_to(ROOT).with_suffix("").parts)) for p in files]
    names = [name for name in names if ".methods." not in name]  # found through the registry
    done = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names_of_the_engine_are_there():
    for name in engine.__all__:
        assert getattr(engine, name) is not None
    with pytest.raises(ImportError, match="trainer"):
        from ytilde.engine import trainer  # noqa: F401
