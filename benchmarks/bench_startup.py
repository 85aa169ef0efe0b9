"""How long the command line takes to answer, against Python's own start and `import torch`.

    PYTHONPATH=src python benchmarks/bench_startup.py [--repeats 5] [--source OTHER/src]

`ytilde --help` as a multiple of `python -c pass`, and `ytilde fit digits --epochs 1` as a multiple
of `python -c "import torch"`: medians of processor time (children included, so that other work on
the machine does not count), taken in turns. --source times another checkout, such as an older
commit's. At commit 69652b3 the help took 1.9 to 3.7 s, 210 to 300 times Python's start, and the fit
3.04 to 3.43 times `import torch` (eight measurements of three to five turns); where it was last
measured beside it (3.43), the fit is at 3.05.
Exits with 1 where a bar is missed: 0.5 s for the help, 3.4 for the fit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HELP_BAR = 0.5
FIT_BAR = 3.4
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "ytilde --help": ["-m", "ytilde", "--help"],
    "ytilde fit --help": ["-m", "ytilde", "fit", "--help"],
    "import torch": ["-c", "import torch"],
    "ytilde fit digits --epochs 1": ["-m", "ytilde", "fit", "digits", "--epochs", "1"],
}


def seconds(words: list[str], source: Path) -> float:
    """Processor time of one process and its children."""
    # bytecode is kept, as that of an installed package is; an empty value means no
    own = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=os.environ | own, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    options = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(options.repeats + 1):
        for name, words in COMMANDS.items():
            used = seconds(words, options.source.resolve())
            if turn:  # the first fills the disk's cache, and leaves the bytecode
                taken[name].append(used)
    median = {name: statistics.median(times) for name, times in taken.items()}
    for name, used in median.items():
        print(f"{used:7.3f} s  {name}")
    answer = median["ytilde --help"] / median["python -c pass"]
    fit = median["ytilde fit digits --epochs 1"] / median["import torch"]
    print(f"ytilde --help: {answer:.1f} times python -c pass (bar: {HELP_BAR} s)")
    print(f"ytilde fit digits --epochs 1: {fit:.2f} times import torch (bar: {FIT_BAR})")
    if median["ytilde --help"] > HELP_BAR or fit > FIT_BAR:
        sys.exit(1)


if __name__ == "__main__":
    main()
