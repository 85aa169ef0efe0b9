"""Backbones: sizes against published counts, shapes, eval mode, names, weights, bad input."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ytilde.backbones import (
    as_backbone,
    create_backbone,
    default_backbone,
    list_backbones,
    load_weights,
)
from ytilde.data import BadInput

# Small versions: spec, shape of one input, shape of the features of one input.
SMALL = [
    ("identity", (7,), (7,)),
    ("identity", (2, 3, 4), (24,)),
    ("mlp:width=8,depth=3,dropout=0.5", (5,), (8,)),
    ("mlp:hidden=16x6", (1, 8, 8), (6,)),
    ("lenet5", (1, 28, 28), (84,)),
    ("lenet5", (3, 12, 17), (84,)),
    ("lenet5:variant=same", (1, 28, 28), (84,)),
    ("cnn9:width=4", (3, 32, 32), (4,)),
    ("cnn9:width=4,norm=group", (1, 28, 28), (4,)),
    ("cnn9:width=4,norm=group,drop=units,last=same", (1, 28, 28), (4,)),
    ("resnet18:width=4", (2, 17, 16), (32,)),
    ("resnet18:width=4,stem=imagenet,zero_init=true", (3, 40, 33), (32,)),
    ("resnet34:width=2,stem=cifar_valid", (1, 16, 16), (16,)),
    ("resnet50:width=2", (3, 16, 16), (64,)),
    ("preact_resnet18:width=4,dropout=0.3", (3, 16, 16), (32,)),
    ("wide_resnet:depth=10,widen=1,dropout=0.3", (1, 16, 15), (64,)),
    ("resnet9:width=4", (3, 17, 8), (32,)),
    ("inception_resnet_v2:width=2", (3, 75, 75), (48,)),
    ("xception65:width=2", (3, 33, 40), (64,)),
    ("patches:filters=4,pool=2", (2, 20, 17), (32,)),
    ("unet:width=4,depth=2,dropout=0.2", (3, 16, 16), (16, 16, 4)),
    ("unet:width=2,depth=4", (1, 23, 19), (23, 19, 2)),
    ("deeplab:width=4,features=8", (3, 32, 48), (8, 12, 8)),
    ("deeplab:width=4,features=8,output_stride=8", (1, 45, 60), (12, 15, 8)),
    ("deeplab:width=2,features=8,encoder=xception65", (3, 36, 32), (9, 8, 8)),
]


def make(spec, shape, seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create_backbone(spec, shape, **options)


def inputs(n, shape, seed=1):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def count(monkeypatch):
    """The number of parameters, without the seconds that initialising millions would take."""
    for name in ("kaiming_normal_", "kaiming_uniform_"):
        monkeypatch.setattr(nn.init, name, lambda weight, *_, **__: weight)
    return lambda *spec: sum(p.numel() for p in create_backbone(*spec).parameters())


def test_every_backbone_is_tested():
    assert {spec.partition(":")[0] for spec, _, _ in SMALL} == set(list_backbones())


@pytest.mark.parametrize(("spec", "shape", "features"), SMALL)
def test_shapes_gradients_and_eval(spec, shape, features):
    net, x = make(spec, shape), inputs(3, shape)
    with torch.random.fork_rng(devices=[]):
        out = net.train()(x)
        if out.requires_grad:
            out.square().mean().backward()
    assert out.shape == (3, *features) and net.dim == features[-1]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    net.eval()
    before = torch.random.get_rng_state()
    kept = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        first, again, alone = net(x), net(x), net(x[1:2])
        strided = net(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)
    assert torch.equal(first, again) and first.isfinite().all()
    assert torch.allclose(alone[0], first[1], atol=1e-4, rtol=1e-4)  # no neighbour is felt
    assert torch.allclose(strided, first, atol=1e-4, rtol=1e-4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(v, kept[k]) for k, v in net.state_dict().items())
    if len(features) == 3:
        assert [-(-side // net.stride) for side in shape[1:]] == list(features[:2])


def test_same_state_same_network():
    one, two, other = (make("resnet18:width=4", (3, 16, 16), seed) for seed in (0, 0, 1))
    assert torch.equal(one.conv1.weight, two.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


@pytest.mark.parametrize(
    "spec",
    ["mlp", "cnn9:width=4", "wide_resnet:depth=10", "preact_resnet18:width=4", "unet:width=4",
     "deeplab:width=4,features=8"],
)  # fmt: skip
def test_dropout_acts_in_training_only(spec):
    net, x = make(spec, (3, 32, 32), dropout=0.5), inputs(2, (3, 32, 32))
    for layer in net.modules():  # batch statistics off: only dropout is left to differ
        layer.train(isinstance(layer, nn.Dropout | nn.Dropout2d))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        assert not torch.equal(net(x), net(x))
        net.eval()
        assert torch.equal(net(x), net(x))


# Published counts less the 1000-way (resnets, xception, inception) or 10-way classifier.
@pytest.mark.parametrize(
    ("spec", "shape", "expected"),
    [
        ("resnet18", (3, 224, 224), 11_689_512 - 513_000),
        ("resnet34", (3, 224, 224), 21_797_672 - 513_000),
        ("resnet50", (3, 224, 224), 25_557_032 - 2_049_000),
        ("wide_resnet", (3, 32, 32), 1_467_610 - 1_290),
        ("inception_resnet_v2", (3, 299, 299), 55_843_464 - 1_537_000),
        ("lenet5", (1, 28, 28), 6 * 26 + 16 * 151 + 401 * 120 + 121 * 84),
        ("lenet5:variant=same", (1, 28, 28), 6 * 26 + 16 * 151 + 120 * 401 + 5881 * 84),
        (
            "cnn9", (3, 32, 32),
            9 * 128 * (3 + 128 + 128) + 9 * 256 * (128 + 256 + 256)
            + 9 * (256 * 512 + 512 * 256 + 256 * 128)
            + 2 * (3 * 128 + 3 * 256 + 512 + 256 + 128),
        ),
    ],
)  # fmt: skip
def test_parameter_counts(spec, shape, expected, count):
    assert count(spec, shape) == expected


def test_parameter_counts_of_xception_and_deeplab(count):
    # 39.92M with its 1000-way classifier (2.05M); DeepLabv3+ with it is known as 41M.
    assert abs(count("xception65", (3, 299, 299)) - (39.92e6 - 2.049e6)) < 0.01e6
    assert abs(count("deeplab:encoder=xception65", (3, 513, 513)) - 41.05e6) < 0.1e6


def traced(spec, shape, kind=nn.Conv2d):
    """The output shapes of a network's layers of one kind, in order of execution."""
    seen, net = [], make(spec, shape).eval()
    for layer in net.modules():
        if isinstance(layer, kind):
            layer.register_forward_hook(lambda _m, _x, out: seen.append(tuple(out.shape[1:])))
    with torch.no_grad():
        net(inputs(1, shape))
    return seen


