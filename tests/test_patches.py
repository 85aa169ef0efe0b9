"""Pictures on a CPU: features of patches, the plan that keeps to the time, and what a user sees."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from test_cli import refused, ytilde
from ytilde import BadInput, Classifier, budget
from ytilde.backbones import create_backbone
from ytilde.backbones.patches import CONTRAST, SMOOTH, THRESHOLD
from ytilde.budget import plan_fit
from ytilde.cli.console import Bar
from ytilde.data import Data
from ytilde.encoders.patches import learn_patches
from ytilde.engine import Recipe
from ytilde.fitting import fit_method
from ytilde.method import create

SMALL = "patches:filters=16,pool=2"


def stripes(n: int, side: int = 24, channels: int = 1, seed: int = 0):
    """Pictures of upright, lying and slanting stripes, of any phase and brightness; uint8."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    at = np.arange(side)
    way = np.stack([at[:, None] + 0 * at, at + 0 * at[:, None], at[:, None] + at])[y]
    wave = np.sin(way * 1.3 + rng.uniform(0, 6, (n, 1, 1))) * rng.uniform(20, 50, (n, 1, 1))
    x = 100 + wave + rng.normal(0, 8, way.shape) + rng.uniform(-40, 40, (n, 1, 1))
    return np.repeat(x[:, None], channels, 1).clip(0, 255).astype(np.uint8), y


def data_of(n: int = 60, side: int = 24) -> Data:
    x, y = stripes(n, side)
    return Data(torch.from_numpy(x), torch.from_numpy(y), 3)


# ---- the features --------------------------------------------------------------------------------


def test_features_are_those_of_the_slow_way():
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = create_backbone("patches:filters=6", (3, 32, 32))
    net.learn(x, torch.Generator().manual_seed(1))
    patches = F.unfold((x - net.mean) / net.std, 5).transpose(1, 2)  # [B, places, 75]
    patches = patches - patches.mean(-1, keepdim=True)
    patches = patches / (patches.square().mean(-1, keepdim=True) + CONTRAST).sqrt()
    z = patches @ net.weight.flatten(1).T - net.bias
    both = torch.cat([(z - THRESHOLD).clamp(min=0), (-z - THRESHOLD).clamp(min=0)], -1)
    fields = both.transpose(1, 2).reshape(3, 12, 4, 7, 4, 7).mean((3, 5))
    assert torch.allclose(net(x), fields.sqrt().flatten(1), atol=1e-4)
    assert net(x).std() > 0.05


