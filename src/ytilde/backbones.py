"""Networks that turn inputs into features. Each knows `dim`; the head that follows is elsewhere.

Classifiers give [B, dim]; networks for pixels give [B, H / stride, W / stride, dim]. Dropout is a
module everywhere, so eval mode switches it off. Layer initialisation draws from torch's global
generator: the caller forks and seeds it.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ytilde.data import BadInput, unknown
from ytilde.encoder import mark_pretrained

__all__ = [
    "Backbone",
    "about_backbone",
    "as_backbone",
    "create_backbone",
    "default_backbone",
    "list_backbones",
    "load_weights",
]

Shape = tuple[int, ...]  # of one input: (C, H, W) or (D,)
FULL = 64  # the `width` at which a published network has its published size


class Backbone(nn.Module):
    """Inputs -> features [..., dim]."""

    dim: int
    stride = 1  # of the features of a network for pixels: how much a head has to upsample
    smallest: int | None = 1  # side of the smallest image it takes; None: takes features too


_registry: dict[str, tuple[type[Backbone], dict[str, Any]]] = {}


def _register(name: str, **preset: Any) -> Callable[[type[Backbone]], type[Backbone]]:
    """The class under this name, with some of its arguments fixed."""

    def add(cls: type[Backbone]) -> type[Backbone]:
        _registry[name] = (cls, preset)
        return cls

    return add


def list_backbones() -> list[str]:
    return sorted(_registry)


def about_backbone(name: str) -> tuple[str, dict[str, Any]]:
    """What a backbone is, in a line, and its options with their defaults."""
    cls, preset = _registry[name]
    own = inspect.signature(cls).parameters.values()
    options = {p.name: p.default for p in own if p.name != "shape" and p.name not in preset}
    return (inspect.getdoc(cls) or "").splitlines()[0], options


def default_backbone(shape: Shape, *, pixels: bool = False) -> str:
    """What to use when nobody says: cheap enough for a CPU, good enough to compare methods."""
    if pixels:
        return "unet"
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "mlp"
    if max(shape[1:]) > 64:
        return "resnet18"
    return "resnet18:width=16" if shape[0] == 1 else "wide_resnet"


def create_backbone(
    name: str, shape: Shape, *, weights: str | Path | None = None, **options: Any
) -> Backbone:
    """A new network by name, or by a spec such as "resnet18:width=16,stem=imagenet".

    shape: of one input. options: override those of the spec. weights: a safetensors file.
    """
    name, given = _parse(name)
    if name not in _registry:
        raise BadInput(unknown("backbone", name, list_backbones()))
    cls, preset = _registry[name]
    options = given | options
    weights = options.pop("weights", weights)
    hints = get_type_hints(cls.__init__)
    known = list(about_backbone(name)[1])
    for option, value in list(options.items()):
        if option not in known:
            raise BadInput(unknown(f"option of {name}", option, known))
        options[option] = _checked(name, option, value, hints[option])
    _check_shape(name, shape, cls.smallest)
    backbone = cls(tuple(shape), **preset, **options)
    if weights is not None:
        load_weights(backbone, weights)
    return backbone


def as_backbone(module: nn.Module, shape: Shape) -> nn.Module:
    """Anybody's network as a backbone: itself where it knows its `dim`, else measured.

    The dry run is of a copy, in eval mode, on zeros, with torch's random state put back.
    """
    if isinstance(getattr(module, "dim", None), int):
        return module
    trial = copy.deepcopy(module).eval()
    like = next(iter(trial.parameters()), torch.zeros(()))
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            features = trial(torch.zeros(2, *shape, dtype=like.dtype, device=like.device))
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadInput(
                f"the backbone {type(module).__name__} does not take inputs of shape "
                f"{tuple(shape)}: {str(error).splitlines()[0]}"
            ) from error
    if not isinstance(features, Tensor) or features.ndim not in (2, 4) or len(features) != 2:
        raise BadInput(
            f"the backbone {type(module).__name__} must give features [B, D] or, for pixels, "
            f"[B, H, W, D], not {list(getattr(features, 'shape', [])) or type(features).__name__}"
        )
    return _Measured(module, features.shape, shape)


class _Measured(Backbone):
    def __init__(self, module: nn.Module, features: torch.Size, shape: Shape) -> None:
        super().__init__()
        self.module, self.dim = module, features[-1]
        if len(features) == 4:
            self.stride = round(shape[1] / features[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Pre-trained weights from a safetensors file, by torchvision's names; `fc.*` is ignored.

    All or nothing: a file that does not fit leaves the network as it was.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot read weights from {path}: {error}") from error
    weights = {k: v for k, v in weights.items() if not k.startswith("fc.")}
    here = module.state_dict()
    # Counters of batches are missing in files made before torch had them.
    missing = [k for k in here if k not in weights and not k.endswith("num_batches_tracked")]
    extra = [k for k in weights if k not in here]
    other = [k for k in weights if k in here and weights[k].shape != here[k].shape]
    if missing or extra or other:
        if other:
            sizes = f"{list(weights[other[0]].shape)} there, {list(here[other[0]].shape)} here"
            what = f"{other[0]} is {sizes}"
        elif missing:
            what = f"it has no {missing[0]}"
        else:
            what = f"the network has no {extra[0]}"
        raise BadInput(
            f"the weights in {path} do not fit this network ({what}; "
            f"{len(missing) + len(extra) + len(other)} names in all): "
            "give the backbone the options of the one that was trained, such as stem=imagenet"
        )
    module.load_state_dict(weights, strict=False)
    mark_pretrained(module)


def without_weights(backbone: Any) -> Any:
    """The spec without its `weights=FILE`, for networks that are filled otherwise."""
    if not isinstance(backbone, str):
        return backbone
    name, _, text = backbone.partition(":")
    kept = [item for item in text.split(",") if item.partition("=")[0].strip() != "weights"]
    return f"{name}:{','.join(kept)}" if any(kept) else name


def _parse(spec: str) -> tuple[str, dict[str, Any]]:
    name, _, text = spec.partition(":")
    options = {}
    for item in filter(None, text.split(",")):
        option, equals, value = item.partition("=")
        if not equals:
            raise BadInput(f"cannot read {item!r} in backbone {spec!r}: write option=value")
        options[option.strip()] = _value(value.strip())
    return name.strip(), options


def _value(text: str) -> Any:
    """3, 0.5, true, 256x128 (a tuple) or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float, lambda t: tuple(int(n) for n in t.split("x"))):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, option: str, value: Any, hint: Any) -> Any:
    """The value, if it is what the option's annotation says."""
    choices = get_args(hint)
    if hint is bool:
        good, wants = isinstance(value, bool), "true or false"
    elif hint is int:
        good, wants = type(value) is int and value > 0, "a positive whole number"
    elif hint is float:
        good, wants = type(value) in (int, float) and 0 <= value < 1, "a number in [0, 1)"
    elif tuple in (getattr(c, "__origin__", None) for c in choices):
        value = (value,) if type(value) is int else value
        many = isinstance(value, tuple | list) and all(type(v) is int and v > 0 for v in value)
        good, wants = value is None or many, "widths such as 256x256"
    else:
        good, wants = value in choices, " or ".join(map(str, choices))
    if not good:
        raise BadInput(f"option {option} of backbone {name} must be {wants}, not {value!r}")
    return value


