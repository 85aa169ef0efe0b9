"""Where the files of the named sets come from, and their digests as `sha256sum` prints them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    url: str  # the folder of the files, by https
    sha256: dict[str, str]  # file -> digest
    folder: str  # where they belong below `to`; for a tar: the folder that it holds


def _listed(text: str) -> dict[str, str]:
    lines = (line.split() for line in text.splitlines() if line)
    return {name: digest for digest, name in lines}


_MNIST = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz
"""
_FASHION_MNIST = """
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845  train-labels-idx1-ubyte.gz
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073  t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5  t10k-labels-idx1-ubyte.gz
"""
_CIFAR10 = """
c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd  cifar-10-binary.tar.gz
"""
_CIFAR100 = """
58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec  cifar-100-binary.tar.gz
"""
_SVHN = """
435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8  train_32x32.mat
cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b  test_32x32.mat
"""
_VOC2012 = """
e14f763270cf193d0b5f74b169f44157a4b0c6efa708f4dd0ff78ee691763bcb  VOCtrainval_11-May-2012.tar
"""
SOURCES = {
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        _listed(_MNIST),
        "MNIST/raw",
    ),
    "fashion-mnist": Download(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        _listed(_FASHION_MNIST),
        "FashionMNIST/raw",
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/",
        _listed(_CIFAR10),
        "cifar-10-batches-bin",
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz/",
        _listed(_CIFAR100),
        "cifar-100-binary",
    ),
    "svhn": Download(
        "https://ufldl.stanford.edu/housenumbers/",
        _listed(_SVHN),
        "svhn",
    ),
    "voc2012": Download(
        "https://thor.robots.ox.ac.uk/pascal/VOC/voc2012/",
        _listed(_VOC2012),
        "VOCdevkit/VOC2012",
    ),
}
_CIFAR_N = "at github.com/UCSC-REAL/cifar-10-100n (CIFAR-10_human.pt, CIFAR-100_human.pt)"
ON_REQUEST = {  # sets that their publishers give on request, or that have no published digest
    "cifar10n": _CIFAR_N,
    "cifar100n": _CIFAR_N,
    "camvid": "at mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid",
    "cityscapes": "at www.cityscapes-dataset.com (leftImg8bit and gtFine)",
    "clothing1m": "from its authors, see github.com/Cysu/noisy_label",
    "webvision": "at data.vision.ee.ethz.ch/cvl/webvision/download.html (version 1.0)",
    "ilsvrc12": "at www.image-net.org (validation images and the development kit)",
}


def source_of(name: str) -> str:
    return name if name in SOURCES else name.split("-")[0]  # cifar100-coarse, webvision-50


def origin(name: str) -> str:
    """How one comes by the files of a named set."""
    key = source_of(name)
    if key in ON_REQUEST:
        return f"ask for it {ON_REQUEST[key]}"
    return f"`ytilde data {name}`" if key in SOURCES else "made here, it needs no files"