def test_maps_of_the_cards():
    shapes = traced("cnn9", (3, 32, 32))
    assert [s[1] for s in shapes] == [32] * 3 + [16] * 3 + [6, 4, 2]
    assert [s[0] for s in shapes] == [128] * 3 + [256] * 3 + [512, 256, 128]
    assert [s[1] for s in traced("cnn9:width=4", (1, 28, 28))][-3:] == [5, 3, 1]
    assert [s[1] for s in traced("cnn9:width=4,last=same", (1, 28, 28))][-3:] == [7, 7, 7]
    assert traced("lenet5", (1, 28, 28)) == [(6, 28, 28), (16, 10, 10)]
    same = traced("lenet5:variant=same", (1, 28, 28))
    assert same == [(6, 28, 28), (16, 14, 14), (120, 7, 7)]
    assert traced("wide_resnet", (3, 32, 32), nn.BatchNorm2d)[-1] == (128, 8, 8)
    assert traced("resnet18:width=2", (3, 32, 32))[-1] == (16, 4, 4)
    nine = traced("resnet9:width=4", (3, 32, 32))
    assert nine[:2] == [(2, 32, 32), (8, 32, 32)] and len(nine) == 10
    assert nine[-1] == (32, 4, 4)
    assert traced("resnet18:width=2,stem=cifar_valid", (3, 32, 32))[0] == (2, 30, 30)
    assert traced("resnet18:width=2", (3, 224, 224))[-1] == (16, 7, 7)
    assert traced("inception_resnet_v2:width=2", (3, 299, 299))[-1] == (48, 8, 8)
    assert traced("xception65:width=2", (3, 64, 96))[-1] == (64, 2, 3)


