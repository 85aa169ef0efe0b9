"""Does the interval from checked rows hold, whatever the model is, and how wide is it?

    PYTHONPATH=src python benchmarks/checked.py            # runs what is missing
    PYTHONPATH=src python benchmarks/checked.py --report

1,000 simulated audits a case: N rows with an error rate, a model that says p_wrong, n rows drawn
and checked. How often does the 95 % interval of the number of wrong labels hold the truth, and how
wide is it beside those of a simple random sample alone (Wilson's; exact hypergeometric) and of
prediction-powered inference with normal quantiles (Angelopoulos et al., 2023; its second version
tunes lambda)? The models: strong (AUC .99, calibrated), weak (AUC .7), overconfident (AUC .8,
logits times 4), and adversarial ones: reversed (the strong one's 1 - p), constant (.999), blind
(sees half of the errors, and nothing of the others), lulled (errors only where it is surest that
there are none).
"""

import argparse
import json
import time
from bisect import bisect_left
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import expit, logit
from scipy.stats import hypergeom, norm

from common import read_lines
from ytilde.auditing.checked import DRAWN, NONE, Checked, Z, count, groups_by
from ytilde.auditing.sampling import sequence
from ytilde.data import IGNORE
from ytilde.versions import versions

AUDITS = 1000
MODELS = ("strong", "weak", "overconfident", "reversed", "constant", "blind", "lulled")
PLAN = [(m, r, 5_000, 100) for m in MODELS for r in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)]
PLAN += [
    (m, r, rows, n)
    for m in ("strong", "weak", "reversed", "constant") for r in (0.15,)
    for rows, n in ((5_000, 30), (5_000, 300), (1_000, 100), (50_000, 100))
]  # fmt: skip


def population(model: str, rate: float, n: int, random: np.random.Generator):
    """Is each of n labels wrong, and what does the model say?"""
    errors = max(1, round(rate * n))
    wrong = np.zeros(n, bool)
    wrong[random.choice(n, errors, replace=False)] = True

    def says(signal, auc):
        d = np.sqrt(2) * norm.ppf(auc)
        return expit(logit(rate) + d * (d * signal + random.normal(size=n)) - d * d / 2)

    if model == "lulled":
        p = says(random.random(n) < 0.1, 0.99)
        wrong[:] = False
        wrong[random.choice(np.argsort(p)[: 2 * errors], errors, replace=False)] = True
        return wrong, p
    return wrong, {
        "strong": lambda: says(wrong, 0.99),
        "weak": lambda: says(wrong, 0.7),
        "overconfident": lambda: expit(4 * logit(says(wrong, 0.8))),
        "reversed": lambda: 1 - says(wrong, 0.99),
        "constant": lambda: np.full(n, 0.999),
        "blind": lambda: says(wrong & (random.random(n) < 0.5), 0.99),
    }[model]()


def ours(wrong, p, n, seed):
    group = groups_by(p, seed)
    drawn = sequence(group, seed)[:n]
    role, truth = np.full(len(p), NONE, np.int8), np.full(len(p), IGNORE)
    role[drawn], truth[drawn] = DRAWN, wrong[drawn]
    found = count(Checked(truth, role, group, np.full(len(p), n / len(p))), wrong, p)
    return found.low / len(p), found.high / len(p)


def wilson(wrong, n):
    rows, share = len(wrong), wrong[:n].mean()
    n = n * (rows - 1) / (rows - n)
    middle = (share + Z**2 / 2 / n) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(share * (1 - share) / n + Z**2 / 4 / n**2)
    return middle - half, middle + half


@cache
def exact(rows: int, n: int, found: int):
    """Clopper and Pearson's, without replacement."""
    numbers = range(found, rows - (n - found) + 1)
    few = bisect_left(numbers, True, key=lambda k: hypergeom.sf(found - 1, rows, k, n) > 0.025)
    many = bisect_left(numbers, True, key=lambda k: hypergeom.cdf(found, rows, k, n) <= 0.025)
    return numbers[few] / rows, numbers[many - 1] / rows


def powered(wrong, p, n, tuned):
    w, q = wrong[:n].astype(float), p[:n]
    varies = p.var() > 1e-20
    lam = (np.cov(w, q)[0, 1] / p.var() if varies else 0.0) if tuned else 1.0
    value = lam * p.mean() + (w - lam * q).mean()
    half = Z * np.sqrt((w - lam * q).var(ddof=1) / n * (1 - n / len(p)))
    return value - half, value + half


def one(model: str, rate: float, rows: int, n: int) -> dict:
    random = np.random.default_rng([MODELS.index(model), round(1000 * rate), rows, n])
    began = time.perf_counter()
    kinds = ("ours", "wilson", "exact", "ppi", "ppi++")
    found = {kind: [] for kind in kinds}
    for seed in range(AUDITS):
        wrong, p = population(model, rate, rows, random)
        mixed = random.permutation(rows)  # the first n: a simple random sample
        simple, said = wrong[mixed], p[mixed]
        limits = (
            ours(wrong, p, n, seed), wilson(simple, n), exact(rows, n, int(simple[:n].sum())),
            powered(simple, said, n, False), powered(simple, said, n, True),
        )  # fmt: skip
        truth = wrong.mean()
        for kind, (low, high) in zip(kinds, limits, strict=True):
            found[kind].append((truth < low - 1e-9, truth > high + 1e-9, high - low))
    line = {"model": model, "rate": rate, "rows": rows, "checked": n, "audits": AUDITS}
    for kind, values in found.items():
        below, above, width = np.mean(values, axis=0).round(4).tolist()
        line[kind] = {
            "covers": round(1 - below - above, 4), "truth_below": below, "truth_above": above,
            "width": width,
        }  # fmt: skip
    return line | {"seconds": round(time.perf_counter() - began, 1), "versions": versions()}


def report(lines: list[dict]) -> None:
    print(
        "model          rate   rows    n  covers  width  /wilson  /exact  ppi covers  ppi++ covers"
    )
    for line in lines:
        o, wilson, exact = (line[kind] for kind in ("ours", "wilson", "exact"))
        print(
            f"{line['model']:13s} {line['rate']:5.2f} {line['rows']:6d} {line['checked']:4d}"
            f" {100 * o['covers']:6.1f} {o['width']:7.3f} {o['width'] / wilson['width']:7.2f}"
            f" {o['width'] / exact['width']:8.2f} {100 * line['ppi']['covers']:9.1f}"
            f" {100 * line['ppi++']['covers']:12.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/checked.jsonl"))
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    lines = read_lines(args.out)
    done = {(line["model"], line["rate"], line["rows"], line["checked"]) for line in lines}
    for case in PLAN if not args.report else ():
        if case not in done:
            lines.append(one(*case))
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            report(lines[-1:])
    if args.report:
        report(lines)


if __name__ == "__main__":
    main()
