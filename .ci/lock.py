"""Write .ci/requirements.txt: what CI installs, each file by its digest.

    .venv/bin/python .ci/lock.py

pip cannot check digests through `-c constraints.txt`: one digest turns on checking for all that
is installed, and an editable project has none. So this resolves the project under the constraints,
without installing, and lists what pip would fetch for this Python and platform.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "# Written by .ci/lock.py for CPython {}.{} on {}; `make HASHES=1` installs it.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        words += ["-c", "constraints.txt", "setuptools>=77", "-e", ".[dev,parquet]"]
        subprocess.run([sys.executable, "-m", "pip", *words], cwd=ROOT, check=True)
        found = json.loads(report.read_text())["install"]
    lines = []
    for item in found:
        digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest:  # the project itself has none
            name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
            lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    head = HEAD.format(*sys.version_info[:2], sys.platform)
    (ROOT / ".ci" / "requirements.txt").write_text(head + "".join(sorted(lines)))


if __name__ == "__main__":
    main()
