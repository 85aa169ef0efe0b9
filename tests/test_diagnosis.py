"""The diagnosis: leave-one-out by hand, what its test finds and what not, and its words."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

from ytilde import BadInput, diagnose, noise
from ytilde.auditing.dependence import dependence
from ytilde.auditing.diagnosis import diagnose_data
from ytilde.auditing.kernel import Ridge, fit_kernel, kernel_features
from ytilde.data import Data


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x).float()[:1000], torch.from_numpy(y)[:1000]


def test_leave_one_out_is_refitting_without_the_row():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    Y = torch.nn.functional.one_hot(torch.randint(0, 3, (12,), generator=generator), 3).double()
    (ridge,) = Ridge.of(x, (0.7,))
    got, prior = ridge.leave_one_out(Y), Y.mean(0)
    assert torch.allclose(got.sum(1), torch.ones(12, dtype=torch.float64))
    for i in range(12):
        rest = [j for j in range(12) if j != i]
        A = x[rest].T @ x[rest] + 0.7 * torch.eye(3, dtype=torch.float64)
        weights = torch.linalg.solve(A, x[rest].T @ (Y - prior)[rest])
        assert torch.allclose(got[i], x[i] @ weights + prior, atol=1e-9)


def test_the_features_of_a_kernel_multiply_to_it():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    features = kernel_features(x, 40, generator)
    distance = torch.cdist(x, x).square()
    width = 2 * distance.topk(11, largest=False).values[:, -1].median()
    assert torch.allclose(features @ features.T, torch.exp(-distance / width), atol=1e-3)


def asked(x, y, num_classes, seed=0, draws=39):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.as_tensor(x).float(), torch.as_tensor(y)
    model = fit_kernel(x, y, num_classes, generator)
    return dependence(x, y, num_classes, model=model, draws=draws, generator=generator)


def test_finds_instance_noise_and_not_class_noise(digits):
    x, clean = digits
    generator = torch.Generator().manual_seed(3)
    p = {}
    for text in ("instance:0.35", "symmetric:0.35", "pair:0.25"):
        y = noise.corrupt(text, x, clean, 10, generator=generator).y
        p[text] = asked(x, y, 10).p_value
    assert p["instance:0.35"] <= 0.05 < min(p["symmetric:0.35"], p["pair:0.25"])


@pytest.mark.parametrize(("apart", "region"), [(6.0, True), (6.0, False), (2.0, False)])
def test_finds_noise_that_is_six_times_likelier_in_a_region(apart, region):
    """Labels go from any class to any other, so that the classes' sizes give nothing away; and
    where classes overlap the model's errors, which lie in places too, are not taken for noise."""
    rng, n = np.random.default_rng(0), 4000
    truth = np.arange(n) % 2
    x = rng.normal(size=(n, 4))
    x[:, 0] += apart * truth
    rate = np.where(x[:, 2] > 0.8, 0.3, 0.05) if region else 0.15
    y = np.where(rng.random(n) < rate, 1 - truth, truth)
    found = asked(x, y, 2)
    assert found.conclusive and (found.p_value <= 0.05) == region


def test_features_that_say_nothing_of_the_class_do_not_hide_those_that_do():
    """Exclusive or of two of ten features: no feature alone tells the class."""
    x = torch.randn(1500, 10, generator=torch.Generator().manual_seed(0))
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()
    model = fit_kernel(x, y, 2, torch.Generator().manual_seed(0))
    Y = torch.nn.functional.one_hot(y, 2).float()
    assert (model.leave_one_out(Y).argmax(1) == y).float().mean() > 0.93


def test_tells_rate_classes_and_method(digits, tmp_path):
    x, clean = digits
    made = noise.corrupt("pair:0.3", x, clean, 10, generator=torch.Generator().manual_seed(0))
    found = diagnose(x.numpy(), made.y.numpy(), draws=19, heads=False)
    rate = found.audit.noise_rate
    assert rate.low <= made.rate <= rate.high and abs(rate - made.rate) < 0.05
    top = found.audit.pairs.head(5)  # class i is given as i + 1
    assert ((top.given_label - top.predicted_label) % 10 == 1).all()
    assert found.method is None and "go to one other class" in found.summary()
    found.to_json(tmp_path / "d.json")
    told = json.loads((tmp_path / "d.json").read_text())
    assert told["noise_rate"]["value"] == pytest.approx(float(rate)) and told["rows"] == 1000


def test_clean_labels_need_no_robust_method(digits):
    x, clean = digits
    found = diagnose(x, clean, draws=9, heads=False)
    assert found.audit.noise_rate < 0.03 and not found.dependence.conclusive
    assert "cannot be told" in found.summary()
    assert found.method is None and "No method is needed" in found.summary()


