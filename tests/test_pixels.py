"""Audits of pixel labels: planted wrong regions come first, in made scenes and in CamVid."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import ndimage
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import average_precision_score

from test_cli import refused, ytilde
from ytilde import datasets
from ytilde.auditing import audit_pixels
from ytilde.data import BadInput

SIDE, K = 40, 4


def scenes(seed, number=40):
    """Seven patches a picture; in a quarter of the pictures one patch has another's label."""
    rng = np.random.default_rng(seed)
    clean, bad = np.zeros((number, SIDE, SIDE), dtype=np.int64), np.zeros(number, dtype=bool)
    at = np.stack(np.mgrid[:SIDE, :SIDE], -1)
    y = clean.copy()
    for n in range(number):
        centres = rng.uniform(0, SIDE, (7, 2))
        patch = ((at[:, :, None] - centres) ** 2).sum(-1).argmin(-1)
        kinds = rng.integers(0, K, 7)
        clean[n] = y[n] = kinds[patch]
        if n < number // 4:
            chosen = patch == np.bincount(patch.ravel()).argmax()
            y[n][chosen] = (clean[n][chosen][0] + rng.integers(1, K)) % K
            bad[n] = True
    return clean, y, bad


def answers(clean, seed):
    """What a model might say: blurred at edges, wrong in spots."""
    rng = np.random.default_rng(seed)
    logits = np.stack([ndimage.gaussian_filter(np.eye(K)[c] * 8, (1.5, 1.5, 0)) for c in clean])
    logits += 5 * np.stack([
        ndimage.gaussian_filter(rng.normal(size=(*c.shape, K)), (2, 2, 0)) for c in clean
    ])  # fmt: skip
    return torch.from_numpy(logits).softmax(-1).float().numpy()


@pytest.mark.parametrize("seed", range(2))
def test_planted_regions_come_first(seed):
    clean, y, bad = scenes(seed)
    probs = answers(clean, seed)
    y[-1, :5] = -1
    found = audit_pixels(probs, y)
    quality = found.issues.set_index("index").label_quality.sort_index()
    assert average_precision_score(bad, 1 - quality) > 0.98
    wrong = (clean != y) & (y >= 0)
    assert average_precision_score(wrong.ravel(), found.maps.ravel()) > 0.95
    assert set(np.flatnonzero(bad)) == set(found.issues["index"][found.issues.is_label_issue])
    assert (found.maps[y == -1] == 0).all()
    for region in found.regions.head(8).itertuples():
        box = np.s_[region[1], region.top : region.bottom,
                    region.left : region.right]  # fmt: skip
        inside = wrong[box]
        assert inside.sum() > 0.8 * region.pixels
        truth = np.bincount(clean[box][inside]).argmax()
        assert region.predicted_label == str(truth)


def test_probabilities_may_come_picture_by_picture():
    clean, y, _ = scenes(3, number=12)
    probs = answers(clean, 3)
    whole, lazy = audit_pixels(probs, y), audit_pixels(lambda row: probs[row], y)
    pd.testing.assert_frame_equal(whole.regions, lazy.regions)
    assert (whole.maps == lazy.maps).all()


@pytest.mark.parametrize(
    ("probs", "y", "match"),
    [
        (np.ones((2, 4, 4, 3)), np.zeros((2, 4, 5), int), "must be numbers"),
        (np.ones((2, 4, 4, 3)), np.full((2, 4, 4), 3), "between 0 and 2"),
        (np.ones((2, 4, 4, 3)), np.full((2, 4, 4), -1), "Not one pixel"),
        (np.ones((2, 4, 4, 3)), np.zeros((2, 4)), "must be whole numbers"),
        (np.full((2, 4, 4, 3), np.nan), np.zeros((2, 4, 4), int), "no probability"),
    ],
)
def test_bad_input_is_one_sentence(probs, y, match):
    with pytest.raises(BadInput, match=match):
        audit_pixels(probs, y)


