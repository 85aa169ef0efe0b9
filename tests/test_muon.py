"""Muon against singular values and loops in float64, and which weights it is given."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ytilde.data import Data
from ytilde.engine import Recipe
from ytilde.engine.muon import Muon, orthogonal
from ytilde.engine.optim import make_groups, make_optimizers
from ytilde.fitting import fit_method
from ytilde.method import create
from ytilde.testing import blobs


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_orthogonal(G):
    """The polynomial of the iterations, on the singular values."""
    U, s, Vt = np.linalg.svd(np.asarray(G, np.float64), full_matrices=False)
    s = s / (np.sqrt((s**2).sum()) + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return U * s @ Vt


@pytest.mark.parametrize("shape", [(6, 6), (4, 27), (40, 9), (1, 5)])
def test_all_directions_become_alike(shape):
    G = draw(3, *shape)
    got = orthogonal(G)
    for one, out in zip(G, got, strict=True):
        np.testing.assert_allclose(out.numpy(), slow_orthogonal(one), atol=2e-5)
        s = torch.linalg.svdvals(out)
        assert s.max() < 1.25 and s[torch.linalg.svdvals(one) > 0.1].min() > 0.6
        torch.testing.assert_close(orthogonal(1000 * one[None])[0], out, atol=1e-4, rtol=1e-4)


def test_no_gradient_is_no_step():
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_against_loops(nesterov):
    """Convolutions, two of them of one shape, with two groups of their own settings."""
    params = [nn.Parameter(draw(*shape, seed=k)) for k, shape in enumerate(
        [(4, 3, 3, 3), (4, 3, 3, 3), (5, 2, 1, 1), (6, 4)]
    )]  # fmt: skip
    settings = [{"lr": 0.1, "weight_decay": 0.3}, {"lr": torch.tensor(0.02)}]
    owned = (params[:3], params[3:])
    groups = [{"params": ps, **own} for ps, own in zip(owned, settings, strict=True)]
    optimizer = Muon([dict(g, momentum=0.8, nesterov=nesterov) for g in groups])
    slow = [p.detach().double().numpy() for p in params]
    averages = [0.0] * len(params)
    for t in range(4):
        for k, p in enumerate(params):
            g = draw(*p.shape, seed=10 * t + k)
            p.grad = g
            averages[k] = 0.8 * averages[k] + 0.2 * g.double().numpy()
            ahead = 0.2 * g.double().numpy() + 0.8 * averages[k] if nesterov else averages[k]
            lr, decay = ((0.1, 0.3), (0.02, 0.0))[k == 3]
            rows, columns = p.shape[0], p[0].numel()
            step = slow_orthogonal(ahead.reshape(rows, columns)).reshape(p.shape)
            size = 0.2 * max(rows, columns) ** 0.5
            slow[k] = (1 - lr * decay) * slow[k] - lr * size * step
        optimizer.step()
    for p, want in zip(params, slow, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), want, atol=2e-5)


def test_a_step_is_as_long_as_adams_in_the_mean():
    p = nn.Parameter(torch.zeros(16, 8, 3, 3))
    p.grad = draw(*p.shape)
    Muon([{"params": [p]}], lr=0.01).step()
    assert 0.7 < p.detach().square().mean().sqrt() / (0.2 * 0.01) < 1.2


@pytest.mark.parametrize("shape", [(32, 200), (64, 16)])
def test_agrees_with_torchs_own_on_matrices(shape):
    """To the precision of bfloat16, in which torch's iterates."""
    settings = {"momentum": 0.9, "weight_decay": 0.1, "lr": 0.01}
    start = draw(*shape)
    own, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [
        Muon([{"params": [own], **settings}]),
        torch.optim.Muon([theirs], nesterov=True, adjust_lr_fn="match_rms_adamw", **settings),
    ]
    for t in range(5):
        own.grad, theirs.grad = draw(*shape, seed=t), draw(*shape, seed=t)
        for optimizer in optimizers:
            optimizer.step()
    assert (own - theirs).norm() < 0.02 * (own - start).norm()


def test_a_weight_without_a_gradient_stays():
    p, other = nn.Parameter(draw(3, 4)), nn.Parameter(draw(3, 4, seed=1))
    other.grad = draw(3, 4, seed=2)
    kept = p.detach().clone()
    optimizer = Muon([{"params": [p]}, {"params": [other], "weight_decay": 0.1}], lr=0.1)
    optimizer.step()
    assert torch.equal(p, kept) and p not in optimizer.state


def test_convolutions_are_given_to_muon_and_the_rest_to_adamw():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    recipe = Recipe(optimizer="muon", lr=0.01, weight_decay=0.1, momentum=0.7)
    groups = make_groups([{"params": list(net.parameters()), "lr": 0.02}], recipe)
    muon, rest = make_optimizers(groups, recipe, torch.device("cpu"))
    assert isinstance(muon, Muon) and isinstance(rest, torch.optim.AdamW)
    own, others = muon.param_groups[0], rest.param_groups[0]
    assert [p.shape for p in own["params"]] == [net[0].weight.shape]
    assert len(others["params"]) == 5
    for group in (own, others):
        assert (group["lr"], group["weight_decay"]) == (0.02, 0.1)
    assert (own["momentum"], own["nesterov"], others["betas"]) == (0.7, True, (0.7, 0.999))


def test_a_network_without_convolutions_is_trained_by_adamw():
    nets = []
    for optimizer in ("muon", "adamw"):
        method = create("ce")
        recipe = Recipe(epochs=2, batch_size=40, lr=0.01, optimizer=optimizer, device="cpu")
        fit_method(method, blobs(), recipe, backbone="mlp:width=8,depth=1")
        nets.append(method.state_dict())
    assert all(torch.equal(value, nets[1][key]) for key, value in nets[0].items())


def test_it_learns_and_resumes_to_the_same_bits(tmp_path):
    """Small pictures whose class is where they are bright."""
    y = torch.arange(60) % 3
    bright = nn.functional.one_hot(y, 3).repeat_interleave(4, dim=1)  # [60, 12]
    x = 0.3 * draw(60, 1, 12, 12) + bright[:, None, None]
    data = Data(x, y, 3)
    recipe = Recipe(epochs=4, batch_size=20, optimizer="muon", lr=0.02, val=0.0, device="cpu")

    def stop(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    def run(folder, **options):
        method = create("ce")
        trainer = fit_method(
            method, data, recipe, backbone="lenet5", folder=tmp_path / folder, **options
        )
        return trainer, method.state_dict()

    trainer, whole = run("whole")
    assert trainer.score(data)["accuracy"] > 0.9
    slower = replace(recipe, optimizer="adamw", lr=0.0)
    assert fit_method(create("ce"), data, slower, backbone="lenet5").score(data)["accuracy"] < 0.7
    with pytest.raises(KeyboardInterrupt):
        run("cut", on_record=stop)
    _, resumed = run("cut", resume=True)
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())