def _check_shape(name: str, shape: Shape, smallest: int | None) -> None:
    if smallest is None:
        return
    if len(shape) != 3:
        raise BadInput(
            f"backbone {name} needs images (C, H, W), not inputs of shape {tuple(shape)}: use mlp"
        )
    if min(shape[1:]) < smallest:
        raise BadInput(
            f"backbone {name} needs images of at least {smallest}x{smallest} pixels, "
            f"not {shape[1]}x{shape[2]}: use {default_backbone(shape)}"
        )


# --- Parts -----------------------------------------------------------------------------------


def _he(net: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """He-normal convolutions. Depthwise ones by fan-in: torch's fan-out forgets the groups."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(
                layer.weight, mode="fan_in" if layer.groups > 1 else mode, nonlinearity="relu"
            )
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _conv(c_in: int, c_out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, size, stride, size // 2, groups=groups, bias=False)


_bn = nn.BatchNorm2d


def _conv_bn(c_in: int, c_out: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_conv(c_in, c_out, size, stride), _bn(c_out), nn.ReLU(True))


def _pool(x: Tensor) -> Tensor:
    return x.mean((-2, -1))


def _pixels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


# --- Features and small images ---------------------------------------------------------------


@_register("identity")
class Identity(Backbone):
    """The inputs are features already."""

    smallest = None

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dim = math.prod(shape)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@_register("mlp")
class MLP(Backbone):
    """`depth` layers of `width` units, or layers of the widths in `hidden`."""

    smallest = None

    def __init__(
        self,
        shape: Shape,
        *,
        width: int = 256,
        depth: int = 2,
        hidden: tuple[int, ...] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [math.prod(shape), *(hidden or [width] * depth)]
        layers: list[nn.Module] = [nn.Flatten()]
        for d_in, d_out in pairwise(widths):
            layers += [nn.Linear(d_in, d_out), nn.ReLU(True), nn.Dropout(dropout)]
        self.layers, self.dim = nn.Sequential(*layers), widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@_register("lenet5")
class LeNet5(Backbone):
    """LeNet-5 with ReLU and max-pooling, in the two forms that the tables use.

    valid: 6@5 (padded), pool, 16@5 unpadded, pool, dense 120, 84 (T-Revision, VolMinNet).
    same: all padded, a third one, 120@5, on the 7x7 map, dense 84 (Logistic-Normal).
    """

    smallest = 12

    def __init__(self, shape: Shape, *, variant: Literal["valid", "same"] = "valid") -> None:
        super().__init__()
        channels, height, width = shape
        pad = 2 if variant == "same" else 0
        layers = [nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(True), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(6, 16, 5, padding=pad), nn.ReLU(True), nn.MaxPool2d(2)]
        height, width = ((side // 2 - 4 + 2 * pad) // 2 for side in (height, width))
        if variant == "same":
            last = [nn.Conv2d(16, 120, 5, padding=2), nn.ReLU(True), nn.Flatten()]
            flat = 120 * height * width
        else:
            last = [nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU(True)]
            flat = 120
        self.layers = nn.Sequential(*layers, *last, nn.Linear(flat, 84), nn.ReLU(True))
        self.dim = 84

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _GroupNorm(nn.GroupNorm):
    """In the precision of its input: autocast would make it float32, and every map twice as large.

    The kernel sums in float32 either way.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, weight, bias, self.eps)


