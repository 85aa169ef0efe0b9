"""Which files below a folder are images, and what else lies there."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BadInput, shorten_list

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def is_image(path: object) -> bool:
    return str(path).lower().endswith(SUFFIXES)


@dataclass
class Listing:
    """The images below a folder, sorted, and all that is left out."""

    images: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # images whose name or folder begins with a dot
    other: list[str] = field(default_factory=list)  # files of another kind
    repeated: list[str] = field(default_factory=list)  # links to folders that are read already
    closed: list[str] = field(default_factory=list)  # links to nothing, folders without permission

    def notes(self) -> list[str]:
        """A line on each kind of thing that is left out."""
        endings = Counter(Path(path).suffix.lower() or "no ending" for path in self.other)
        kinds = {
            "files of another kind": [f"{end} {n}" for end, n in sorted(endings.items())],
            "hidden images": self.hidden,
            "links to folders that are read already": self.repeated,
            "what cannot be opened": self.closed,
        }
        counts = (len(self.other), len(self.hidden), len(self.repeated), len(self.closed))
        return [
            f"left out, {what}: {count} ({shorten_list(names, 5)})"
            for (what, names), count in zip(kinds.items(), counts, strict=True)
            if count
        ]


def look_through(folder: Path) -> Listing:
    """Everything below this folder. Links are followed, and no folder is read twice.

    A folder that has several names is read under the one with the fewest links in it, then under
    the shortest path: a link into another class does not take that class's images.
    """
    found = Listing()
    seen: set[tuple[int, int]] = set()
    todo = [(0, 0, str(folder), False)]  # links and folders on the way, path, hidden
    while todo:
        links, depth, here, hidden = heapq.heappop(todo)
        try:
            status = os.stat(here)
            entries = list(os.scandir(here))
        except OSError:
            found.closed.append(here)
            continue
        if (status.st_dev, status.st_ino) in seen:
            found.repeated.append(here)
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            inside = hidden or entry.name.startswith(".")
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError:  # a link to itself
                is_folder = is_file = False
            if is_folder:
                way = (links + entry.is_symlink(), depth + 1, entry.path, inside)
                heapq.heappush(todo, way)
            elif is_image(entry.name) and is_file:
                (found.hidden if inside else found.images).append(entry.path)
            elif not inside:
                (found.other if is_file else found.closed).append(entry.path)
    for paths in (found.images, found.hidden, found.other, found.closed):
        paths.sort()
    return found


def list_images(folder: Path) -> list[str]:
    """Every image below this folder, sorted; hidden files and folders are left out."""
    return look_through(folder).images


def check_names(paths: list[str]) -> None:
    """Refuse names that no report, table or page could show."""
    strange = [path for path in paths if not _is_utf8(path)]
    if strange:
        first = strange[0].encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise BadInput(
            f"The names of {len(strange)} files or folders are not written in UTF-8 (the first is "
            f"{first}); rename them."
        )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
