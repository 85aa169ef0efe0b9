"""Grids of images: grey and colour, bytes and floats, what is drawn where; the benchmark's page."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from ytilde import create
from ytilde.data import BadInput, Data
from ytilde.engine import Recipe
from ytilde.fitting import fit_method
from ytilde.plotting import plot_images

ROOT = Path(__file__).parents[1]


def drawn(figure):
    """{(row, column): what imshow was given} of the axes that hold an image."""
    places = [(ax.get_subplotspec(), ax.get_images()) for ax in figure.axes]
    return {
        (place.rowspan.start, place.colspan.start): np.asarray(images[0].get_array())
        for place, images in places
        if images
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_images_lie_where_they_belong(channels):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(3, channels, 5, 4, generator=g)
    rows = {"first": x, "second": 1 - x[:2]}
    figure = plot_images(rows, ["a", "b", "c"])
    found = drawn(figure)
    assert set(found) == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}
    for (row, column), image in found.items():
        for i in range(5):
            for j in range(4):
                pixel = list(rows.values())[row][column, :, i, j].numpy()
                np.testing.assert_allclose(np.atleast_1d(image[i, j]), pixel, rtol=1e-6)
    words = [t.get_text() for ax in figure.axes for t in ax.texts]
    assert words == ["first", "second"]
    assert [ax.get_title() for ax in figure.axes[:3]] == ["a", "b", "c"]


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_and_floats_are_the_same_picture(channels):
    x = torch.randint(256, (2, channels, 4, 4), dtype=torch.uint8)
    one, two = drawn(plot_images({"x": x})), drawn(plot_images({"x": x.double() / 255}))
    for place in one:
        np.testing.assert_allclose(one[place], two[place])
    white = drawn(plot_images({"x": torch.full((1, channels, 2, 2), 1.5)}))[0, 0]
    assert (white == 1).all()


def test_other_shapes_are_refused():
    for shape in ((3, 8, 8), (2, 2, 8, 8), (4, 8, 8, 3)):
        with pytest.raises(BadInput, match="1 or 3 channels"):
            plot_images({"x": torch.zeros(shape)})


@pytest.mark.parametrize("channels", [1, 3])
def test_causal_posterior_draws_grey_and_colour(channels, tmp_path):
    path = ROOT / "benchmarks" / "causal_posterior.py"
    spec = importlib.util.spec_from_file_location("causal_posterior", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (24, channels, 16, 16), generator=g, dtype=torch.uint8)
    data = Data(x, torch.arange(24) % 3, 3)
    method = create("causal_nl", rate=0.2, z_dim=2)
    fit_method(method, data, Recipe(epochs=1, val=0.0), backbone="lenet5")
    benchmark.draw(method, data, tmp_path / "picture.png", shown=4)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