def test_heads_are_compared_on_held_out_labels(digits):
    x, clean = digits
    found = diagnose(x[:400], clean[:400], draws=4, heads=True)
    assert found.heteroscedastic is not None and found.heteroscedastic.rows == 400
    assert 0 <= found.heteroscedastic.p_value <= 1 and "heteroscedastic" in found.summary()


def test_same_seed_same_answer_and_no_global_state(digits):
    x, clean = digits
    state = torch.get_rng_state()
    first, second = (diagnose(x, clean, draws=5, heads=False, most=300, seed=4) for _ in range(2))
    assert first.dependence == second.dependence and first.rows == 300
    assert any("300 of 1000" in note for note in first.notes)
    assert torch.equal(state, torch.get_rng_state())


def test_pictures_are_seen_by_a_network_that_knows_not_their_labels():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(260) % 2
    x = 0.2 * torch.rand(260, 3, 8, 8, generator=generator) + 0.7 * y[:, None, None, None]
    data = Data((255 * x).clamp(0, 255).to(torch.uint8), y, 2, names=("day", "night"))
    found = diagnose_data(data, draws=3, heads=False)
    assert found.rows == 130 and found.of == 260
    assert any("other half" in note for note in found.notes)


def test_names_and_missing_labels(digits):
    x, clean = digits
    text = np.array([f"n{int(c)}" for c in clean])
    assert "n" in str(diagnose(x, text, draws=3, heads=False).audit.per_class.label[0])
    missing = clean.clone()
    missing[:50] = -1
    found = diagnose(x, missing, draws=3, heads=False)
    assert found.rows == 950 and "50 of 1000 rows have no label (-1)." in found.notes
    found = diagnose_data(Data(x, missing, 10), draws=3, heads=False)
    assert found.rows == 950 and found.of == 1000
    assert found.notes.count("50 of 1000 rows have no label (-1).") == 1


def test_minus_one_that_was_meant_as_a_class_is_refused(digits):
    x, clean = digits
    with pytest.raises(BadInput, match=r"code the classes as 0 to 1\.$"):
        diagnose(x, torch.where(clean > 4, 1, -1))
    with pytest.raises(BadInput, match=r"class 2 in no row; code the classes as 0 to 2\.$"):
        diagnose(x, clean % 3 - 1, names=["bad", "so", "good"])


def test_a_column_of_texts_is_a_category():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    frame = pd.DataFrame({"town": np.where(y, "Bern", "Uri"), "age": rng.normal(size=400)})
    labels = np.where(rng.random(400) < 0.1, 1 - y, y)
    shuffled = frame.set_index(rng.permutation(400))
    found = diagnose(shuffled, labels, draws=3, heads=False)
    assert found.audit.issues.p_wrong[labels != y].min() > 0.5
    with pytest.raises(BadInput, match=r"'when' .* holds complex.*numbers or leave it out"):
        diagnose(frame.assign(when=1j), labels)
    with pytest.raises(BadInput, match="hold object instead of numbers"):
        diagnose(frame.to_numpy(), labels)


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        (np.zeros((200, 3)), np.zeros(100), "one label per row"),
        (np.full((200, 3), np.nan), np.arange(200) % 2, "NaN"),
        (np.zeros((20, 3)), np.arange(20) % 2, "at least 100"),
        (np.zeros((200, 3)), np.zeros(200, dtype=int), "at least 100"),
    ],
)
def test_bad_input_in_a_sentence(features, labels, words):
    with pytest.raises(BadInput, match=words):
        diagnose(features, labels)


def test_advice_follows_the_evidence(digits):
    x, clean = digits
    made = noise.corrupt("instance:0.4", x, clean, 10, generator=torch.Generator().manual_seed(0))
    found = diagnose(x, made.y, draws=39, heads=False)
    assert found.method == "second_opinion" and "The noise depends on the input" in found.summary()
    assert "Use second_opinion, the default" in found.reasons[-1]


def test_what_cannot_be_told_is_not_told(tmp_path):
    """Of labels that have nothing to do with the features it named a rate and the worst class."""
    rng = np.random.default_rng(0)
    found = diagnose(rng.normal(size=(300, 4)), rng.integers(0, 3, 300), draws=9, heads=False)
    assert "no more than chance" in found.summary() and "%" not in found.summary()
    assert found.method is None and "No method is advised" in found.summary()
    found.to_json(tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text())["at_chance"] is True


def test_labels_beyond_the_names_are_refused():
    x, y = torch.rand(150, 2), torch.arange(150) % 3
    with pytest.raises(BadInput, match=r"classes 0 to 1.* not 0\.\.2"):
        diagnose(x, y, names=["a", "b"])
    with pytest.raises(BadInput, match="from 0 on"):
        diagnose(x, y - 5)


def test_few_pictures_are_refused_before_a_network_is_trained():
    data = Data(torch.rand(150, 3, 8, 8), torch.arange(150) % 2, 2)
    with pytest.raises(BadInput, match=r"at least 200 labelled ones.* not 150"):
        diagnose_data(data)