def test_responses_are_whitened_however_alike_neighbouring_pixels_are():
    """Over patches of the pictures a filter's responses have mean 0 and variance 1, nearly: the
    threshold is in these units. Directions of next to no variance are not blown up."""
    x = torch.rand(40, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    smooth = 0.3 + 0.4 * F.avg_pool2d(x, 3, 1, 1) + torch.linspace(0, 0.5, 32)  # the mean slopes
    net = create_backbone("patches:filters=32", (1, 32, 32))
    net.learn(smooth, torch.Generator().manual_seed(1))
    patches = F.unfold((smooth - net.mean) / net.std, 5).transpose(1, 2).flatten(0, 1)
    patches = patches - patches.mean(-1, keepdim=True)
    patches = patches / (patches.square().mean(-1, keepdim=True) + CONTRAST).sqrt()
    z = patches @ net.weight.flatten(1).T - net.bias
    assert z.mean(0).abs().max() < 0.03
    assert z.var(0).min() > 0.6 and z.var(0).max() < 1
    covariance = (patches - patches.mean(0)).T @ (patches - patches.mean(0)) / len(patches)
    size, axes = torch.linalg.eigh(covariance.double())
    whiten = axes @ torch.diag((size + SMOOTH * size.mean()) ** -0.5) @ axes.T
    inner = net.weight.flatten(1).double() @ torch.linalg.inv(whiten)
    assert inner.norm(dim=1).sub(1).abs().max() < 0.03  # filters are whitened patches of length 1
    white = F.normalize((patches - patches.mean(0)).double() @ whiten, dim=1)
    assert (F.normalize(inner) @ white.T).amax(1).min() > 0.99


def test_what_is_learnt_is_the_pictures_level_and_spread():
    x = 0.2 + 0.1 * torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = create_backbone("patches:filters=6", (3, 32, 32))
    net.learn(x, torch.Generator().manual_seed(1))
    assert float(net.mean) == pytest.approx(float(x.mean()), rel=1e-5)
    assert float(net.std) == pytest.approx(float(x.std()), rel=1e-3)
    net.learn(torch.full_like(x, 0.5), torch.Generator().manual_seed(1))
    assert net(x).isfinite().all()  # pictures of one colour


@pytest.mark.parametrize(("length", "side"), [(24, 32), (48, 32), (33, 32)])
def test_a_ramp_is_scaled_to_a_ramp(length, side):
    """Pixel centres are kept: a picture that rises evenly still does, between the borders."""
    ramp = ((torch.arange(length) + 0.5) / length).expand(1, 1, length, length)
    small = create_backbone("patches", (1, length, length)).scaled(ramp)[0, 0]
    want = (torch.arange(side) + 0.5) / side
    assert (small - want)[:, 2:-2].abs().max() < 0.03 / side  # pixels


@pytest.mark.parametrize("shape", [(20, 24), (50, 33), (16, 64)])
def test_scaling_is_torchs_bilinear_one_with_antialiasing(shape):
    x = torch.rand(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    want = F.interpolate(x, (32, 32), mode="bilinear", antialias=True)
    torch.testing.assert_close(create_backbone("patches", (3, *shape)).scaled(x), want)


def test_features_do_not_follow_brightness_and_contrast():
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    net = create_backbone("patches", (1, 32, 32))
    net.learn(x, torch.Generator().manual_seed(1))
    assert (net(0.3 + 0.5 * x) - net(x)).abs().mean() < 0.02 * net(x).abs().mean()


def test_large_pictures_are_scaled_by_averaging():
    large = F.interpolate(torch.eye(32)[None, None], scale_factor=7)
    net = create_backbone("patches", (1, 224, 224))
    assert net.scaled(torch.full((1, 1, 224, 224), 0.7)).sub(0.7).abs().max() < 1e-5
    small = net.scaled(large)[0, 0]
    assert small.shape == (32, 32) and (small.argmax(1) == torch.arange(32)).all()
    assert small.sum() == pytest.approx(32, rel=0.02)


def test_labels_play_no_part():
    data = data_of()
    other = Data(data.x, (data.y + 1) % 3, 3)
    a, b = learn_patches(SMALL, data), learn_patches(SMALL, other)
    assert all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="pool=5 does not divide"):
        create_backbone("patches:pool=5", (3, 32, 32))
    with pytest.raises(BadInput, match="needs images"):
        Classifier("ce", "patches").fit(np.zeros((9, 4)), np.arange(9) % 3)
    with pytest.raises(BadInput, match="Classifier"):
        fit_method(create("ce"), data_of(), Recipe(), backbone="patches")
    with pytest.raises(BadInput, match="leave out encoder and pretrain"):
        Classifier("ce", "patches", pretrain="simclr:epochs=1").fit(*stripes(9))


# ---- the plan ------------------------------------------------------------------------------------


def slow(monkeypatch, seconds: float, low: float | None = None) -> None:
    """A processor that needs so long for a row, in bfloat16 as long as `low`."""

    def measured(backbone, shape, recipe, dtype=torch.float32):
        took = low if dtype == torch.bfloat16 and low is not None else seconds
        return took * shape[1] * shape[2] / 4096

    monkeypatch.setattr(budget, "seconds_a_row", measured)
    monkeypatch.setattr(budget, "has_bfloat16", lambda: low is not None)


def plan(backbone="auto", n=600, side=64, method="ce", **settings):
    x = torch.zeros(n, 1, side, side, dtype=torch.uint8)
    data = Data(x, torch.arange(n) % 3, 3)
    return plan_fit(data, method, backbone, {"epochs": 10, "device": "cpu", **settings})


def test_a_network_is_trained_where_there_is_time(monkeypatch):
    slow(monkeypatch, 0.009)
    found = plan()
    assert (found.backbone, found.chosen) == ("auto", False)
    assert found.seconds == pytest.approx(54) and found.sentence.startswith("about 54 seconds: ")
    slow(monkeypatch, 0.011)
    found = plan()
    assert (found.backbone, found.chosen) == ("patches", True)
    assert "resnet18:width=16 at 64 x 64 pixels, 10 epochs, would take about 66 s" in found.sentence
    assert plan(epochs=5).backbone == "auto"  # half of them are in time
    assert plan(method="co_teaching", epochs=6).backbone == "patches"  # two networks are not


def test_what_the_user_names_is_trained(monkeypatch):
    slow(monkeypatch, 0.5)
    found = plan("resnet18", side=128)
    assert (found.backbone, found.chosen) == ("resnet18", False)
    assert "about 3 hours: resnet18 at 128 x 128" in found.sentence
    assert "--image-size 64 would take 50 minutes" in found.sentence
    assert "--backbone patches would take" in found.sentence
    for settings in ({"lr": 0.1}, {"augment": "crop2"}, {"optimizer": "sgd"}):
        assert plan(**settings).backbone == "auto", settings


def test_bfloat16_where_that_is_enough(monkeypatch):
    slow(monkeypatch, 0.02, low=0.008)
    found = plan()
    assert (found.backbone, found.precision, found.chosen) == ("auto", "bfloat16", True)
    assert plan(precision="float32").backbone == "patches"
    slow(monkeypatch, 0.02, low=0.012)
    assert plan().backbone == "patches"


def test_nothing_is_planned_for_tables_and_little_data(monkeypatch):
    monkeypatch.setattr(budget, "seconds_a_row", None)  # it is not even measured
    table = Data(torch.zeros(9000, 50), torch.arange(9000) % 3, 3)
    assert plan_fit(table, "ce", "auto", {}) is None
    assert plan(n=30, epochs=2) is None
    assert plan("patches") is None
    assert plan("lenet5", n=30, epochs=2) is None


def test_the_measure_is_a_step_of_the_network():
    recipe = Recipe(batch_size=32)
    small, large = (budget.seconds_a_row("resnet18:width=4", (3, s, s), recipe) for s in (16, 128))
    assert 0 < small < large
    state = torch.random.get_rng_state()
    budget.seconds_a_row("resnet18:width=4", (3, 16, 16), recipe)
    assert torch.equal(state, torch.random.get_rng_state())


# ---- the estimator -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    x, y = stripes(150)
    names = np.array(["up", "down", "slant"])
    given = np.where(np.arange(150) % 10 == 7, (y + 1) % 3, y)
    clf = Classifier("elr", SMALL, epochs=15, random_state=0).fit(x, names[given])
    return clf, x, y, names, given


def test_patches_learn_and_are_kept_in_the_file(fitted, tmp_path):
    clf, _, _, names, _ = fitted
    new, truth = stripes(90, seed=1)
    assert clf.backbone_ == SMALL
    assert (clf.predict(new) == names[truth]).mean() > 0.9
    clf.save(tmp_path / "m.safetensors")
    again = Classifier.load(tmp_path / "m.safetensors")
    assert (again.predict_proba(new) == clf.predict_proba(new)).all()
    assert again.transition_matrix(new).shape == (90, 3, 3)
    with pytest.raises(BadInput, match="shape"):
        again.predict(new[:, :, :20])


def test_the_audit_finds_wrong_labels_and_shows_the_pictures(fitted):
    clf, x, y, names, given = fitted
    found = clf.audit(x, names[given], folds=3)
    flagged = found.issues.is_label_issue.to_numpy(bool)
    wrong = given != y
    assert 2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum()) > 0.8
    assert tuple(found.context.images.shape[1:]) == x.shape[1:]
    assert found.context.features([0, 5]).shape[0] == 2
    fresh = Classifier("elr", SMALL, epochs=15, random_state=0).audit(x, names[given], folds=3)
    assert (fresh.issues.p_wrong == found.issues.p_wrong).all()


