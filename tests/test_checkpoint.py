"""Files: whole or not at all, and never believed when they are damaged."""

import random

import pytest
import torch

from ytilde import checkpoint
from ytilde.data import BadInput


@pytest.fixture
def saved(tmp_path):
    tensors = {"a": torch.randn(5, 3), "b": torch.tensor(3), "c": torch.zeros(0, 2)}
    tensors["flags"] = torch.tensor([True, False])
    checkpoint.save(tmp_path / "x.safetensors", tensors, {"count": 1, "text": "ü"})
    return tmp_path / "x.safetensors", tensors


def test_round_trip(saved):
    path, tensors = saved
    loaded, meta = checkpoint.load(path)
    assert meta == {"count": 1, "text": "ü"}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_every_damage_is_noticed(saved, tmp_path):
    path, _ = saved
    content = path.read_bytes()
    rng = random.Random(0)
    for _ in range(1000):
        damaged = bytearray(content)
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            place = rng.randrange(len(damaged))
            damaged[place] ^= 1 << rng.randrange(8)
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(BadInput):
            checkpoint.load(tmp_path / "bad")


def test_the_older_one_serves_when_the_newer_is_damaged(tmp_path):
    for count in (1, 2):
        checkpoint.save(tmp_path / str(count), {"a": torch.tensor(count)}, {"count": count})
    paths, fits = [tmp_path / "1", tmp_path / "2"], lambda tensors, meta: True
    assert checkpoint.newest(paths, fits)[0][1]["count"] == 2
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    found, refused = checkpoint.newest(paths, fits)
    assert found[1]["count"] == 1 and str(paths[1]) in refused[0]
    assert checkpoint.newest([tmp_path / "none"], fits) == (None, [])


def test_a_failed_write_leaves_the_old_file_and_no_other(saved):
    path, _ = saved
    before = path.read_bytes()

    def fails(temporary):
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(BadInput, match="No space left"):
        checkpoint.write_atomic(path, fails)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
