"""Data larger than memory: how fast it is judged and trained on, and in how much memory.

    python benchmarks/out_of_core.py audit 200000 2000000 20000000   # rows x 10 classes
    python benchmarks/out_of_core.py fit 1000000 25000000            # rows x 50 float32 features

Each size is a process of its own; its peak is that of the process and its children, whichever is
larger (ru_maxrss). The files are made first, in $TMPDIR, and removed. `audit` up to 200,000 rows is
compared with the audit in memory, bit by bit. Lines go to results/out_of_core.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parents[1] / "results" / "out_of_core.jsonl"
CLASSES, FEATURES, GROUP = 10, 50, 500_000
EQUAL = 200_000  # rows up to which both audits are made and compared


def probabilities(n: int, seed: int) -> pa.Table:
    """Those of a fair model, with a tenth of the labels drawn anew."""
    rng = np.random.default_rng(seed)
    true = rng.integers(CLASSES, size=n)
    z = rng.standard_normal((n, CLASSES), dtype=np.float32)
    z[np.arange(n), true] += rng.gamma(4, 1.2, size=n)
    p = np.exp(1.3 * (z - z.max(1, keepdims=True)))
    p /= p.sum(1, keepdims=True)
    y = np.where(rng.random(n) < 0.1, rng.integers(CLASSES, size=n), true)
    return pa.table({f"p_{k}": p[:, k] for k in range(CLASSES)} | {"y": y})


def features(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, FEATURES), dtype=np.float32)
    y = x[:, 0] + 0.5 * rng.standard_normal(n) > 0
    return pa.table({f"f{k}": x[:, k] for k in range(FEATURES)} | {"label": y.astype(np.int64)})


def make(what: str, rows: int, path: Path) -> None:
    writer = None
    for first in range(0, rows, GROUP):
        n = min(GROUP, rows - first)
        part = probabilities(n, first) if what == "audit" else features(n, first)
        writer = writer or pq.ParquetWriter(path, part.schema, compression="none")
        writer.write_table(part)
    assert writer is not None
    writer.close()


def audit_one(path: Path) -> dict:
    from ytilde import audit

    out = path.with_name("issues.parquet")
    began = time.perf_counter()
    found = audit(path, "y", out=out)
    seconds = time.perf_counter() - began
    line = {"seconds": round(seconds, 2), **peak()}
    rows = int(found.totals.rows[0])
    line |= {"rows_per_second": round(rows / seconds), "noise_rate": float(found.noise_rate)}
    if rows <= EQUAL:
        table = pq.read_table(path).to_pandas()
        p, names = table[[f"p_{k}" for k in range(CLASSES)]].to_numpy(), list(map(str, range(10)))
        there = audit(p, table.y.to_numpy(), names=names)
        there.to_parquet(path.with_name("memory.parquet"))
        same = out.read_bytes() == path.with_name("memory.parquet").read_bytes()
        line["equal_to_memory"] = same and np.array_equal(found.transition, there.transition)
    return line


def fit_one(path: Path) -> dict:
    from ytilde.cli import main

    words = "--label label --method ce --backbone mlp:width=32,depth=1 --epochs 1 --batch-size 8192"
    began = time.perf_counter()
    sys.argv = ["ytilde", "fit", str(path), *words.split(), "--out", str(path.with_name("run"))]
    with suppress(SystemExit):
        main()
    seconds = time.perf_counter() - began
    epoch = json.loads((path.with_name("run") / "metrics.jsonl").read_text().splitlines()[0])
    return {"seconds": round(seconds, 2), "train_seconds": epoch["train_seconds"],
            "val_accuracy": epoch["val_accuracy"], **peak()}  # fmt: skip


def peak() -> dict:
    """Memory, and processor time: the clock tells little where the machine has other work."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = {"cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}
    who = {"peak_gb": resource.RUSAGE_SELF, "peak_child_gb": resource.RUSAGE_CHILDREN}
    return cpu | {n: round(resource.getrusage(w).ru_maxrss * 1024 / 1e9, 3) for n, w in who.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["audit", "fit"])
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)  # in a process of its own
    args = parser.parse_args()
    if args.path:
        line = (audit_one if args.what == "audit" else fit_one)(args.path)
        args.path.with_name("line.json").write_text(json.dumps(line))
        return
    from ytilde.versions import versions

    for rows in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.parquet"
            make(args.what, rows, path)
            size = path.stat().st_size
            words = [sys.executable, __file__, args.what, str(rows), "--path", str(path)]
            subprocess.run(words, check=True)
            line = json.loads(path.with_name("line.json").read_text())
        about = {"what": args.what, "rows": rows, "file_gb": round(size / 1e9, 3)}
        about |= {"cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1)}
        line = about | line | {"versions": versions()}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line)


if __name__ == "__main__":
    main()
