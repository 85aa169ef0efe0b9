"""What ran: versions, device and commit, for the records of runs and results."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch

from . import __version__

__all__ = ["commit", "versions"]


def versions() -> dict[str, str]:
    """Of ytilde, Python, torch and numpy, and the name of the device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "ytilde": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
    }


@cache
def commit() -> str | None:
    """The commit that runs, with + where files differ from it; None outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True)
    except OSError:
        return None
    name = found.stdout.decode().strip()
    return name + ("+" if changed.stdout.strip() else "") if name else None
