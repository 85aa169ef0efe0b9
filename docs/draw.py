"""Draw the pictures of the site into docs/pictures: `python docs/draw.py`. SVG, small, no network.

Diagrams are boxes and arrows; charts are of committed results, or of a training that takes seconds.
"""

from __future__ import annotations

import json
import re
import textwrap
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
INK, ARROW = "#1b2431", "#7a8699"  # of texts in boxes; of arrows, on light and dark pages alike
BLUE, GREEN, RED, AMBER, GREY = "#d7e5fb", "#d5efdf", "#f9dcd9", "#fbeccb", "#e6e9ef"
FONT = "font-family='system-ui, sans-serif'"


def diagram(
    name: str, title: str, boxes: dict[str, tuple], arrows: list[tuple], size: tuple
) -> None:
    """boxes: name -> (x, y, width, height, colour, heading, text); arrows: (from, to, words)."""
    parts = [f"<title>{escape(title)}</title><defs><marker id='a' viewBox='0 0 8 8' refX='7' "
             "refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
             f"<path d='M0 0L8 4L0 8z' fill='{ARROW}'/></marker></defs>"]  # fmt: skip
    for start, end, *words in arrows:
        (x1, y1), (x2, y2) = _border(boxes[start], boxes[end]), _border(boxes[end], boxes[start])
        parts.append(f"<path d='M{x1} {y1}L{x2} {y2}' stroke='{ARROW}' stroke-width='2' "
                     "fill='none' marker-end='url(#a)'/>")  # fmt: skip
        if words:
            parts.append(_text((x1 + x2) / 2, (y1 + y2) / 2 - 6, words[0], colour=ARROW))
    for x, y, w, h, colour, heading, text in boxes.values():
        parts.append(f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='8' fill='{colour}' "
                     f"stroke='{ARROW}'/>")  # fmt: skip
        lines = textwrap.wrap(text, max(8, int(w / 6.1))) if text else []
        top = y + h / 2 - 7.5 * len(lines) + (5 if not lines else 1)
        parts.append(_text(x + w / 2, top, heading, 14, 600))
        parts += [_text(x + w / 2, top + 17 + 15 * k, line) for k, line in enumerate(lines)]
    width, height = size
    text = (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' "
            f"width='{width}'>" + "".join(parts) + "</svg>\n")  # fmt: skip
    (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")


def _text(x: float, y: float, words: str, size=12, weight=400, colour=INK) -> str:
    return (f"<text x='{x}' y='{y}' fill='{colour}' {FONT} font-size='{size}' "
            f"font-weight='{weight}' text-anchor='middle'>{escape(words)}</text>")  # fmt: skip


def _border(box: tuple, other: tuple) -> tuple[float, float]:
    """Where the line from the middle of a box to another's leaves it."""
    (x, y, w, h), (a, b, c, d) = box[:4], other[:4]
    dx, dy = a + c / 2 - x - w / 2, b + d / 2 - y - h / 2
    scale = min(w / 2 / abs(dx) if dx else 9e9, h / 2 / abs(dy) if dy else 9e9)
    return round(x + w / 2 + dx * scale, 1), round(y + h / 2 + dy * scale, 1)


def data_flow() -> None:
    boxes = {
        "data": (10, 95, 130, 70, GREY, "Your data", "csv, parquet, npz, folder, DataFrame"),
        "read": (176, 95, 122, 70, BLUE, "Data", "x, y, names, votes"),
        "method": (330, 20, 150, 62, BLUE, "Method", "loss, head, T: one file each"),
        "train": (330, 100, 150, 62, BLUE, "Trainer", "one loop; noisy validation"),
        "clean": (330, 186, 150, 50, RED, "Clean labels", "never reach training"),
        "fitted": (520, 95, 130, 70, GREEN, "Fitted method", "clean posterior, T(x)"),
        "audit": (690, 20, 140, 62, GREEN, "Audit", "p_wrong, counts, suggestions"),
        "predict": (690, 100, 140, 62, GREEN, "Predictions", "csv, Python, ONNX"),
        "measure": (690, 180, 140, 62, AMBER, "Evaluation", "results, tables, tests"),
        "review": (870, 20, 120, 62, AMBER, "Review", "a person decides"),
        "fixed": (870, 100, 120, 62, GREY, "Your data", "with better labels"),
    }
    arrows = [("data", "read"), ("read", "train"), ("method", "train"), ("train", "fitted"),
              ("fitted", "audit"), ("fitted", "predict"), ("fitted", "measure"),
              ("clean", "measure"), ("audit", "review"), ("review", "fixed")]  # fmt: skip
    diagram("data_flow", "How data flows through ytilde", boxes, arrows, (1000, 256))


def families() -> None:
    from pages import families as found

    colours = (GREY, BLUE, BLUE, GREEN, AMBER, RED, RED, GREEN, AMBER, GREY)
    boxes, width, height = {}, 322, 92
    for k, (family, names) in enumerate(found().items()):
        place = (10 + k % 3 * (width + 10), 10 + k // 3 * (height + 10), width, height)
        short = family.replace("Losses that bound what a wrong label can do", "Bounded losses")
        boxes[family] = (*place, colours[k], short, ", ".join(names))
    rows = -(-len(boxes) // 3)
    diagram("families", "The families of methods", boxes, [], (1006, 10 + rows * (height + 10)))


def howto() -> None:
    boxes = {
        "run": (10, 40, 150, 60, GREEN, "ytilde audit", "suspects, suggestions"),
        "tool": (330, 40, 170, 60, AMBER, "Label Studio, Argilla", "your team decides"),
        "fixed": (670, 40, 150, 60, GREY, "ytilde relabel", "your table, corrected"),
    }
    arrows = [("run", "tool", "tasks.json, tasks.xml"), ("tool", "fixed", "labels.csv")]
    diagram("label_studio", "Suspects go out, labels come back", boxes, arrows, (830, 140))
    boxes = {
        "batch": (10, 80, 140, 60, GREY, "Batch", "the same everywhere"),
        "one": (220, 15, 170, 56, BLUE, "Process 0", "network: its half"),
        "two": (220, 150, 170, 56, BLUE, "Process 1", "network: its half"),
        "all": (470, 80, 160, 60, AMBER, "All features", "gathered"),
        "loss": (710, 80, 170, 60, GREEN, "Loss of the batch", "same in each process"),
    }
    arrows = [("batch", "one"), ("batch", "two"), ("one", "all"), ("two", "all"), ("all", "loss")]
    diagram("many_gpus", "Every process computes a share", boxes, arrows, (890, 220))
    boxes = {
        "table": (10, 80, 150, 60, GREY, "A table", "rows, columns, seeds"),
        "jobs": (230, 80, 150, 60, BLUE, "Jobs", "runs without a result yet"),
        "here": (460, 15, 170, 56, BLUE, "Processes here", "--workers 2"),
        "ray": (460, 150, 170, 56, BLUE, "Ray cluster", "--ray"),
        "lines": (710, 80, 170, 60, GREEN, "results/*.jsonl", "one line per run"),
    }
    arrows = [("table", "jobs"), ("jobs", "here"), ("jobs", "ray"), ("here", "lines"),
              ("ray", "lines")]  # fmt: skip
    diagram("ray", "Runs are jobs", boxes, arrows, (890, 220))
    boxes = {
        "run": (10, 40, 150, 60, GREEN, "A run", "model.safetensors"),
        "file": (290, 40, 190, 60, BLUE, "model.onnx", "network, classes, columns"),
        "use": (610, 40, 210, 60, GREY, "Your program", "C++, Java, C#, JavaScript"),
    }
    shown = {"only": (40, 80, 320, 120, GREY, "Shown, not run", "needs data or minutes")}
    diagram("not_run", "Shown, not run", shown, [], (400, 280))
    arrows = [("run", "file", "ytilde export"), ("file", "use", "onnxruntime")]
    diagram("onnx", "From a run to a program without Python", boxes, arrows, (830, 140))


# ---- charts --------------------------------------------------------------------------------------


def plots():
    """matplotlib, with texts as texts and the same bytes each time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ytilde", "font.size": 11,
                         "font.family": "sans-serif", "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    return plt


DARK = (
    "<style>@media(prefers-color-scheme:dark){svg{filter:invert(.89) hue-rotate(180deg)}}</style>"
)


def save(figure, name: str) -> None:
    """White, or dark where the reader's system is: the hues stay, the brightness is turned over."""
    path = PICTURES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    text = re.sub(r"(<svg [^>]+>)", rf"\1{DARK}", path.read_text(encoding="utf-8"), count=1)
    path.write_text(text, encoding="utf-8")


def identifiable() -> None:
    import numpy as np

    plt = plots()
    x = np.linspace(-3, 3, 121)
    clear = 1 / (1 + np.exp(-4 * x))  # P(class 1 | x) where classes are clear
    flip = 0.3 * np.exp(-(x**2) / 2)  # and labels go wrong near the border
    noisy = clear * (1 - flip) + (1 - clear) * flip
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for ax, p, wrong, title in (
        (axes[0], clear, flip, "clear classes, wrong labels"),
        (axes[1], noisy, 0 * x, "overlapping classes, right labels"),
    ):
        ax.plot(x, noisy, color="black", linewidth=4, alpha=0.25, label="observed: P(given 1 | x)")
        ax.plot(x, p, color="tab:blue", label="P(true 1 | x)")
        ax.plot(x, wrong, color="tab:red", linestyle="--", label="P(label wrong | x)")
        ax.set(title=title, xlabel="x")
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, "identifiable")
    plt.close(figure)


def trust() -> None:
    plt = plots()
    lines = [json.loads(text) for text in (HERE.parent / "results" / "audit_sets.jsonl").open()]
    sets = [line for line in lines if line["half"] != "chosen on"]
    ways = {
        "panel": ("with the inputs", "tab:blue"),
        "alone": ("probabilities alone", "tab:orange"),
    }
    sets.sort(key=lambda line: line["panel"]["ece"])
    figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
    for key, (words, colour) in ways.items():
        found = [line[key]["ece"] for line in sets]
        mean = sum(found) / len(found)
        ax.plot(
            range(1, len(found) + 1), found, "o", color=colour, label=f"{words}: mean {mean:.3f}"
        )
    ax.set(
        ylim=(0, None), xlabel="data sets, ordered by the blue points", ylabel="calibration error"
    )
    ax.axhline(0.1, color="grey", linewidth=1, linestyle=":")
    ax.legend(frameon=False)
    save(figure, "trust")
    plt.close(figure)


def curves() -> list[dict]:
    """Cross-entropy on digits with instance noise: accuracy after each epoch."""
    import torch

    from ytilde import Classifier, datasets, noise

    train, test = datasets.load("digits", split="train"), datasets.load("digits", split="test")
    generator = torch.Generator().manual_seed(0)
    y = noise.instance(train.x, train.y, 10, rate=0.4, generator=generator).y
    clf = Classifier("ce", epochs=60, val=0.2, keep="last", random_state=0)
    data = type(train)(train.x, y, 10)
    clf.fit_data(data, monitor=lambda trainer: {"test": trainer.score(test)["accuracy"]})
    return clf.history_


def training() -> None:
    plt = plots()
    history = curves()
    epochs = [record["epoch"] for record in history]
    clean = [100 * record["test"] for record in history]
    noisy = [100 * record["val_accuracy"] for record in history]
    chosen = max(range(len(noisy)), key=noisy.__getitem__)
    figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
    ax.plot(epochs, clean, color="tab:blue", label="clean test labels (unknown in practice)")
    ax.plot(epochs, noisy, color="tab:orange", label="held-out noisy labels")
    ax.axvline(epochs[chosen], color="grey", linestyle=":", label="epoch chosen by noisy labels")
    ax.set(xlabel="epoch", ylabel="accuracy, %", ylim=(0, 100))
    ax.legend(frameon=False, loc="lower right")
    save(figure, "noisy_validation")
    plt.close(figure)
    figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
    ax.plot(epochs, clean, color="tab:blue")
    ten = sum(clean[-10:]) / 10
    best = max(range(len(clean)), key=clean.__getitem__)
    ax.plot(epochs[-1], clean[-1], "s", color="tab:red", label=f"last epoch: {clean[-1]:.1f}")
    ax.plot(epochs[-10:], [ten] * 10, color="tab:green", linewidth=4,
            label=f"mean of the last ten: {ten:.1f}")  # fmt: skip
    ax.plot(epochs[chosen], clean[chosen], "o", color="tab:orange", markersize=9,
            label=f"chosen by noisy validation: {clean[chosen]:.1f}")  # fmt: skip
    ax.plot(epochs[best], clean[best], "x", color="grey", markersize=9,
            label=f"best test epoch, not reported: {clean[best]:.1f}")  # fmt: skip
    ax.set(xlabel="epoch", ylabel="test accuracy, %", ylim=(30, 100))
    ax.legend(frameon=False, loc="upper right")
    save(figure, "protocols")
    plt.close(figure)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for draw in (data_flow, families, howto, identifiable, trust, training):
        draw()
