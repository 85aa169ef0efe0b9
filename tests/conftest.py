"""One torch thread (two processes beat two threads on two cores), and the path of the real data."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def data_root() -> Path:
    """The real data sets, or a skip that says how to get them."""
    root = os.environ.get("YTILDE_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("set YTILDE_DATA to a folder with the real data sets (`ytilde data NAME`)")
    return Path(root)
