"""SimCLR, encoders, neighbours and clusters, against slow versions in float64."""

import math
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ytilde import Classifier
from ytilde.backbones import create_backbone
from ytilde.contrastive import (
    Features,
    Settings,
    SimCLR,
    assign,
    default_views,
    kmeans,
    neighbours,
    nt_xent,
    probe,
)
from ytilde.data import BadInput, Data
from ytilde.encoder import Encoder
from ytilde.encoders import clusters
from ytilde.encoders.features import Components
from ytilde.engine import Recipe, Trainer
from ytilde.fitting import fit_method, load_or_pretrain, make_spec
from ytilde.method import create
from ytilde.testing import BACKBONE, RECIPE, blobs

QUICK = "simclr:epochs=3,batch_size=64,lr=0.05"


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- the loss -----------------------------------------------------------------------------------


def slow_nt_xent(a, b, temperature):
    """Eq. 1 with loops: -log exp(s_ij / t) / sum_{k != i} exp(s_ik / t)."""
    z = [v / v.norm() for v in [*a.double(), *b.double()]]
    n, losses = len(a), []
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        others = [math.exp(float(z[i] @ z[k]) / temperature) for k in range(2 * n) if k != i]
        losses.append(-math.log(math.exp(float(z[i] @ z[partner]) / temperature) / sum(others)))
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_nt_xent(temperature):
    a, b = torch.randn(2, 5, 3, generator=gen(), dtype=torch.float64)
    found = nt_xent(a, b, temperature)
    assert found.shape == (10,) and found.dtype == torch.float64
    torch.testing.assert_close(found, slow_nt_xent(a, b, temperature))


def test_nt_xent_limits():
    apart = torch.eye(4, dtype=torch.float64)
    assert nt_xent(apart, apart, 0.01).max() < 1e-9  # partners equal, all others orthogonal
    same = torch.ones(4, 3, dtype=torch.float64)
    torch.testing.assert_close(nt_xent(same, same), torch.full((8,), math.log(7.0)).double())
    low = nt_xent(apart.bfloat16(), apart.bfloat16())
    assert low.dtype == torch.float32 and low.isfinite().all()


def test_nt_xent_gradient():
    a, b = torch.randn(2, 3, 4, generator=gen(), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b), (a, b))


# ---- neighbours, clusters -----------------------------------------------------------------------


def test_neighbours():
    h = torch.randn(30, 4, generator=gen())
    found = neighbours(h, h, 3, same=True)
    for i, row in enumerate(found.tolist()):
        order = sorted(range(30), key=lambda j: -float(h[i] @ h[j]))
        assert row == [j for j in order if j != i][:3]
    assert (neighbours(h[:5], h, 1)[:, 0] == (h[:5] @ h.T).argmax(-1)).all()


def test_no_row_is_its_own_neighbour_however_many_there_are():
    """They are compared in parts of some thousands."""
    h = torch.nn.functional.normalize(torch.randn(4200, 3, generator=gen()), dim=1)
    found = neighbours(h, h, 2, same=True)
    assert not (found == torch.arange(4200)[:, None]).any()
    for i in (0, 4095, 4096, 4199):
        scores = h @ h[i]
        scores[i] = -1
        assert found[i].tolist() == scores.topk(2).indices.tolist()


def test_kmeans_finds_separate_groups():
    truth = torch.arange(300) % 6
    x = 20 * torch.eye(6)[truth] + torch.randn(300, 6, generator=gen())
    centres = kmeans(x, 6, gen())
    group = assign(x, centres)
    assert len({(int(a), int(b)) for a, b in zip(truth, group, strict=True)}) == 6
    means = torch.stack([x[group == g].mean(0) for g in range(6)])
    torch.testing.assert_close(centres, means)  # a fixed point of Lloyd's steps
    assert torch.equal(centres, kmeans(x, 6, gen()))


def test_each_empty_cluster_takes_another_of_the_farthest_rows(monkeypatch):
    x = torch.tensor([[0.0], [1.0], [10.0], [100.0]])
    monkeypatch.setattr(clusters, "_spread_out", lambda x, number, generator: x[[0] * number])
    assert kmeans(x, 3, gen(), steps=1).flatten().tolist() == [27.75, 100.0, 0.0]


