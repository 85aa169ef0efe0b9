"""Ensemble: two pairs of networks in one training, each as second_opinion trains it alone."""

import pytest
import torch

from ytilde import Classifier
from ytilde.data import BadInput, Batch, Data, StepInfo
from ytilde.losses import one_hot
from ytilde.method import create, fit_method, make_spec
from ytilde.methods.ensemble import LARGER, Ensemble
from ytilde.methods.second_opinion import SecondOpinion
from ytilde.testing import BACKBONE, RECIPE, blobs


def built(data, backbone=BACKBONE, **fields):
    method = create("ensemble", **fields)
    torch.manual_seed(0)
    method.build(make_spec(data, backbone, RECIPE))
    return method


def layers(net):
    """The sizes of a network's matrices."""
    return [tuple(p.shape) for p in net.backbone.parameters() if p.dim() > 1]


def test_the_second_pair_is_larger_for_vectors_alone():
    method = built(blobs(n=24), "mlp:width=8,depth=1")
    assert layers(method.net) == layers(method.peer) == [(8, 6)]
    other = method.other
    assert layers(other.net) == layers(other.peer) == [(256, 6), (256, 256)]
    assert LARGER == "mlp:width=256,depth=2"
    pictures = Data(torch.rand(12, 1, 12, 12), torch.arange(12) % 3, 3)
    method = built(pictures, "lenet5")
    assert layers(method.other.net) == layers(method.net)
    method = built(blobs(n=24), network="mlp:width=5,depth=1")
    assert layers(method.other.net) == [(5, 6)]


def test_an_unknown_network_is_refused():
    with pytest.raises(BadInput, match="nonsense"):
        built(blobs(n=24), network="nonsense")


def test_the_fields_are_those_of_both_pairs():
    fields = {"warm_up": 0.25, "exponent": 2.0, "memory": 0.5, "prior": 0.3, "decay": 0.9}
    method = built(blobs(n=24), **fields)
    assert type(method.other) is SecondOpinion
    assert fields.items() <= method.other.get_params().items()


def test_the_loss_is_the_sum_of_two_methods_that_do_not_hear_each_other():
    data = blobs(n=24)
    method = built(data)
    for pair in (method, method.other):
        pair.taught.copy_(one_hot(data.y, pair.taught[0]))  # as fit does
    batch = Batch(data.x, data.y, torch.arange(24))

    def step():
        generator = torch.Generator().manual_seed(3)
        return StepInfo(torch.tensor(50.0), 100, generator, lambda x: x)

    state = {name: value.clone() for name, value in method.state_dict().items()}
    value = method.loss(batch, step())
    value.backward()
    got = [p.grad.clone() for p in method.param_groups()]
    method.load_state_dict(state)
    method.zero_grad()
    same = step()
    alone = SecondOpinion.loss(method, batch, same) + method.other.loss(batch, same)
    torch.testing.assert_close(value, alone)
    alone.backward()
    assert len(got) == len({id(p) for p in method.param_groups()}) == 4 + 4 + 6 + 6
    for grad, p in zip(got, method.param_groups(), strict=True):
        torch.testing.assert_close(grad, p.grad)
    for pair in (method, method.other):
        assert any(p.grad.abs().sum() > 0 for p in pair.peer.parameters())


def test_it_predicts_the_geometric_mean_of_four_averages_and_the_mean_T():
    data = blobs(n=60, rate=0.3)
    trainer = fit_method(create("ensemble"), data, RECIPE, backbone=BACKBONE)
    method, first, other = trainer.method, trainer.method, trainer.method.other
    method.eval()
    x = 3 * torch.randn(7, *method.spec.shape, generator=torch.Generator().manual_seed(0))
    nets = (first.average, first.peer_average, other.average, other.peer_average)
    with torch.no_grad():
        product = torch.stack([net(x).double().softmax(-1) for net in nets]).prod(0) ** 0.25
        got = method.predict_proba(x).double()
    torch.testing.assert_close(got, product / product.sum(1, keepdim=True))
    assert not torch.equal(first.T, other.T)
    torch.testing.assert_close(method.transition(None), (first.T + other.T) / 2)


def test_each_pair_learns_what_it_would_alone(monkeypatch):
    """The second pair draws nothing here: the first is then, bit by bit, second_opinion's."""
    data = blobs(n=60, rate=0.3)
    alone = fit_method(create("second_opinion"), data, RECIPE, backbone=BACKBONE).method
    draws = torch.Generator().manual_seed(9)
    loss = SecondOpinion.loss

    def own_draws(self, batch, step):
        if isinstance(self, Ensemble):
            return loss(self, batch, step)
        return loss(self, batch, StepInfo(step.epoch, step.epochs, draws, step.augment))

    monkeypatch.setattr(SecondOpinion, "loss", own_draws)
    both = fit_method(create("ensemble"), data, RECIPE, backbone=BACKBONE).method
    for name in ("means", "T", "taught", "frequency"):
        torch.testing.assert_close(getattr(both, name), getattr(alone, name))
    for p, q in zip(both.slow, alone.slow, strict=True):
        torch.testing.assert_close(p, q)
    assert not torch.equal(both.other.means, both.means) and both.other.opinions.all().sum() > 0


def test_a_saved_ensemble_predicts_the_same(tmp_path):
    data = blobs(n=120)
    x, y = data.x.numpy(), data.y.numpy()
    clf = Classifier("ensemble", "mlp:width=8,depth=1", epochs=2, random_state=0).fit(x, y)
    clf.save(tmp_path / "model.safetensors")
    again = Classifier.load(tmp_path / "model.safetensors")
    assert (again.predict_proba(x) == clf.predict_proba(x)).all()