def test_the_command_line_audits_masks(tmp_path):
    clean, y, bad = scenes(5, number=24)
    colours = np.array([[220, 40, 40], [40, 200, 60], [50, 60, 220], [230, 220, 40]])
    noise = np.random.default_rng(0).normal(0, 20, (24, SIDE, SIDE, 3))
    x = np.clip(colours[clean] + noise, 0, 255).astype(np.uint8)
    np.savez(tmp_path / "d.npz", x=x.transpose(0, 3, 1, 2), y=y)
    run = tmp_path / "run"
    words = "audit", tmp_path / "d.npz", "--out", run
    small = ["--method", "ce", "--epochs", 16, "--batch-size", 4, "--folds", 2, "--lr", 0.05]
    small += ["--backbone", "unet:width=8,depth=1"]
    refused(*words, *small, "--fix-above", 0.9, match="pixel labels are audited by regions")
    said = ytilde(*words, *small).stdout
    assert "pictures have a suspicious region" in said
    issues, regions = (pd.read_csv(run / name) for name in ("issues.csv", "regions.csv"))
    place = np.argsort(issues["index"].to_numpy())
    assert average_precision_score(bad, -place) > 0.95
    assert len(regions) and (regions.bottom > regions.top).all()
    page = (run / "report.html").read_text()
    assert "doubtful regions in red" in page and "data:image/jpeg" in page
    refused("review", run, match="regions.csv has those of pixels")
    again = ytilde("audit", run, "--folds", 0).stdout
    assert "In-sample" in again


@pytest.mark.data
def test_planted_regions_of_camvid_come_early(data_root):
    """By a weak model: trees on colours around a pixel, right on 3 of 4 pixels."""
    try:
        data = datasets.load("camvid", data_root, "train")
    except BadInput as error:
        pytest.skip(str(error))
    data = replace(data, x=data.x[::6, :, ::2, ::2], y=data.y[::6, ::2, ::2])
    clean, rng = data.y.numpy(), np.random.default_rng(0)
    y, number = clean.copy(), len(clean)
    bad = np.zeros(number, dtype=bool)
    for n in rng.permutation(number)[: number // 4]:
        parts = [
            part == k
            for part, count in (ndimage.label(clean[n] == c) for c in range(11))
            for k in range(1, count + 1)
            if 150 <= (part == k).sum() <= 2500
        ]
        if parts:
            chosen = parts[rng.integers(len(parts))]
            others = [k for k in range(11) if k != clean[n][chosen][0]]
            y[n][chosen], bad[n] = rng.choice(others), True
    seen = np.stack([described(picture) for picture in data.x.permute(0, 2, 3, 1).numpy() / 255])
    probs = np.zeros((*y.shape, 11), dtype=np.float32)
    for fold in range(2):
        held = np.arange(number) % 2 == fold
        inputs, labels = seen[~held].reshape(-1, seen.shape[-1]), y[~held].ravel()
        some = rng.choice(np.flatnonzero(labels >= 0), 8000, replace=False)
        model = ExtraTreesClassifier(20, min_samples_leaf=3, random_state=0)
        model.fit(inputs[some], labels[some])
        said = np.zeros((int(held.sum()) * y[0].size, 11), dtype=np.float32)
        said[:, model.classes_] = model.predict_proba(seen[held].reshape(-1, seen.shape[-1]))
        probs[held] = said.reshape(-1, *y.shape[1:], 11)
    known = clean >= 0
    assert (probs.argmax(-1) == clean)[known].mean() > 0.7
    found = audit_pixels(probs, y, names=data.names)
    wrong = (clean != y) & known
    quality = found.issues.set_index("index").label_quality.sort_index()
    assert average_precision_score(bad, 1 - quality) > 2 * bad.mean()
    naive = 1 - np.take_along_axis(probs, np.maximum(y, 0)[..., None], -1)[..., 0]
    ours = average_precision_score(wrong[known], found.maps[known])
    assert ours > max(0.3, average_precision_score(wrong[known], naive[known]))
    first = [
        wrong[r["index"], r["top"] : r["bottom"], r["left"] : r["right"]].mean() > 0.25
        for r in found.regions.head(8).to_dict("records")
    ]
    assert np.mean(first) >= 0.5


def described(picture):
    """A pixel's colour, and the mean and spread of colours around it, and where it is."""
    parts = [picture]
    for side in (3, 9, 21):
        mean = ndimage.uniform_filter(picture, (side, side, 0))
        square = ndimage.uniform_filter(picture**2, (side, side, 0))
        parts += [mean, np.sqrt(np.maximum(square - mean**2, 0))]
    where = np.stack(np.mgrid[: len(picture), : picture.shape[1]], -1) / len(picture)
    return np.concatenate([*parts, where], -1).astype(np.float32)