def test_any_row_may_be_the_first_centre():
    x = torch.arange(10.0)[:, None]
    first = [int(kmeans(x, 1, gen(seed), steps=0)) for seed in range(200)]
    assert set(first) == set(range(10)) and max(map(first.count, set(first))) < 50


def test_assignment_does_not_depend_on_autocast():
    x = torch.randn(3000, 128, generator=gen())
    x = torch.nn.functional.normalize(x + 2, dim=-1)  # close together, as an encoder's features
    centres = x[:100]
    with torch.autocast("cpu", torch.bfloat16):
        found = assign(x, centres)
    assert torch.equal(found, assign(x, centres))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_assignment_is_the_nearest_centre(seed, clusters):
    x = torch.randn(40, 3, generator=gen(seed), dtype=torch.float64)
    centres = kmeans(x, clusters, gen(seed))
    slow = [min(range(clusters), key=lambda g: float((row - centres[g]).norm())) for row in x]
    assert assign(x, centres).tolist() == slow
    assert len(set(slow)) == clusters  # none is left empty


def test_kmeans_with_fewer_different_rows_than_clusters():
    x = torch.tensor([[0.0], [0.0], [0.0], [9.0], [9.0]])
    centres = kmeans(x, 4, gen())
    assert centres.isfinite().all()
    torch.testing.assert_close(centres[assign(x, centres)], x)
    with pytest.raises(BadInput, match="5 rows cannot be put into 6 clusters"):
        kmeans(x, 6, gen())


def test_probe():
    data = blobs(n=200)
    found = probe(data.x, data.y, 3)
    assert found["knn_accuracy"] > 0.95 and found["linear_accuracy"] > 0.9
    noise = probe(torch.randn(200, 6, generator=gen()), data.y, 3)
    assert noise["knn_accuracy"] < 0.6 and noise["linear_accuracy"] < 0.6
    y = (torch.arange(200) % 10 < 3).long()  # far from zero, and a rare class
    far = 100 + y[:, None] + 0.1 * torch.randn(200, 1, generator=gen())
    assert probe(far, y, 2)["linear_accuracy"] == 1.0


# ---- pre-training -------------------------------------------------------------------------------


def pictures(n=120):
    """Two kinds of 16x16 colour images."""
    y = torch.arange(n) % 2
    x = 0.3 * torch.rand(n, 3, 16, 16, generator=gen())
    x[y == 1, :, 4:12, 4:12] += 0.6
    return Data((255 * x).to(torch.uint8), y, 2)


def test_it_learns_is_probed_and_sees_no_label():
    data, records = blobs(n=400, rate=0.2), []
    text = "simclr:epochs=30,batch_size=128,lr=0.05,probe=3"
    made = load_or_pretrain(data, BACKBONE, RECIPE, text, on_record=records.append)
    seen = [r for r in records if "knn_accuracy" in r]
    assert [r["epoch"] for r in seen] == [10, 20, 30] and len(records) == 30
    assert records[-1]["loss"] < records[0]["loss"] - 0.1
    assert seen[-1]["knn_accuracy"] > 0.7  # of labels a fifth of which are wrong
    assert made.about["knn_accuracy"] == seen[-1]["knn_accuracy"]
    other = load_or_pretrain(replace(data, y=data.y.flip(0)), BACKBONE, RECIPE, text)
    assert all(torch.equal(made.weights[k], other.weights[k]) for k in made.weights)


def test_images_and_data_without_labels():
    data = pictures()
    unknown = replace(data, y=torch.full_like(data.y, -1))
    records = []
    made = load_or_pretrain(unknown, "resnet18:width=8", RECIPE, QUICK, on_record=records.append)
    assert made.shape == (3, 16, 16) and made.mean.shape == (3, 1, 1)
    assert all("knn_accuracy" not in record for record in records)


class Stop(Exception):
    pass


