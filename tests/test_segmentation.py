"""Pixels end to end: the same heads on maps, any size, mIoU, ignored pixels, uncertainty maps."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ytilde import Classifier, Data, create, metrics
from ytilde.cli import app
from ytilde.datasets import shapes
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import make_spec
from ytilde.heads import Heteroscedastic, Upsampled

SMALL = {"train_samples": 5, "eval_samples": 50}
NETS = ("unet:width=8,depth=2", "deeplab:width=8,features=16")


def pictures(n, seed=0, side=30, boundary=0.0):
    return shapes(n, torch.Generator().manual_seed(seed), side=side, boundary=boundary)


@pytest.mark.parametrize("backbone", NETS)
@pytest.mark.parametrize(
    "method", [create("ce"), create("ln"), create("het_tau", **SMALL)], ids=("ce", "ln", "het")
)
def test_any_size_learns_and_answers_for_every_pixel(method, backbone):
    """30 is no multiple of 4: what a network with stride adds is cut off again."""
    data = pictures(16)
    clf = Classifier(method, backbone, epochs=1, batch_size=8)
    clf.fit(data.x.numpy(), data.y.numpy())
    probs = clf.predict_proba(data.x[:3])
    assert probs.shape == (3, 30, 30, 4)
    assert np.allclose(probs.sum(-1), 1, atol=1e-5)
    assert clf.uncertainty(data.x[:3]).shape == (3, 30, 30)
    assert clf.predict(data.x[:3]).shape == (3, 30, 30)


def test_upsampled_heads_are_cut_not_moved():
    head = Heteroscedastic(5, 3, **SMALL).eval()
    whole, cut = Upsampled(head, 4).eval(), Upsampled(head, 4, (30, 29)).eval()
    h = torch.randn(2, 8, 8, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cut.log_probs(h), whole.log_probs(h)[:, :30, :29])
    assert torch.equal(cut.variance(h), whole.variance(h)[:, :30, :29])
    y = torch.zeros(2, 30, 29, dtype=torch.int64)
    assert cut.nll(h, y).shape == y.shape


def test_scores_of_pixels_against_loops():
    data = pictures(5)
    y = data.y.clone()
    y[:, :4] = -1
    y[y == 3] = 2  # a class that never occurs
    data = Data(data.x, y, 4)
    method, recipe = create("ce"), Recipe(device="cpu")
    method.build(make_spec(data, NETS[0], recipe))
    trainer = Trainer(method, recipe)
    found = trainer.score(data)
    probs = trainer.map(lambda batch: method.predict_proba(batch.x), data)
    predicted = probs.argmax(-1)
    ious, known = [], y >= 0
    for k in range(4):
        both = ((y == k) & (predicted == k)).sum().item()
        either = (((y == k) | (predicted == k)) & known).sum().item()
        ious += [both / either] if either else []
    assert found["miou"] == pytest.approx(sum(ious) / len(ious), abs=1e-12)
    assert found["miou"] == pytest.approx(metrics.miou(predicted, y, 4), abs=1e-12)
    assert found["accuracy"] == pytest.approx((predicted == y)[known].double().mean().item())
    assert found["nll"] == pytest.approx(metrics.nll(probs, y), rel=1e-5)


def test_ignored_pixels_teach_nothing():
    """What is under the label -1 is the same to the loss, whatever the pixel's truth was."""
    data = pictures(8, side=16)
    hidden = torch.rand(data.y.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    fits = []
    for y in (data.y, torch.where(hidden, (data.y + 1) % 4, data.y)):
        given = torch.where(hidden, -1, y).numpy()
        clf = Classifier(create("het", **SMALL), NETS[0], epochs=2, batch_size=4)
        fits.append(clf.fit(data.x.numpy(), given).predict_proba(data.x))
    assert (fits[0] == fits[1]).all()


def test_outlines_are_uncertain():
    """Annotators stray at outlines; the predicted variance is there, not inside or outside."""
    data = pictures(64, side=32, boundary=2.0)
    clf = Classifier(create("het_tau", **SMALL), "unet:width=8,depth=2", epochs=10, lr=0.01)
    clf.fit(data.x.numpy(), data.y.numpy())
    new = pictures(32, seed=1, side=32)
    accuracy = (clf.predict(new.x) == new.clean.numpy()).mean()
    assert accuracy > (new.clean == 0).double().mean()  # more than all background
    maps, edge = clf.uncertainty(new.x), near_outline(new.clean, 2)
    assert maps[edge].mean() > 2 * maps[~edge].mean()


def near_outline(y, reach):
    """Pixels [N, H, W] with another label within `reach` pixels, by max-pooling the labels."""
    side = 2 * reach + 1
    y = y[:, None].float()
    high, low = (torch.nn.functional.max_pool2d(s * y, side, 1, reach) * s for s in (1, -1))
    return (high != low)[:, 0].numpy()


def test_the_command_line_records_miou(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("train", 0), ("test", 1)):
        data = pictures(12, seed, side=16)
        np.savez(f"{name}.npz", x=data.x.numpy(), y=data.y.numpy())
    command = "fit train.npz --test test.npz --task segmentation --method het_tau --out run"
    command += f" --backbone {NETS[1]} --epochs 2 --eval-samples 20 --val 0.2"
    app(command.split(), standalone_mode=False)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["test_miou"] <= 1 and 0 <= line["val_miou"] <= 1 for line in lines)
    assert json.loads(Path("run/summary.json").read_text())["miou"] == lines[-1]["test_miou"]
