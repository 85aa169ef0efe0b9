"""Every example runs with a tiny budget, is short, and draws its picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert f'"--out", default="{path.stem}.png"' in text
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(path), "--tiny", "--out", str(picture)]
    own = {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example says what it found"
    assert picture.read_bytes().startswith(b"\x89PNG")
