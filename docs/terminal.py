"""Record `ytilde demo` and draw it as an animated terminal: `python docs/terminal.py`.

docs/pictures/demo.svg: CSS alone, no script; who wants no motion sees the last picture. What a
machine took is left out; pauses are shortened.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

OUT = Path(__file__).parent / "pictures" / "demo.svg"
PAUSE, LINE, CHAR = 0.35, 21, 8.4
WIDTH, PROMPT = 92, "$ ytilde demo"


def record(folder: str) -> list[tuple[float, str]]:
    """What the demo says, and when: (seconds, text)."""
    words = [sys.executable, "-u", "-m", "ytilde", "demo", "--out", "demo"]
    env = os.environ | {"COLUMNS": str(WIDTH - 4)}
    done = subprocess.Popen(words, stdout=subprocess.PIPE, env=env, cwd=folder)
    began, said = time.perf_counter(), []
    while chunk := os.read(done.stdout.fileno(), 1 << 16):
        said.append((time.perf_counter() - began, chunk.decode()))
    if done.wait():
        raise SystemExit("the demo failed")
    return said


def script(said: list[tuple[float, str]]) -> list[tuple[float, float, str]]:
    """(seconds of the animation at which it appears, column, text), a piece a line or a dot."""
    now, pieces, line = 1.6, [], ""
    for _, text in said:
        now += PAUSE
        text = re.sub(r"(?<=\S) \d+ s\n|^ \d+ s\n", " done\n", text)
        text = re.sub(r"\n[\d.]+ seconds\. ", "\n", text)
        for k, part in enumerate(text.split("\n")):
            if k:
                pieces.append((now, None, "\n"))
                line = ""
                now += 0.05
            if part:
                pieces.append((now, len(line), part))
                line += part
    return pieces


def draw(pieces: list[tuple[float, float, str]]) -> str:
    row, shown = 2, []
    for when, column, text in pieces:
        if text == "\n":
            row += 1
            continue
        bold = re.match(r"(6,000|Look|Now|\d\d\.\d %)", text.strip())
        kind = "n" if re.match(r"\s*\d\d\.\d %", text) else "b" if bold else ""
        shown.append((when, row, column, text.rstrip(), kind))
    height, total = 54 + LINE * max(row for _, row, *_ in shown), max(when for when, *_ in shown)
    style = [".s{animation:.01s both i}", "@keyframes i{from{opacity:0}to{opacity:1}}"]
    body = []
    for when, row, column, text, kind in shown:
        x, y = 18 + CHAR * column, 54 + LINE * (row - 1)
        body.append(f"<text class='s {kind}' style='animation-delay:{when:.2f}s' x='{x:.1f}' "
                    f"y='{y}' xml:space='preserve'>{escape(text)}</text>")  # fmt: skip
    typed = "".join(
        f"<tspan class='s' style='animation-delay:{0.4 + 0.08 * k:.2f}s'>{escape(c)}</tspan>"
        for k, c in enumerate(PROMPT[2:])
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {36 + CHAR * WIDTH:.0f} {height}' "
        f"role='img'><title>A terminal in which ytilde demo runs for {total:.0f} seconds</title>"
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace;"
        "fill:#e4e8f0}.b{font-weight:700}.n{font-weight:700;fill:#8fd3a5}" + "".join(style) +
        "@media(prefers-reduced-motion:reduce){.s{animation:none}}</style>"
        f"<rect width='100%' height='100%' rx='10' fill='#1b2431'/>"
        "<circle cx='22' cy='18' r='6' fill='#e0685f'/>"
        "<circle cx='42' cy='18' r='6' fill='#e5b45a'/>"
        "<circle cx='62' cy='18' r='6' fill='#6fbf73'/>"
        f"<text x='18' y='54' xml:space='preserve'>$ {typed}</text>" + "\n".join(body) + "</svg>\n"
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cast", type=Path, help="a recording as JSON, instead of a new one")
    given = parser.parse_args().cast
    with tempfile.TemporaryDirectory() as folder:
        said = json.loads(given.read_text()) if given else record(folder)
    OUT.write_text(draw(script(said)), encoding="utf-8")