def test_the_estimator_chooses_as_the_command_does(monkeypatch):
    slow(monkeypatch, 99.0)
    x, y = stripes(300)
    asked = []
    monkeypatch.setattr(budget, "patches_for", lambda rows: asked.append(rows) or SMALL)
    with pytest.warns(UserWarning, match="would take about"):
        clf = Classifier("ce", epochs=20, random_state=0).fit(x, y)
    assert clf.backbone_ == SMALL and asked == [300]
    clf.audit(x, y, folds=3)
    assert asked == [300]  # a fitted estimator has chosen
    Classifier("ce", epochs=20, random_state=0).audit(x, y, folds=3)
    assert asked == [300, 300]  # once for all folds


def test_onnx_has_the_patches(fitted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason='pip install "ytilde[onnx]"')
    pytest.importorskip("onnxscript", reason='pip install "ytilde[onnx]"')
    from ytilde.export import to_onnx

    clf, x, *_ = fitted
    to_onnx(clf, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    out = session.run(["log_probs"], {"x": x[:7].astype(np.float32) / 255})[0]
    assert np.abs(np.exp(out) - clf.predict_proba(x[:7])).max() < 1e-4
    about = json.loads(session.get_modelmeta().custom_metadata_map["input"])
    assert about["shape"] == [1, 24, 24] and "mean" not in about


# ---- the commands --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    x, y = stripes(60)
    for row, (picture, label) in enumerate(zip(x, y, strict=True)):
        given = "abc"[(label + (row % 9 == 4)) % 3]
        path = tmp_path / "pictures" / given / f"{row:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        side = 40 + row
        Image.fromarray(picture[0]).resize((side, side)).save(path, quality=95)
    return tmp_path


def test_a_folder_of_pictures_in_one_step(folder):
    (folder / "pictures" / "a" / "000.jpg").write_bytes(b"no picture")
    words = ["--backbone", SMALL, "--image-size", "32", "--epochs", "10", "--folds", "3"]
    said = ytilde("audit", "pictures", "--out", "run", *words, cwd=folder)
    assert "unreadable" in said.stdout
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["image_size"] == 32 and config["schema"]["shape"] == [1, 32, 32]
    again = ytilde("audit", "run", "--folds", "3", cwd=folder)
    assert "Nothing was trained again" in again.stdout
    page = (folder / "run" / "report.html").read_text()
    sizes = [
        Image.open(io.BytesIO(base64.b64decode(text))).size
        for text in re.findall(r"data:image/(?:png|jpeg);base64,([A-Za-z0-9+/=]+)", page)
    ]
    assert sizes and max(width for width, _ in sizes) > 32  # the files as they are
    ytilde("predict", "run", "pictures/b", "--out", "p.csv", cwd=folder)
    rows = len(list((folder / "pictures" / "b").iterdir()))
    assert (folder / "p.csv").read_text().count("\n") == 1 + rows


def test_fit_says_what_it_chose_and_goes_on_with_it(folder, monkeypatch, capsys):
    slow(monkeypatch, 99.0)
    monkeypatch.setattr(budget, "patches_for", lambda rows: SMALL)
    words = ["fit", "pictures", "--out", "run", "--method", "ce"]
    said = ytilde(*words, "--epochs", "20", "--test", "pictures", cwd=folder)
    assert f"{SMALL}, features of patches and a linear model, because" in said.stdout
    assert json.loads((folder / "run" / "summary.json").read_text())["backbone"] == SMALL
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["test_accuracy"] > 0.8
    slow(monkeypatch, 0.0)  # another choice would be made now
    ytilde(*words, "--epochs", "20", "--test", "pictures", "--resume", cwd=folder)


def test_image_size_is_for_picture_files(tmp_path):
    (tmp_path / "t.csv").write_text("a,label\n" + "1,x\n2,y\n" * 5)
    x, y = stripes(9)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    for source in ("t.csv", "a.npz"):
        words = ("fit", source, "--image-size", "64")
        refused(*words, cwd=tmp_path, match="--image-size is for picture files")


# ---- progress ------------------------------------------------------------------------------------


def test_the_bar_moves_within_an_epoch(monkeypatch, capsys):
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    seen = []
    fit_method(
        create("ce"), data_of(), Recipe(epochs=2, batch_size=15, val=0.0),
        backbone="mlp:width=4,depth=1", on_step=seen.append,
    )  # fmt: skip
    assert [(r["epoch"], r["share"]) for r in seen[:5]] == [
        (1, 0.25), (1, 0.5), (1, 0.75), (1, 1.0), (2, 0.25),
    ]  # fmt: skip
    with Bar() as bar:
        bar.step(seen[1])
        assert bar.bar.tasks[0].completed == 0.5
    assert "main 1/2  50 % of the epoch" in capsys.readouterr().out
