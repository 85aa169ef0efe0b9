"""CONTRIBUTING's promise: one new file is a whole method."""

import os
import re
import subprocess
import sys
from pathlib import Path

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


def test_a_new_file_is_a_new_method(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.search(r"<!-- test: methods/focal.py -->\n```python\n(.*?)```", text, re.S)[1]
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "focal.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"YTILDE_METHODS": str(tmp_path / "methods"), "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Focal loss" in done.stdout
    assert "--gamma" in done.stdout
    assert "how much the easy examples count less" in done.stdout
    config = next((tmp_path / "runs").glob("*/config.json")).read_text()
    assert '"gamma": 1.5' in config