def test_a_stopped_stage_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    data = blobs()
    whole = load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    monkeypatch.setattr("ytilde.encoders.simclr.CHECKPOINT_EVERY", 0.0)

    def stop(record):
        if record["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        load_or_pretrain(data, BACKBONE, RECIPE, QUICK, tmp_path, stop)
    records = []
    again = load_or_pretrain(data, BACKBONE, RECIPE, QUICK, tmp_path, records.append)
    assert [record["epoch"] for record in records] == [2, 3]  # the second was not whole
    assert all(torch.equal(whole.weights[k], again.weights[k]) for k in whole.weights)
    load_or_pretrain(data, BACKBONE, RECIPE, QUICK, tmp_path, records.append)
    assert len(records) == 2  # done: nothing is trained again


def test_a_read_only_cache_serves(tmp_path, monkeypatch):
    monkeypatch.setenv("YTILDE_CACHE", str(tmp_path))
    data = blobs(rate=0.2)
    whole = load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    (kept,) = tmp_path.iterdir()
    (kept / "lock").unlink()
    (kept / "lock").mkdir()  # what cannot be opened to write, for root too
    again = load_or_pretrain(data, BACKBONE, RECIPE, QUICK, on_record=pytest.fail)
    assert all(torch.equal(whole.weights[k], again.weights[k]) for k in whole.weights)
    monkeypatch.setenv("YTILDE_CACHE", "/proc/cache")
    with pytest.raises(BadInput, match=r"cannot write /proc/.*/lock"):
        load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("YTILDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="cannot write"):
        load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_encoder_in_the_cache_is_made_again(harm, tmp_path, monkeypatch):
    monkeypatch.setenv("YTILDE_CACHE", str(tmp_path))
    data = blobs(rate=0.2)
    whole = load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    (path,) = tmp_path.glob("*/encoder.safetensors")
    content = path.read_bytes()
    flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    path.write_bytes({"cut": content[:-9], "flip": flipped, "empty": b"", "foreign": b"text"}[harm])
    again = load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    assert all(torch.equal(whole.weights[k], again.weights[k]) for k in whole.weights)
    assert path.read_bytes() == content


def test_a_link_in_the_cache_is_not_written_through(tmp_path, monkeypatch):
    monkeypatch.setenv("YTILDE_CACHE", str(tmp_path / "cache"))
    data = blobs(rate=0.2)
    load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    (path,) = tmp_path.glob("cache/*/encoder.safetensors")
    path.unlink()
    (tmp_path / "mine").write_text("mine")
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(BadInput, match="not a ytilde file"):
        load_or_pretrain(data, BACKBONE, RECIPE, QUICK)
    assert (tmp_path / "mine").read_text() == "mine"


def test_runs_share_an_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("YTILDE_CACHE", str(tmp_path))
    trained = []
    train = Trainer.train

    def count(self, stage, *args, **options):
        trained.append(stage)
        return train(self, stage, *args, **options)

    monkeypatch.setattr(Trainer, "train", count)
    data, starts = blobs(rate=0.2), []
    for seed in (0, 1):
        method = create("ce")
        fit_method(
            method,
            data,
            replace(RECIPE, seed=seed, epochs=1, lr=0.0),
            backbone=BACKBONE,
            pretrain=QUICK,
        )
        starts.append(method.net.backbone.state_dict())
    assert trained == ["simclr", "main", "main"] and len(list(tmp_path.iterdir())) == 1
    assert all(torch.equal(starts[0][k], starts[1][k]) for k in starts[0])
    fit_method(create("ce"), data, RECIPE, backbone=BACKBONE, pretrain=QUICK + ",seed=1")
    assert len(list(tmp_path.iterdir())) == 2


def _make(folder, queue):
    records = []
    load_or_pretrain(blobs(rate=0.2), BACKBONE, RECIPE, QUICK, folder, records.append)
    queue.put(len(records))


def test_of_processes_at_the_same_time_one_makes_the_encoder(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    both = [context.Process(target=_make, args=(tmp_path, queue)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
    assert sorted(queue.get() for _ in both) == [0, 3]


# ---- encoders -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder") / "encoder.safetensors"
    load_or_pretrain(blobs(), BACKBONE, RECIPE, QUICK).save(path)
    return path


def test_an_encoder_survives_its_file(encoder):
    first, again = load_or_pretrain(blobs(), BACKBONE, RECIPE, QUICK), Encoder.load(encoder)
    assert again.backbone == BACKBONE and again.shape == (6,)
    assert torch.equal(first.mean, again.mean) and torch.equal(first.std, again.std)
    assert all(torch.equal(first.weights[k], again.weights[k]) for k in first.weights)


@pytest.mark.parametrize("name", ["ce", "co_teaching", "volminnet"])
def test_every_network_starts_from_it(name, encoder):
    data, found = blobs(), Encoder.load(encoder)
    method = create(name)
    method.build(make_spec(data, "auto", RECIPE, found))
    nets = [module for module in method.modules() if hasattr(module, "backbone")]
    nets = [net for net in nets if hasattr(net, "head")]
    assert nets
    for net in nets:
        assert torch.equal(net.mean, found.mean) and torch.equal(net.std, found.std)
        for key, value in net.backbone.state_dict().items():
            assert torch.equal(value, found.weights[key])


def test_pretrained_weights_learn_at_their_own_rate(encoder, tmp_path):
    """One step of plain SGD is linear in the rate: the encoder's part of it, and no other."""
    data, file = blobs(), tmp_path / "weights.safetensors"
    found = Encoder.load(encoder)
    save_file(found.weights, file)
    plain = replace(RECIPE, epochs=1, batch_size=len(data), momentum=0.0, weight_decay=0.0)
    plain = replace(plain, optimizer="sgd", lr=0.1, schedule="constant", val=0.0)
    own = create_backbone(BACKBONE, data.shape, weights=file)
    starts = [{"encoder": found}, {"backbone": f"{BACKBONE},weights={file}"}, {"backbone": own}]

    def moved(share, start):
        method = create("ce")
        fit_method(method, data, replace(plain, pretrained_lr=share), **start)
        weights, head = found.weights, next(method.net.head.parameters())
        parts = [p - weights[k] for k, p in method.net.backbone.named_parameters()]
        return torch.cat([part.detach().flatten() for part in parts]), head.detach()

    for start in starts:
        (whole, head), (tenth, same), (none, _) = (moved(k, start) for k in (1.0, 0.1, 0.0))
        assert whole.abs().max() > 1e-3 and torch.equal(head, same)
        torch.testing.assert_close(tenth, 0.1 * whole, atol=1e-6, rtol=1e-3)
        assert not none.any()


def test_at_rate_0_nothing_of_an_encoder_moves():
    """The running statistics of its normalising layers neither."""
    data = Data(torch.rand(40, 3, 8, 8, generator=gen()), torch.arange(40) % 2, 2)
    plain = replace(RECIPE, epochs=1, val=0.0)
    found = load_or_pretrain(data, "resnet18:width=4", plain, "simclr:epochs=1,batch_size=20")
    for share in (0.0, 0.1):
        method = create("ce")
        fit_method(method, data, replace(plain, pretrained_lr=share), encoder=found)
        now = method.net.backbone.state_dict()
        assert all(torch.equal(now[k], found.weights[k]) for k in now) == (share == 0)
    with pytest.raises(BadInput, match="none are; start from an encoder"):
        fit_method(create("ce"), data, replace(plain, pretrained_lr=0.1), backbone=BACKBONE)


@pytest.mark.parametrize("option", ["batch_size=1", "width=0", "temperature=0", "epochs=0"])
def test_settings_that_cannot_learn_are_refused(option):
    with pytest.raises(BadInput, match=f"{option.partition('=')[0]} of simclr is"):
        Settings.parse(f"simclr:{option}")


def test_a_refused_pretraining_leaves_nothing(tmp_path):
    with pytest.raises(BadInput, match="nonsense"):
        load_or_pretrain(blobs(), BACKBONE, RECIPE, "simclr:augment=nonsense", tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("name", "field"),
    [("dtm", {"denoiser": "zork"}), ("dtm", {"without": "zork"}), ("dtm", {"predict": "zork"}),
     ("lra", {"init": "zork"}), ("lra", {"k": 400}), ("lra", {"sample_steps": 5000})],
)  # fmt: skip
def test_a_wrong_field_is_refused_before_pretraining(name, field, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ytilde.fitting.load_or_pretrain", lambda *_: pytest.fail("pre-training began")
    )
    with pytest.raises(BadInput):
        fit_method(create(name, **field), pictures(), RECIPE, backbone="lenet5", folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_rate_for_weights_that_are_not_trained_is_refused(encoder):
    """DTM's features are the encoder's, and stay; its classifier starts from scratch here."""
    own = {"backbone": BACKBONE, "encoder": encoder}
    method = create("dtm", features="encoder", init="scratch")
    with pytest.raises(BadInput, match="pretrained_lr"):
        fit_method(method, blobs(), replace(RECIPE, pretrained_lr=0.5), **own)


@pytest.mark.parametrize("name", ["dtm", "lra", "ce"])
def test_pixels_are_not_pretrained_on(name, tmp_path):
    data = pictures(6)
    data = replace(data, y=(data.x[:, 0] > 127).long(), num_classes=2)
    wanted = "simclr:epochs=1" if name == "ce" else None
    with pytest.raises(BadInput, match="labels of pixels"):
        fit_method(create(name), data, RECIPE, backbone="unet:width=4,depth=1", pretrain=wanted)


def test_the_build_before_pretraining_changes_no_result(tmp_path, monkeypatch):
    recipe = replace(RECIPE, epochs=1)
    found = []
    for patch in (False, True):
        if patch:
            monkeypatch.setattr("ytilde.fitting._validate_by_building", lambda *_: None)
        method = create("lra", k=3, pretrain_epochs=1)
        fit_method(method, pictures(40), recipe, backbone="lenet5")
        found.append(method.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(f.values() for f in found), strict=True))


def test_what_does_not_fit_is_refused(encoder, tmp_path):
    data, found = blobs(), Encoder.load(encoder)
    with pytest.raises(BadInput, match=r"does not fit this network.*give the same backbone"):
        make_spec(data, "mlp:width=33,depth=1", RECIPE, found)
    with pytest.raises(BadInput, match="only one of them has"):
        make_spec(data, "mlp:width=32,depth=3", RECIPE, found)
    wide = replace(data, x=torch.randn(len(data), 7, generator=gen()))
    with pytest.raises(BadInput, match=r"inputs of shape \(6,\), these have \(7,\)"):
        make_spec(wide, "auto", RECIPE, found)
    with pytest.raises(BadInput, match="not both"):
        fit_method(create("ce"), data, RECIPE, encoder=encoder, pretrain="simclr")
    (tmp_path / "a").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="not a ytilde file"):
        Encoder.load(tmp_path / "a")
    clf = Classifier("ce", BACKBONE, epochs=1).fit(data.x.numpy(), data.y.numpy())
    clf.save(tmp_path / "model")
    with pytest.raises(BadInput, match="holds no encoder"):
        Encoder.load(tmp_path / "model")


def test_classifier_takes_encoders(encoder, tmp_path):
    data = blobs()
    x, y = data.x.numpy(), data.y.numpy()
    clf = Classifier("ce", epochs=2, encoder=encoder).fit(x, y)
    assert clf.method_.net.backbone.dim == 32  # "auto" is the encoder's kind
    clf.save(tmp_path / "model")
    again = Classifier.load(tmp_path / "model")  # without the encoder's file
    assert np.array_equal(clf.predict_proba(x), again.predict_proba(x))
    own = Classifier("ce", BACKBONE, epochs=2, pretrain=QUICK).fit(x, y)
    assert np.array_equal(clf.predict_proba(x), own.predict_proba(x))


def test_colour_images_are_flipped_and_grey_ones_are_not():
    """Grey images may be digits, which a flip would change."""
    assert [default_views(shape) for shape in ((3, 32, 32), (1, 28, 28), (6,))] == [
        "simclr",
        "resize0.3+color0.5",
        "jitter0.5",
    ]


def test_the_backbone_sees_standardised_inputs():
    """In metres or millimetres, the features are the same."""
    data = blobs()
    small, large = (replace(data, x=scale * data.x) for scale in (1.0, 1000.0))
    one, two = (SimCLR(make_spec(d, BACKBONE, RECIPE), Settings()).eval() for d in (small, large))
    two.backbone.load_state_dict(one.backbone.state_dict())
    torch.testing.assert_close(one.features(small.x), two.features(large.x))


def test_settings():
    assert Settings.parse("simclr") == Settings()
    found = Settings.parse("simclr:epochs=7,lr=0.1,augment=crop+flip")
    assert (found.epochs, found.lr, found.augment) == (7, 0.1, "crop+flip")
    for text, what in (("simclrr", "unknown pre-training"), ("simclr:epoch=3", "epochs")):
        with pytest.raises(BadInput, match=what):
            Settings.parse(text)
    with pytest.raises(BadInput, match="must be a number"):
        Settings.parse("simclr:epochs=many")


@pytest.mark.parametrize(
    ("backbone", "options", "rate"),
    [("lenet5", "", 0.03), ("resnet18:width=4", "", 0.24), ("lenet5", ",lr=0.1", 0.1)],
)
def test_the_rate_suits_the_network(backbone, options, rate):
    """At 0.24 the features of a network without normalisation grow until nothing trains on them."""
    seen = []
    images = torch.rand(8, 1, 28, 28, generator=gen())
    data = Data(images, torch.arange(8) % 2, 2)
    made = load_or_pretrain(data, backbone, RECIPE, f"simclr:epochs=1{options}", None, seen.append)
    assert [made.about["lr"], *(record["lr"] for record in seen)] == pytest.approx([rate, rate])


def test_features_are_frozen_and_of_length_one():
    data = pictures()
    spec = make_spec(data, "resnet18:width=8", Recipe())
    features = Features(spec, raw=False).train()
    x = data.x[:8].float() / 255
    before = {k: v.clone() for k, v in features.state_dict().items()}
    h = features(x)
    torch.testing.assert_close(h.norm(dim=-1), torch.ones(8))
    assert not h.requires_grad and not features.training
    assert all(torch.equal(before[k], v) for k, v in features.state_dict().items())
    raw = Features(spec, raw=True)
    assert raw.dim == 3 * 16 * 16 and raw(x).shape == (8, raw.dim)


def test_features_are_those_of_standardised_inputs():
    """Raw ones are that; an encoder's are the same in metres and in millimetres."""
    data = blobs()
    small, large = (replace(data, x=scale * data.x) for scale in (1.0, 1000.0))
    specs = [make_spec(each, BACKBONE, RECIPE) for each in (small, large)]
    raw = Features(specs[1], raw=True)(large.x)
    want = (data.x - data.x.mean(0)) / data.x.std(0, correction=0)
    torch.testing.assert_close(raw, want, rtol=0.01, atol=0.01)
    one, two = (Features(spec, raw=False) for spec in specs)
    two.backbone.load_state_dict(one.backbone.state_dict())
    torch.testing.assert_close(one(small.x), two(large.x))


def test_the_command_writes_an_encoder_that_fit_takes(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ytilde.cli import app

    def run(*words):
        return CliRunner().invoke(app, list(map(str, words)))

    monkeypatch.setattr("signal.signal", lambda *_: None)  # the tests' own handlers stay
    made = tmp_path / "encoder.safetensors"
    done = run("pretrain", "digits", "--epochs", 2, "--lr=0.05", "--out", made)
    assert done.exit_code == 0 and "knn accuracy on noisy labels" in done.output, done.output
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
    assert Encoder.load(made).about["epochs"] == 2
    fitted = run("fit", "digits", "--encoder", made, "--epochs", 1, "--out", tmp_path / "a")
    assert fitted.exit_code == 0, fitted.output
    wrong = run("pretrain", "digits", "--epoch", 2, "--out", made)
    assert isinstance(wrong.exception, BadInput) and "epochs" in str(wrong.exception)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_pretrains_like_an_eager_one():
    made = [
        load_or_pretrain(
            pictures(),
            "resnet18:width=8",
            Recipe(device="cuda", precision="float32", graph=graph),
            "simclr:epochs=4,batch_size=24,lr=0.05",
        )
        for graph in (True, False)
    ]
    for key, value in made[0].weights.items():
        torch.testing.assert_close(value, made[1].weights[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(7,), (1, 5, 4), (3, 40, 33)])
def test_components_are_those_of_numpy(shape):
    x = torch.rand(60, *shape, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 3.0
    found = Components(shape, 4)
    found.take(Components.solve(found.flat(x), found.dim))
    small = torch.nn.functional.adaptive_avg_pool2d(x, (32, 32)) if shape[-1] > 32 else x
    flat = small.flatten(1).double().numpy()
    u, s, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    slow = (u * s)[:, :4] / np.sqrt((s[:4] ** 2).sum() / len(x))
    z = found(x).double().numpy()
    assert np.allclose(z * np.sign((z * slow).sum(0)), slow, atol=1e-4)  # a sign each is free
    assert np.isclose((z**2).sum(1).mean(), 1.0, atol=1e-4)
    assert Components((3,), 32).dim == 3


def test_components_of_equal_rows_are_zero():
    found = Components((5,), 2)
    found.take(Components.solve(torch.ones(6, 5), 2))
    assert torch.equal(found(torch.ones(6, 5)), torch.zeros(6, 2))
