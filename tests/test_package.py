"""What is published: a small wheel that installs and runs by itself, and metadata that agree."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import ytilde

ROOT = Path(__file__).parents[1]


def run(*words, **options):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    words = ("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out), ".")
    run(sys.executable, "-m", *words, cwd=source)
    return next(out.glob("*.whl"))


def test_wheel_is_small_and_whole(wheel):
    assert wheel.stat().st_size < 6e6
    assert wheel.name.startswith(f"ytilde-{ytilde.__version__}-py3-none-any")
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = (p for p in (ROOT / "src" / "ytilde").rglob("*") if p.is_file())
    ours = {p.relative_to(ROOT / "src").as_posix() for p in files if "__pycache__" not in p.parts}
    assert ours <= inside


def test_wheel_runs_in_an_empty_environment(wheel, tmp_path):
    """It sees the packages that ytilde needs, and no ytilde but its own."""
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env"))
    python = tmp_path / "env" / "bin" / "python"
    purelib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[:-1])
    own = [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]
    (purelib / "needed.pth").write_text("\n".join(dict.fromkeys(own)) + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    at = run(python, "-c", "import ytilde; print(ytilde.__file__)", cwd=tmp_path)
    assert at.startswith(str(purelib))
    command = tmp_path / "env" / "bin" / "ytilde"
    assert ytilde.__version__ in run(command, "--version", cwd=tmp_path)
    said = run(command, "demo", "--epochs", "1", "--out", "demo", cwd=tmp_path)
    assert "report.html" in said and (tmp_path / "demo" / "report.html").exists()


def test_one_version_and_supported_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", citation, re.M)[1] == ytilde.__version__
    told = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    tests = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert told == set(re.findall(r"\"(3\.\d+)\"", tests))
    assert not any("Windows" in c for c in project["classifiers"])