@_register("cnn9")
class CNN9(Backbone):
    """The nine-layer CNN of Co-teaching (Han et al. 2018, Table 2); with GroupNorm(2): of Het-tau.

    32x32 inputs: three convolutions at 32x32, three at 16x16, three unpadded 8 -> 6 -> 4 -> 2.
    """

    smallest = 28

    def __init__(
        self,
        shape: Shape,
        *,
        width: int = 128,
        norm: Literal["batch", "group"] = "batch",
        dropout: float = 0.25,
    ) -> None:
        super().__init__()

        def conv(c_in: int, c_out: int, pad: int) -> nn.Sequential:
            after = _bn(c_out) if norm == "batch" else _GroupNorm(2, c_out)
            layer = nn.Conv2d(c_in, c_out, 3, padding=pad, bias=norm == "group")
            return nn.Sequential(layer, after, nn.LeakyReLU(0.01, True))

        def stage(c_in: int, c_out: int) -> nn.Sequential:
            convs = [conv(c_in, c_out, 1), conv(c_out, c_out, 1), conv(c_out, c_out, 1)]
            return nn.Sequential(*convs, nn.MaxPool2d(2), nn.Dropout2d(dropout))

        width += width % 2  # two groups
        self.stage1, self.stage2 = stage(shape[0], width), stage(width, 2 * width)
        self.stage3 = nn.Sequential(
            conv(2 * width, 4 * width, 0), conv(4 * width, 2 * width, 0), conv(2 * width, width, 0)
        )
        self.dim = width
        _he(self)

    def forward(self, x: Tensor) -> Tensor:
        return _pool(self.stage3(self.stage2(self.stage1(x))))


# --- Residual networks -----------------------------------------------------------------------


