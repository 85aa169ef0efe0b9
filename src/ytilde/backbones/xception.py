"""Xception-65."""

from __future__ import annotations

from torch import Tensor, nn

from .layers import batch_norm, conv, conv_bn, he_init, mean_pool, separable
from .registry import FULL, Backbone, Shape, register


class _XceptionBlock(nn.Module):
    """Three separable convolutions, each after a ReLU, beside a shortcut; the last has the stride.

    DeepLabv3+'s form of Xception: strides in place of max-pooling, BatchNorm after depthwise too.
    """

    def __init__(self, c_in: int, widths: tuple[int, int, int], stride: int) -> None:
        super().__init__()
        a, b, c = widths
        self.convs = nn.Sequential(
            nn.ReLU(), separable(c_in, a, relu=False),
            nn.ReLU(), separable(a, b, relu=False),
            nn.ReLU(), separable(b, c, stride, relu=False),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or c_in != c:
            self.skip = nn.Sequential(conv(c_in, c, 1, stride), batch_norm(c))

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.convs(x)


@register("xception65")
class Xception65(Backbone):
    """Xception-65: Chollet, CVPR 2017, as changed by Chen et al., ECCV 2018 (figure 4)."""

    def __init__(self, shape: Shape, *, width: int = FULL) -> None:
        super().__init__()

        def block(c_in: int, a: int, b: int, c: int, stride: int) -> _XceptionBlock:
            return _XceptionBlock(w(c_in), (w(a), w(b), w(c)), stride)

        def w(channels: int) -> int:
            return max(1, round(channels * width / FULL))

        self.stem = nn.Sequential(conv_bn(shape[0], w(32), 3, 2), conv_bn(w(32), w(64)))
        self.entry1 = block(64, 128, 128, 128, 2)
        self.entry2 = block(128, 256, 256, 256, 2)
        self.entry3 = block(256, 728, 728, 728, 2)
        self.middle = nn.Sequential(*(block(728, 728, 728, 728, 1) for _ in range(16)))
        self.exit = nn.Sequential(
            block(728, 728, 1024, 1024, 2),
            nn.ReLU(),
            separable(w(1024), w(1536)),
            separable(w(1536), w(1536)),
            separable(w(1536), w(2048)),
        )
        self.dim, self.low_dim = w(2048), w(128)
        he_init(self)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The map at stride 4 and the last map."""
        low = self.entry1(self.stem(x))
        return low, self.exit(self.middle(self.entry3(self.entry2(low))))

    def stages(self) -> tuple[list[nn.Module], list[nn.Module]]:
        return [self.entry3, self.middle], [self.exit]

    def forward(self, x: Tensor) -> Tensor:
        return mean_pool(self.maps(x)[1])
