"""Write .ci/requirements.txt: what CI installs, each file by its digest.

    .venv/bin/python .ci/lock.py

pip cannot check digests through `-c constraints.txt`: one digest turns on checking for all that
is installed, and an editable project has none. So this resolves the project under the constraints,
without installing, and lists the digests of what pip would fetch here and of the other wheels that
the index has of these versions, so that the list serves every supported platform and Python.

torch is left out: which build of a version an index has (for CPUs or for CUDA, with further
packages) differs, and so do the digests.
"""

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import unquote

from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parent.parent
# CPython from 3.11 on, or any Python 3; Linux, macOS, or any platform
SERVED = (
    r"-(cp31[1-9]-cp31[1-9]t?|cp3\d+-abi3|(py2\.)?py3-none)-"
    r"(any|(manylinux|linux)\S*_(x86_64|aarch64)|macosx\S*)\.whl$"
)
HEAD = "# Written by .ci/lock.py; `make HASHES=1` installs it, then torch.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        words += ["-c", "constraints.txt", "setuptools>=77", "-e", ".[dev,docs,parquet]"]
        subprocess.run([sys.executable, "-m", "pip", *words], cwd=ROOT, check=True)
        found = json.loads(report.read_text())["install"]
    lines = []
    for item in found:
        digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
        if digest and name != "torch":  # the project itself has none
            digests = sorted({digest, *published(name, version)})
            lines.append(f"{name}=={version}" + "".join(f" --hash=sha256:{d}" for d in digests))
    (ROOT / ".ci" / "requirements.txt").write_text(HEAD + "\n".join(sorted(lines)) + "\n")


def published(name: str, version: str) -> set[str]:
    """The digests of this version's wheels for the Pythons and platforms that ytilde supports."""
    name = re.sub("[-_.]+", "-", name)
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as answer:
        files = re.findall(r"/([^/#\"]+)#sha256=([0-9a-f]{64})", answer.read().decode())
    begin = re.escape(f"{name}-{version}-").replace(r"\-", "[-_.]", name.count("-"))
    own, served = re.compile(begin + r".*\.whl", re.IGNORECASE), re.compile(SERVED)
    names = [(unquote(file), digest) for file, digest in files]
    return {digest for file, digest in names if own.fullmatch(file) and served.search(file)}


if __name__ == "__main__":
    main()
