"""Parts that several networks are made of."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .weights import is_pretrained

batch_norm = nn.BatchNorm2d


def he_init(net: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """He-normal convolutions. Depthwise ones by fan-in: torch's fan-out forgets the groups."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(
                layer.weight, mode="fan_in" if layer.groups > 1 else mode, nonlinearity="relu"
            )
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def glorot_init(net: nn.Module) -> None:
    """Weights by Glorot's rule and biases of 0, as Keras draws them; pre-trained ones stay.

    Fan-in and fan-out of a convolution count its window.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and not is_pretrained(layer.weight):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def conv(c_in: int, c_out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, size, stride, size // 2, groups=groups, bias=False)


def conv_bn(c_in: int, c_out: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(conv(c_in, c_out, size, stride), batch_norm(c_out), nn.ReLU(True))


def mean_pool(x: Tensor) -> Tensor:
    return x.mean((-2, -1))


def pixels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def separable(c_in: int, c_out: int, stride: int = 1, relu: bool = True) -> nn.Sequential:
    """3x3 depthwise, then pointwise, each with BatchNorm; ReLU after both or neither."""
    layers = [conv(c_in, c_in, 3, stride, groups=c_in), batch_norm(c_in), nn.ReLU(True)]
    layers += [conv(c_in, c_out, 1), batch_norm(c_out), nn.ReLU(True)]
    return nn.Sequential(*(m for m in layers if relu or not isinstance(m, nn.ReLU)))


def dilate(stages: list[nn.Module], rate: int = 1) -> None:
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