@pytest.mark.parametrize("encoder", ["resnet18", "resnet50", "xception65"])
@pytest.mark.parametrize("output_stride", [16, 8])
def test_output_stride(encoder, output_stride):
    """The dilated encoder's finer map holds the plain one's map at every second (fourth) pixel."""
    options = {} if encoder == "xception65" else {"stem": "imagenet"}
    plain = make(encoder, (3, 96, 64), width=4, **options).eval()
    net = make(
        "deeplab", (3, 96, 64), width=4, features=4, encoder=encoder, output_stride=output_stride
    ).eval()
    net.encoder.load_state_dict(plain.state_dict())
    x = inputs(2, (3, 96, 64))
    with torch.no_grad():
        (low, coarse), (same, fine) = plain.maps(x), net.encoder.maps(x)
        assert net(x).shape == (2, 24, 16, 4)
    step = 32 // output_stride
    assert low.shape[1:] == (plain.low_dim, 24, 16) and torch.equal(low, same)
    assert fine.shape[2:] == (96 // output_stride, 64 // output_stride)
    assert coarse.std() > 1e-3
    assert torch.allclose(fine[..., ::step, ::step], coarse, rtol=1e-3, atol=1e-4)


def test_pyramid_rates():
    for output_stride, rates in [(16, [6, 12, 18]), (8, [12, 24, 36])]:
        net = make("deeplab:width=2,features=4", (3, 32, 32), output_stride=output_stride)
        assert [branch[0].dilation[0] for branch in net.aspp.atrous] == rates


@pytest.mark.parametrize("shape", [(3, 180, 240), (3, 45, 37), (1, 7, 5)])
def test_segmentation_of_sizes_that_do_not_divide(shape):
    x = inputs(1, shape)
    with torch.no_grad():
        assert make("unet:width=2", shape).eval()(x).shape == (1, *shape[1:], 2)
        out = make("deeplab:width=2,features=4", shape).eval()(x)
    assert out.shape == (1, -(-shape[1] // 4), -(-shape[2] // 4), 4)


def torchvision_names(blocks, convs):
    """The names of torchvision's resnets, written out from their documented structure."""
    bn = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = ["conv1.weight", *(f"bn1.{k}" for k in bn), "fc.weight", "fc.bias"]
    for stage, n in enumerate(blocks, 1):
        for block in range(n):
            at = f"layer{stage}.{block}"
            for i in range(1, convs + 1):
                names += [f"{at}.conv{i}.weight", *(f"{at}.bn{i}.{k}" for k in bn)]
            if block == 0 and (stage > 1 or convs == 3):
                names += [f"{at}.downsample.0.weight", *(f"{at}.downsample.1.{k}" for k in bn)]
    return set(names)


@pytest.mark.parametrize(
    ("name", "blocks", "convs"),
    [("resnet18", (2, 2, 2, 2), 2), ("resnet34", (3, 4, 6, 3), 2), ("resnet50", (3, 4, 6, 3), 3)],
)
def test_torchvision_names_and_weights(name, blocks, convs, tmp_path):
    spec, shape = f"{name}:width=2,stem=imagenet", (3, 65, 65)
    source, path = make(spec, shape, seed=3), tmp_path / "w.safetensors"
    names = torchvision_names(blocks, convs)
    assert {*source.state_dict(), "fc.weight", "fc.bias"} == names
    weights = {k: v + 1 for k, v in source.state_dict().items()}
    weights |= {"fc.weight": torch.zeros(5, source.dim), "fc.bias": torch.zeros(5)}
    weights.pop("bn1.num_batches_tracked")  # as in files older than the counter
    save_file(weights, path)
    loaded = make(spec, shape, seed=4, weights=path)
    for key, value in loaded.state_dict().items():
        if key != "bn1.num_batches_tracked":
            assert torch.equal(value, weights[key]), key


def test_weights_that_do_not_fit(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(make("resnet18:width=2,stem=imagenet", (3, 65, 65)).state_dict(), path)
    net = make("resnet18:width=2,stem=cifar", (3, 65, 65))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(BadInput, match=r"conv1.weight is \[2, 3, 7, 7\] there, \[2, 3, 3, 3\]"):
        load_weights(net, path)
    with pytest.raises(BadInput, match=r"has no layer1.0.conv3.weight|is \["):
        make("resnet50:width=2,stem=imagenet", (3, 65, 65), weights=path)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(BadInput, match="cannot read weights"):
        load_weights(net, path)
    with pytest.raises(BadInput, match="cannot read weights"):
        load_weights(net, tmp_path / "nowhere.safetensors")


def test_zero_init_makes_blocks_identities():
    net = make("resnet50:width=2,zero_init=true", (3, 16, 16)).eval()
    h = inputs(2, (8, 4, 4))  # not negative, so that the block's ReLU keeps it
    assert torch.equal(net.layer1[1](h), h)
    plain = make("resnet50:width=2", (3, 16, 16)).eval()
    assert not torch.equal(plain.layer1[1](h), h)


def test_he_initialisation():
    net = make("resnet18", (3, 32, 32))
    weight = net.layer3[1].conv1.weight
    assert abs(weight.std() / (2 / (9 * 256)) ** 0.5 - 1) < 0.01
    depthwise = make("xception65:width=16", (3, 32, 32)).middle[0].convs[1][0].weight
    assert abs(depthwise.std() / (2 / 9) ** 0.5 - 1) < 0.05


def test_stem_and_defaults_follow_the_image():
    assert make("resnet18:width=2", (3, 64, 64)).conv1.kernel_size == (3, 3)
    assert make("resnet18:width=2", (3, 65, 64)).conv1.kernel_size == (7, 7)
    shapes = [(5,), (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 224, 224)]
    for shape in shapes:
        net = make(default_backbone(shape), shape)
        with torch.no_grad():
            assert net(inputs(2, shape)).shape == (2, net.dim)
    assert default_backbone((5,)) == "mlp:width=128,depth=1"
    assert default_backbone((3, 180, 240), pixels=True) == "unet"


def test_options_override_the_spec():
    assert make("mlp:width=8,depth=1", (3,), width=16).dim == 16
    assert make("mlp:hidden=5", (3,)).dim == 5
    assert make("mlp", (3,), hidden=[7, 9]).dim == 9


@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        ("resnet81", (3, 32, 32), "did you mean resnet18"),
        ("zzz", (3, 32, 32), "choose from .*wide_resnet"),
        ("resnet18:widht=3", (3, 32, 32), "did you mean width"),
        ("resnet18:blocks=3", (3, 32, 32), "unknown option of resnet18"),
        ("identity:width=3", (3,), "there are none"),
        ("resnet18:width", (3, 32, 32), "option=value"),
        ("resnet18:width=x", (3, 32, 32), "positive whole number"),
        ("resnet18:width=0", (3, 32, 32), "positive whole number"),
        ("resnet18:stem=big", (3, 32, 32), "auto or cifar or cifar_valid or imagenet"),
        ("resnet18:zero_init=3", (3, 32, 32), "true or false"),
        ("mlp:dropout=1.5", (3,), r"in \[0, 1\)"),
        ("mlp:hidden=big", (3,), "256x256"),
        ("wide_resnet:depth=29", (3, 32, 32), "10, 16, 22, 28"),
        ("resnet18", (3,), "use mlp"),
        ("lenet5", (1, 8, 8), "at least 12x12"),
        ("deeplab:output_stride=32", (3, 32, 32), "16 or 8"),
    ],
)
def test_bad_input(spec, shape, says):
    with pytest.raises(BadInput, match=says) as error:
        create_backbone(spec, shape)
    assert "\n" not in str(error.value)


class Theirs(nn.Module):
    """Somebody's network: BatchNorm, dropout that never stops, and a mixed training state."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        self.layers[1].eval()

    def forward(self, x):
        return nn.functional.dropout(self.layers(x), 0.5, training=True)


def test_anybodys_module():
    theirs = Theirs()
    state, modes = copy.deepcopy(theirs.state_dict()), [m.training for m in theirs.modules()]
    before = torch.random.get_rng_state()
    net = as_backbone(theirs, (4,))
    assert net.dim == 6
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [m.training for m in theirs.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in theirs.state_dict().items())
    assert not hasattr(theirs, "dim")
    ours = make("mlp", (4,))
    assert as_backbone(ours, (4,)) is ours


def test_anybodys_module_for_pixels_and_wrong_ones():
    class Dense(nn.Module):
        def forward(self, x):
            return nn.functional.avg_pool2d(x, 2).permute(0, 2, 3, 1)

    net = as_backbone(Dense(), (3, 8, 8))
    assert net.dim == 3 and net.stride == 2
    with pytest.raises(BadInput, match="does not take inputs of shape"):
        as_backbone(nn.Linear(4, 2), (5,))
    with pytest.raises(BadInput, match=r"must give features \[B, D\]"):
        as_backbone(nn.Identity(), (2, 3))
