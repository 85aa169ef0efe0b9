"""Where the files of the named sets come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    url: str  # the folder of the files
    md5: dict[str, str]  # file -> digest, as published
    folder: str  # where they belong below `to`; for a tar: the folder that it holds


SOURCES = {
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        "MNIST/raw",
    ),
    "fashion-mnist": Download(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "FashionMNIST/raw",
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar-10-batches-bin",
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        "cifar-100-binary",
    ),
    "svhn": Download(
        "http://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
        "svhn",
    ),
    "voc2012": Download(
        "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
        {"VOCtrainval_11-May-2012.tar": "6cd6e144f989b92b3379bac3b3de84fd"},
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