class _Residual(nn.Module):
    """A residual block with torchvision's names: two 3x3 convolutions, or a bottleneck.

    He et al., CVPR 2016. The bottleneck has its stride in the 3x3 convolution, as torchvision's.
    """

    def __init__(self, c_in: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        c_out = 4 * width if bottleneck else width
        first, second = (1, stride) if bottleneck else (stride, 1)
        self.conv1, self.bn1 = _conv(c_in, width, 1 if bottleneck else 3, first), _bn(width)
        self.conv2, self.bn2 = _conv(width, width, 3, second), _bn(width)
        if bottleneck:
            self.conv3, self.bn3 = _conv(width, c_out, 1), _bn(c_out)
        self.bottleneck = bottleneck
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(_conv(c_in, c_out, 1, stride), _bn(c_out))

    @property
    def last_bn(self) -> nn.BatchNorm2d:
        return self.bn3 if self.bottleneck else self.bn2

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        if self.bottleneck:
            out = self.bn3(self.conv3(out.relu_()))
        return (out + skip).relu_()


@_register("resnet18", blocks=(2, 2, 2, 2), bottleneck=False)
@_register("resnet34", blocks=(3, 4, 6, 3), bottleneck=False)
@_register("resnet50", blocks=(3, 4, 6, 3), bottleneck=True)
class ResNet(Backbone):
    """ResNet (He et al., CVPR 2016), parameters named as torchvision's.

    stem: "imagenet" 7x7/2 and pooling; "cifar" 3x3/1; "cifar_valid" the same without padding, as
    T-Revision and its family; "auto" is "cifar" up to 64 pixels a side.
    zero_init: each block starts as the identity.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        blocks: tuple[int, ...],
        bottleneck: bool,
        width: int = FULL,
        stem: Literal["auto", "cifar", "cifar_valid", "imagenet"] = "auto",
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        if stem == "auto":
            stem = "cifar" if max(shape[1:]) <= 64 else "imagenet"
        size, stride, pad = {"imagenet": (7, 2, 3), "cifar": (3, 1, 1), "cifar_valid": (3, 1, 0)}[
            stem
        ]
        self.conv1 = nn.Conv2d(shape[0], width, size, stride, pad, bias=False)
        self.bn1 = _bn(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        grow = 4 if bottleneck else 1

        def stage(number: int, c_in: int) -> nn.Sequential:
            inner, stride = width * 2**number, 1 if number == 0 else 2
            first = _Residual(c_in, inner, stride, bottleneck)
            rest = [_Residual(grow * inner, inner, 1, bottleneck) for _ in range(1, blocks[number])]
            return nn.Sequential(first, *rest)

        self.layer1 = stage(0, width)
        self.layer2 = stage(1, grow * width)
        self.layer3 = stage(2, 2 * grow * width)
        self.layer4 = stage(3, 4 * grow * width)
        self.dim, self.low_dim = 8 * grow * width, grow * width
        _he(self)
        if zero_init:
            for block in self.modules():
                if isinstance(block, _Residual):
                    nn.init.zeros_(block.last_bn.weight)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The map after the first stage (stride 4 with the imagenet stem) and the last map."""
        low = self.layer1(self.maxpool(self.bn1(self.conv1(x)).relu_()))
        return low, self.layer4(self.layer3(self.layer2(low)))

    def stages(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """What runs at stride 16 and at stride 32: DeepLab dilates these."""
        return [self.layer3], [self.layer4]

    def forward(self, x: Tensor) -> Tensor:
        return _pool(self.maps(x)[1])


class _PreAct(nn.Module):
    """Pre-activation block (He et al., ECCV 2016); dropout as Zagoruyko and Komodakis, 2016."""

    def __init__(self, c_in: int, c_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1, self.conv1 = _bn(c_in), _conv(c_in, c_out, 3, stride)
        self.bn2, self.conv2 = _bn(c_out), _conv(c_out, c_out)
        self.dropout = nn.Dropout(dropout)
        changes = stride != 1 or c_in != c_out
        self.shortcut = _conv(c_in, c_out, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.bn1(x).relu_()
        skip = x if self.shortcut is None else self.shortcut(active)
        out = self.conv1(active)
        return skip + self.conv2(self.dropout(self.bn2(out).relu_()))


class _PreActNet(Backbone):
    def __init__(self, channels: int, widths: tuple[int, ...], blocks: int, dropout: float) -> None:
        """widths: of the stem and of each stage; the second and later stages halve the map."""
        super().__init__()
        self.stem = _conv(channels, widths[0])
        layers: list[nn.Module] = []
        c_in = widths[0]
        for number, width in enumerate(widths[1:]):
            for block in range(blocks):
                stride = 2 if number > 0 and block == 0 else 1
                layers.append(_PreAct(c_in, width, stride, dropout))
                c_in = width
        self.blocks, self.bn, self.dim = nn.Sequential(*layers), _bn(c_in), c_in
        _he(self, "fan_in")  # Keras's he_normal, with which Logistic-Normal's authors trained

    def forward(self, x: Tensor) -> Tensor:
        return _pool(self.bn(self.blocks(self.stem(x))).relu_())


@_register("preact_resnet18")
class PreActResNet18(_PreActNet):
    """ResNet-18 of pre-activation blocks, 3x3 stem: the network of DivideMix."""

    def __init__(self, shape: Shape, *, width: int = FULL, dropout: float = 0.0) -> None:
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        super().__init__(shape[0], widths, 2, dropout)


@_register("wide_resnet")
class WideResNet(_PreActNet):
    """WRN-depth-widen (Zagoruyko and Komodakis, 2016), by default WRN-28-2."""

    def __init__(
        self, shape: Shape, *, depth: int = 28, widen: int = 2, dropout: float = 0.0
    ) -> None:
        if depth < 10 or depth % 6 != 4:
            raise BadInput(f"the depth of a wide_resnet must be 10, 16, 22, 28, ..., not {depth}")
        widths = (16, 16 * widen, 32 * widen, 64 * widen)
        super().__init__(shape[0], widths, (depth - 4) // 6, dropout)


# --- Inception-ResNet-v2 ---------------------------------------------------------------------


def _conv_inc(
    c_in: int,
    c_out: int,
    size: int | tuple[int, int] = 1,
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, size, stride, pad, bias=False)
    return nn.Sequential(conv, _bn(c_out, eps=1e-3), nn.ReLU(True))


class _Branches(nn.Module):
    """Branches side by side, their channels joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _Scaled(nn.Module):
    """x + scale * conv1x1(branches(x)), then ReLU unless it is the last block."""

    def __init__(
        self, channels: int, joined: int, branches: _Branches, scale: float, relu: bool = True
    ) -> None:
        super().__init__()
        self.branches, self.conv = branches, nn.Conv2d(joined, channels, 1)
        self.scale, self.relu = scale, relu

    def forward(self, x: Tensor) -> Tensor:
        out = x + self.scale * self.conv(self.branches(x))
        return F.relu(out) if self.relu else out


@_register("inception_resnet_v2")
class InceptionResNetV2(Backbone):
    """Inception-ResNet-v2 (Szegedy et al., AAAI 2017, figures 3 and 15-19); WebVision's tables.

    299x299 inputs give an 8x8 map of 1536 channels at width 64.
    """

    smallest = 75

    def __init__(self, shape: Shape, *, width: int = FULL) -> None:
        super().__init__()
        conv = _conv_inc

        def w(channels: int) -> int:
            return max(1, round(channels * width / FULL))

        def chain(c_in: int, *widths: int) -> nn.Sequential:
            """1x1, then padded 3x3 convolutions."""
            layers = [conv(c_in, w(widths[0]))]
            for a, b in pairwise(widths):
                layers.append(conv(w(a), w(b), 3, 1, 1))
            return nn.Sequential(*layers)

        def halve(c_in: int, *widths: int) -> nn.Sequential:
            """As chain, with a last unpadded 3x3 convolution of stride 2."""
            return nn.Sequential(
                chain(c_in, *widths[:-1]), conv(w(widths[-2]), w(widths[-1]), 3, 2)
            )

        def strip(c_in: int, a: int, b: int, c: int, size: int) -> nn.Sequential:
            """1x1, then a 1 x size and a size x 1 convolution."""
            pad = size // 2
            across = conv(w(a), w(b), (1, size), 1, (0, pad))
            return nn.Sequential(conv(c_in, w(a)), across, conv(w(b), w(c), (size, 1), 1, (pad, 0)))

        def block35() -> _Scaled:
            parts = _Branches(chain(c35, 32), chain(c35, 32, 32), chain(c35, 32, 48, 64))
            return _Scaled(c35, 2 * w(32) + w(64), parts, 0.17)

        def block17() -> _Scaled:
            parts = _Branches(chain(c17, 192), strip(c17, 128, 160, 192, 7))
            return _Scaled(c17, 2 * w(192), parts, 0.1)

        def block8(scale: float, relu: bool) -> _Scaled:
            parts = _Branches(chain(c8, 192), strip(c8, 192, 224, 256, 3))
            return _Scaled(c8, w(192) + w(256), parts, scale, relu)

        stem: list[nn.Module] = [
            conv(shape[0], w(32), 3, 2),
            conv(w(32), w(32), 3),
            conv(w(32), w(64), 3, 1, 1),
        ]
        stem += [nn.MaxPool2d(3, 2), conv(w(64), w(80)), conv(w(80), w(192), 3), nn.MaxPool2d(3, 2)]
        mean = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        five = nn.Sequential(conv(w(192), w(48)), conv(w(48), w(64), 5, 1, 2))
        pooled = nn.Sequential(mean, conv(w(192), w(64)))
        mixed5 = _Branches(chain(w(192), 96), five, chain(w(192), 64, 96, 96), pooled)
        c35 = 2 * w(96) + 2 * w(64)
        mixed6 = _Branches(conv(c35, w(384), 3, 2), halve(c35, 256, 256, 384), nn.MaxPool2d(3, 2))
        c17 = c35 + 2 * w(384)
        mixed7 = _Branches(
            halve(c17, 256, 384), halve(c17, 256, 288), halve(c17, 256, 288, 320),
            nn.MaxPool2d(3, 2),
        )  # fmt: skip
        c8 = c17 + w(384) + w(288) + w(320)
        self.layers = nn.Sequential(
            *stem,
            mixed5,
            *(block35() for _ in range(10)),
            mixed6,
            *(block17() for _ in range(20)),
            mixed7,
            *(block8(0.2, True) for _ in range(9)),
            block8(1.0, False),
            conv(c8, w(1536)),
        )
        self.dim = w(1536)
        _he(self)

    def forward(self, x: Tensor) -> Tensor:
        return _pool(self.layers(x))


# --- Separable convolutions: Xception and DeepLab --------------------------------------------


def _separable(c_in: int, c_out: int, stride: int = 1, relu: bool = True) -> nn.Sequential:
    """3x3 depthwise, then pointwise, each with BatchNorm; ReLU after both or neither."""
    layers = [_conv(c_in, c_in, 3, stride, groups=c_in), _bn(c_in), nn.ReLU(True)]
    layers += [_conv(c_in, c_out, 1), _bn(c_out), nn.ReLU(True)]
    return nn.Sequential(*(m for m in layers if relu or not isinstance(m, nn.ReLU)))


class _XceptionBlock(nn.Module):
    """Three separable convolutions, each after a ReLU, beside a shortcut; the last has the stride.

    DeepLabv3+'s form of Xception: strides in place of max-pooling, BatchNorm after depthwise too.
    """

    def __init__(self, c_in: int, widths: tuple[int, int, int], stride: int) -> None:
        super().__init__()
        a, b, c = widths
        self.convs = nn.Sequential(
            nn.ReLU(), _separable(c_in, a, relu=False),
            nn.ReLU(), _separable(a, b, relu=False),
            nn.ReLU(), _separable(b, c, stride, relu=False),
        )  # fmt: skip
        changes = stride != 1 or c_in != c
        self.skip = nn.Sequential(_conv(c_in, c, 1, stride), _bn(c)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.convs(x)


@_register("xception65")
class Xception65(Backbone):
    """Xception-65: Chollet, CVPR 2017, as changed by Chen et al., ECCV 2018 (figure 4)."""

    def __init__(self, shape: Shape, *, width: int = FULL) -> None:
        super().__init__()

        def block(c_in: int, a: int, b: int, c: int, stride: int) -> _XceptionBlock:
            return _XceptionBlock(w(c_in), (w(a), w(b), w(c)), stride)

        def w(channels: int) -> int:
            return max(1, round(channels * width / FULL))

        self.stem = nn.Sequential(_conv_bn(shape[0], w(32), 3, 2), _conv_bn(w(32), w(64)))
        self.entry1 = block(64, 128, 128, 128, 2)
        self.entry2 = block(128, 256, 256, 256, 2)
        self.entry3 = block(256, 728, 728, 728, 2)
        self.middle = nn.Sequential(*(block(728, 728, 728, 728, 1) for _ in range(16)))
        self.exit = nn.Sequential(
            block(728, 728, 1024, 1024, 2),
            nn.ReLU(),
            _separable(w(1024), w(1536)),
            _separable(w(1536), w(1536)),
            _separable(w(1536), w(2048)),
        )
        self.dim, self.low_dim = w(2048), w(128)
        _he(self)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The map at stride 4 and the last map."""
        low = self.entry1(self.stem(x))
        return low, self.exit(self.middle(self.entry3(self.entry2(low))))

    def stages(self) -> tuple[list[nn.Module], list[nn.Module]]:
        return [self.entry3, self.middle], [self.exit]

    def forward(self, x: Tensor) -> Tensor:
        return _pool(self.maps(x)[1])


def _dilate(stages: list[nn.Module], rate: int = 1) -> None:
    """Dilation in place of stride: the same weights see the same pixels, on a finer map.

    Chen et al., ECCV 2018. What comes after a stride that was taken away is dilated once more.
    """
    for stage in stages:
        for layer in stage.modules():
            if isinstance(layer, nn.Conv2d):
                if layer.kernel_size == (3, 3):
                    layer.dilation = layer.padding = (rate, rate)
                    rate *= layer.stride[0]
                layer.stride = (1, 1)


class _ASPP(nn.Module):
    """Atrous spatial pyramid pooling with separable convolutions, and the image's mean."""

    def __init__(self, c_in: int, c_out: int, rates: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.point = _conv_bn(c_in, c_out, 1)
        self.atrous = nn.ModuleList(_separable(c_in, c_out) for _ in rates)
        for branch, rate in zip(self.atrous, rates, strict=True):
            _dilate([branch], rate)
        # No BatchNorm here: with one image in the batch it would have one value a channel.
        self.image = nn.Sequential(nn.Conv2d(c_in, c_out, 1), nn.ReLU(True))
        self.join = nn.Sequential(_conv_bn((2 + len(rates)) * c_out, c_out, 1), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        image = self.image(x.mean((-2, -1), keepdim=True)).expand(-1, -1, *x.shape[-2:])
        return self.join(torch.cat([self.point(x), *(b(x) for b in self.atrous), image], 1))


@_register("deeplab")
class DeepLab(Backbone):
    """DeepLabv3+ (Chen et al., ECCV 2018) up to its last layer: [B, C, H, W] -> [B, H/4, W/4, dim].

    Sides that 4 does not divide are rounded up. features: channels of ASPP and decoder (= dim).
    """

    stride = 4

    def __init__(
        self,
        shape: Shape,
        *,
        encoder: Literal["resnet18", "resnet34", "resnet50", "xception65"] = "resnet18",
        width: int = FULL,
        features: int = 256,
        output_stride: Literal[16, 8] = 16,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        stem = {} if encoder == "xception65" else {"stem": "imagenet"}
        net: Any = create_backbone(encoder, shape, width=width, **stem)
        at16, at32 = net.stages()
        _dilate(at32 if output_stride == 16 else at16 + at32)
        self.encoder, self.dim = net, features
        rates = tuple(r * 16 // output_stride for r in (6, 12, 18))
        self.aspp = _ASPP(net.dim, features, rates, dropout)
        reduced = max(1, features * 48 // 256)  # the paper's 48 beside its 256
        self.low = _conv_bn(net.low_dim, reduced, 1)
        self.decoder = nn.Sequential(
            _separable(features + reduced, features), _separable(features, features)
        )
        for part in (self.aspp, self.low, self.decoder):
            _he(part)

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.encoder.maps(x)
        high = F.interpolate(
            self.aspp(high), size=low.shape[-2:], mode="bilinear", align_corners=False
        )
        return _pixels_last(self.decoder(torch.cat([high, self.low(low)], 1)))


@_register("unet")
class UNet(Backbone):
    """U-Net (Ronneberger et al., MICCAI 2015), padded, with BatchNorm: -> [B, H, W, width].

    Any size: pooling rounds up and what upsampling adds is cut off again. depth: of poolings.
    """

    def __init__(
        self, shape: Shape, *, width: int = 32, depth: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()

        def double(c_in: int, c_out: int) -> nn.Sequential:
            return nn.Sequential(_conv_bn(c_in, c_out), _conv_bn(c_out, c_out))

        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double(a, b) for a, b in zip([shape[0], *widths], widths, strict=False)
        )
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(double(2 * b, b) for _, b in pairs)
        self.pool, self.dropout = nn.MaxPool2d(2, ceil_mode=True), nn.Dropout2d(dropout)
        self.dim = width
        _he(self)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, double in enumerate(self.down):
            x = double(self.pool(x) if level else x)
            skips.append(x)
        x = self.dropout(skips.pop())
        for up, merge in zip(self.up, self.merge, strict=True):
            skip = skips.pop()
            x = up(x)[..., : skip.shape[-2], : skip.shape[-1]]
            x = merge(torch.cat([skip, x], 1))
        return _pixels_last(x)
