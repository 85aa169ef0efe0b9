"""Several annotators: votes read, their consensus, how good each annotator is, and the crowd."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import beta
from typer.testing import CliRunner

from ytilde import Classifier, audit, create
from ytilde.annotators import (
    MODEL,
    choose,
    consensus,
    dawid_skene,
    find_consensus,
    majority,
    one_coin,
    skills,
    tables,
    with_model,
)
from ytilde.cli.commands import app
from ytilde.data import BadInput, Batch, Data
from ytilde.data.readers import fingerprint, read_votes
from ytilde.data.votes import Votes
from ytilde.engine import Recipe
from ytilde.fitting import fit_method, make_spec
from ytilde.methods.crowd import Crowd, single_votes
from ytilde.testing import BACKBONE, RECIPE, blobs


def random_table(seed: int) -> pd.DataFrame:
    """A long table: 2 to 5 classes, 3 to 14 annotators of mixed skill, 1 to 6 votes an item."""
    g = np.random.default_rng(seed)
    K, A, N = (int(g.integers(*span)) for span in ((2, 6), (3, 15), (20, 150)))
    clean, skill = g.integers(0, K, N), g.uniform(0.4, 0.95, A)
    rows = [
        (i, int(a), int(clean[i] if g.random() < skill[a] else g.integers(K)))
        for i in range(N)
        for a in g.choice(A, int(g.integers(1, min(A, 6) + 1)), replace=False)
    ]
    return pd.DataFrame(rows, columns=["task", "worker", "label"])


def make_crowd(clean: np.ndarray, K: int, seed: int, people: int = 12) -> tuple[Votes, np.ndarray]:
    """Votes by annotators of mixed skill, one of whom always says 0; and their accuracies."""
    g, N = np.random.default_rng(seed), len(clean)
    skill = g.uniform(max(0.4, 1 / K + 0.05), 0.95, people)  # nobody is worse than guessing
    T = np.where(np.eye(K, dtype=bool), skill[:, None, None], (1 - skill)[:, None, None] / (K - 1))
    T[0] = np.eye(K)[0]
    item = np.repeat(np.arange(N), g.integers(1, 5, N))
    annotator = g.integers(0, people, len(item))
    item, annotator = np.unique(np.stack([item, annotator]), axis=1)
    chance = T[annotator, clean[item]].cumsum(1)
    label = (g.random((len(item), 1)) < chance).argmax(1)
    names = [str(k) for k in range(K)]
    votes = Votes(
        item, annotator, label, list(map(str, range(N))), list(map(str, range(people))), names
    )
    return votes, (T.diagonal(axis1=1, axis2=2) * np.bincount(clean, minlength=K) / N).sum(1)


# ---- reading ------------------------------------------------------------------------------------


def as_dicts(votes: Votes) -> list[tuple[str, str, str]]:
    return sorted(
        (votes.items[i], votes.annotators[a], votes.names[j])
        for i, a, j in zip(votes.item, votes.annotator, votes.label, strict=True)
    )


LONG = pd.DataFrame(
    {"task": ["007", "007", "b"], "worker": ["Al", "Bo", "Al"], "label": ["cat", "dog", "dog"]}
)
SAID = [("007", "Al", "cat"), ("007", "Bo", "dog"), ("b", "Al", "dog")]


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "parquet", "frame", "other names", "wide csv", "wide"]
)
def test_every_form_says_the_same(tmp_path, kind):
    path, columns = tmp_path / f"votes.{kind}", {}
    wide = pd.DataFrame({"id": ["007", "b"], "Al": ["cat", "dog"], "Bo": ["dog", None]})
    if kind == "csv":
        LONG.to_csv(path, index=False)
    elif kind == "tsv":
        LONG.to_csv(path, index=False, sep="\t")
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        LONG.to_parquet(path)
    elif kind == "wide csv":
        path = tmp_path / "votes.csv"
        wide.to_csv(path, index=False)
    elif kind == "wide":
        path = wide.set_index("id")
    elif kind == "other names":
        path = LONG.set_axis(["what", "who", "said"], axis=1)
        columns = {"item": "what", "annotator": "who", "label": "said"}
    else:
        path = LONG
    assert as_dicts(read_votes(path, **columns)) == SAID


@pytest.mark.parametrize("gap", [-1, np.nan])
def test_matrices_have_gaps(gap):
    matrix = np.array([[0, 1, gap], [gap, gap, 2], [2, 0, 0]])
    said = [("0", "0", "0"), ("0", "1", "1"), ("1", "2", "2"), ("2", "0", "2"), ("2", "1", "0")]
    said.append(("2", "2", "0"))
    for form in (matrix, torch.as_tensor(matrix), matrix.tolist(), pd.DataFrame(matrix)):
        assert as_dicts(read_votes(form)) == said


def test_rows_with_one_vote_and_with_twenty_mix():
    matrix = np.full((3, 20), -1)
    matrix[0], matrix[1, 7], matrix[2, :2] = np.arange(20) % 2, 1, 0
    votes = read_votes(matrix)
    assert votes.padded().shape == (3, 20, 2)
    again = Votes.from_padded(votes.padded(), votes.annotators, votes.names)
    assert as_dicts(again) == as_dicts(votes)
    assert votes.padded()[1].tolist() == [[7, 1]] + 19 * [[-1, -1]]


def test_notes_on_votes():
    twice = pd.concat([LONG, LONG[:1], LONG[:1].assign(label=None)])
    notes = " ".join(read_votes(twice).notes)
    assert "1 row of the annotations without a label: taken as no vote" in notes
    assert "1 vote of the annotations by an annotator who had voted on the item before" in notes
    idle = np.array([[0, -1, 1], [1, -1, 0]])
    assert "1 annotator of the annotations without a vote left out" in read_votes(idle).notes[0]


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (LONG, {"item": "what"}, "There is no item column 'what' in the annotations"),
        (LONG.drop(columns="worker"), {}, "name those of items, annotators and labels"),
        (LONG.assign(task=""), {}, "There is no item in 3 rows"),
        (LONG, {"names": ["cat", "cow"]}, "'dog' in 2 rows .* not one of the 2 classes"),
        (LONG.assign(label=None), {}, "There is no vote in the annotations"),
        (LONG.assign(label="cat"), {}, "All votes of the annotations are alike"),
        (np.array([[0, 1], [-1, -1]]), {}, "There is no vote for 1 item of the annotations .'1'."),
        (np.zeros((3, 2, 2)), {}, "not an array of shape"),
        ("nowhere.csv", {}, "There is no file 'nowhere.csv' with annotations"),
        (__file__, {}, "is no table; give votes as a csv"),
        (pd.DataFrame({"id": [1, 2]}), {}, "There is no column of an annotator"),
        (pd.DataFrame({"id": [1, 1], "Al": [0, 1]}), {}, "items .* are not all different"),
    ],
)
def test_bad_votes_get_one_sentence(source, options, said):
    with pytest.raises(BadInput, match=said):
        read_votes(source, **options)


def test_votes_for_rows_that_are_not_there():
    votes = read_votes(LONG)
    with pytest.raises(BadInput, match=r"votes for 1 item that data.csv does not have .'b'"):
        votes.in_order_of(["007", "c"], "data.csv")
    with pytest.raises(BadInput, match=r"no vote for 1 item of data.csv .'c'"):
        votes.in_order_of(["007", "b", "c"], "data.csv")
    with pytest.raises(BadInput, match="not all different"):
        votes.in_order_of(["007", "b", "b"], "data.csv")
    assert votes.in_order_of(["b", "007"], "data.csv").per_item.tolist() == [1, 2]


# ---- consensus ----------------------------------------------------------------------------------


def slow_dawid_skene(table: pd.DataFrame, K: int, steps: int, shrink: float = 0.0):
    """The model's EM as it is written, a vote at a time."""
    N, A = table.task.max() + 1, table.worker.max() + 1
    votes = list(table.itertuples(index=False))
    q = np.zeros((N, K))
    for i, _, j in votes:
        q[i, j] += 1
    q /= q.sum(1, keepdims=True)

    def maximise():
        T = np.zeros((A, K, K))
        for i, a, j in votes:
            for k in range(K):
                T[a, k, j] += q[i, k]
        common = T.sum(0) + 0.5 * np.eye(K) + 0.5 / K
        for a in range(A):
            used = T[a].sum(0) > 0
            for k in range(K):
                if shrink:
                    T[a, k] += shrink * common[k] / common[k].sum()
                else:
                    T[a, k, used] = np.maximum(T[a, k, used], 1e-10)
                T[a, k] /= T[a, k].sum()
        return q.mean(0), T

    prior, T = maximise()
    for _ in range(steps):
        for i in range(N):
            q[i] = prior
        for i, a, j in votes:
            q[i] *= T[a, :, j]
        q /= q.sum(1, keepdims=True)
        prior, T = maximise()
    return q, prior, T


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shrink", [0.0, 2.0])
def test_dawid_skene_is_the_slow_one(seed, shrink):
    table = random_table(seed)
    found = dawid_skene(read_votes(table), shrink=shrink, steps=30, tolerance=-np.inf)
    K = table.label.nunique()
    order = [list(map(str, pd.unique(table.task))).index(str(i)) for i in range(len(found.probs))]
    q, prior, T = slow_dawid_skene(table, K, 30, shrink)
    np.testing.assert_allclose(found.probs[order], q, atol=1e-9)
    np.testing.assert_allclose(found.prior, prior, atol=1e-9)
    np.testing.assert_allclose(found.matrices, T, atol=1e-9)


@pytest.mark.skipif(
    importlib.util.find_spec("crowdkit") is None,
    reason="crowd-kit is not installed: it needs transformers and nltk, so it is no part of dev",
)
@pytest.mark.parametrize("seed", range(20))
def test_dawid_skene_is_that_of_crowd_kit(seed):
    from crowdkit.aggregation import DawidSkene

    table = random_table(seed)
    theirs = DawidSkene(n_iter=100, tol=-np.inf).fit(table)
    votes = read_votes(table)
    ours = dawid_skene(votes, steps=100, tolerance=-np.inf)
    tasks, classes = list(map(int, votes.items)), list(map(int, votes.names))
    assert theirs.labels_.loc[tasks].tolist() == [classes[k] for k in ours.probs.argmax(1)]
    np.testing.assert_allclose(theirs.probas_.loc[tasks, classes], ours.probs, atol=1e-9)
    their_T = np.zeros_like(ours.matrices)
    for (worker, label), row in theirs.errors_.iterrows():
        a, j = votes.annotators.index(str(worker)), classes.index(label)
        their_T[a, :, j] = row.loc[classes]
    np.testing.assert_allclose(ours.matrices, their_T, atol=1e-9)


def log_likelihood(votes, found):
    joint = np.log(np.maximum(found.prior, 1e-300))[None].repeat(len(votes.items), 0)
    log_T = np.log(np.maximum(found.matrices, 1e-300))
    np.add.at(joint, votes.item, log_T[votes.annotator, :, votes.label])
    return np.logaddexp.reduce(joint, axis=1).sum()


@pytest.mark.parametrize("seed", range(3))
def test_em_never_loses_likelihood(seed):
    votes = read_votes(random_table(seed))
    for fit in (dawid_skene, one_coin):
        found = (fit(votes, steps=n, tolerance=-np.inf) for n in range(1, 40))
        assert (np.diff([log_likelihood(votes, each) for each in found]) > -1e-8).all()


@pytest.mark.parametrize("fit", [dawid_skene, one_coin])
def test_em_stops_where_a_step_adds_little_to_the_likelihood_of_a_vote(fit):
    votes = read_votes(random_table(0))
    tried = [fit(votes, steps=n, tolerance=-np.inf) for n in range(60)]
    gained = np.diff([log_likelihood(votes, each) for each in tried]) / len(votes)
    last = int((gained < 1e-3).argmax()) + 2  # a step tells what the one before has gained
    assert 3 < last < 60
    assert np.array_equal(fit(votes, tolerance=1e-3).probs, tried[last].probs)


@pytest.mark.parametrize("method", ["dawid_skene", "majority", "one_coin"])
def test_perfect_annotators_give_their_votes(method):
    clean = np.arange(40) % 4
    found = find_consensus(np.stack([clean] * 3, 1), method)
    assert found.items.consensus_label.tolist() == [str(k) for k in clean]
    assert (found.items.consensus_prob > 0.999).all() and (found.votes.p_wrong < 1e-3).all()
    T = found.matrices.probability.to_numpy().reshape(3, 4, 4)
    np.testing.assert_allclose(T, np.stack([np.eye(4)] * 3), atol=1e-6)
    assert (found.annotators.accuracy_high > 0.95).all()


def test_entries_of_a_matrix_have_jeffreys_intervals():
    """One annotator, whose votes are the truth: all of a class in one entry, none in the others."""
    label = np.repeat([0, 1, 2], [3, 8, 20])
    table = find_consensus(label[:, None], "majority").matrices
    for row in table.itertuples():
        n = (label == int(row.true_label)).sum()
        hits = n if row.true_label == row.given_label else 0
        assert row.expected_votes == hits
        limits = beta(hits + 0.5, n - hits + 0.5).ppf([0.025, 0.975])
        assert (row.low, row.high) == pytest.approx(tuple(limits))


def test_agreement_is_the_share_of_votes_that_are_the_consensus():
    votes, _ = make_crowd(np.arange(90) % 3, 3, seed=1)
    found = find_consensus(votes)
    given = found.votes.assign(agrees=found.votes.label == found.votes.consensus_label)
    for by, table in (("annotator", found.annotators), ("item", found.items)):
        want = given.groupby(by).agrees.mean()[table[by]]
        np.testing.assert_allclose(table.agreement, want)


def test_remarks_tell_the_reliable_from_those_who_may_guess():
    """Of three classes, where the average vote is right in 70 %."""
    low, high = np.array([(0.2, 0.8), (0.38, 0.6), (0.39, 0.6), (0.69, 0.9), (0.7, 0.9)]).T
    table = pd.DataFrame({"accuracy_low": low, "accuracy_high": high})
    said = [tables.TOO_FEW, tables.GUESSING, "", "", tables.RELIABLE]
    assert tables._remarks(table, 0.7, 1 / 3).tolist() == said


@pytest.mark.parametrize("method", ["dawid_skene", "majority", "one_coin"])
def test_one_annotator_gives_their_labels(method):
    label = np.random.default_rng(0).integers(0, 3, (50, 1))
    found = find_consensus(label, method)
    assert found.items.consensus_label.tolist() == [str(k) for k in label[:, 0]]


def test_a_vote_of_a_good_annotator_counts_more():
    clean = np.arange(200) % 2
    g = np.random.default_rng(0)
    good = [np.where(g.random(200) < 0.95, clean, 1 - clean) for _ in range(3)]
    bad = [np.where(g.random(200) < 0.55, clean, 1 - clean) for _ in range(4)]
    votes = read_votes(np.stack([*good, *bad], 1))
    right = {
        m: (consensus(votes, m).probs.argmax(1) == clean).mean()
        for m in ("majority", "dawid_skene", "one_coin")
    }
    assert min(right["dawid_skene"], right["one_coin"]) > right["majority"] + 0.03


def test_few_votes_are_shrunk_to_the_common_matrix():
    votes, _ = make_crowd(np.arange(600) % 3, 3, seed=0)
    own, shrunk = (dawid_skene(votes, shrink=s).matrices for s in (0.0, 1e6))
    assert np.abs(shrunk - shrunk[:1]).max() < 1e-3 < np.abs(own - own[:1]).max()


@pytest.mark.parametrize("fit", [majority, dawid_skene, one_coin])
def test_an_annotator_without_a_vote_changes_nothing(fit):
    votes, _ = make_crowd(np.arange(300) % 3, 3, seed=0)
    found = fit(votes)
    more = fit(replace(votes, annotators=[*votes.annotators, "silent"]))
    np.testing.assert_allclose(more.probs, found.probs)
    np.testing.assert_allclose(more.matrices[:-1], found.matrices)
    np.testing.assert_allclose(more.matrices[-1].sum(1), 1)
    if fit is one_coin:  # who says nothing is taken to be as good as the others are
        np.testing.assert_allclose(more.matrices[-1], found.matrices.mean(0))
    if fit is not one_coin:  # annotator 0 always says 0; a label that is never given stays at 0
        assert found.matrices[0].tolist() == [[1.0, 0.0, 0.0]] * 3


def test_without_any_vote_all_classes_are_as_likely():
    none = np.zeros(0, dtype=int)
    found = majority(Votes(none, none, none, ["a", "b"], ["x"], ["0", "1", "2"]))
    np.testing.assert_allclose(found.probs, np.full((2, 3), 1 / 3))


def test_auto_takes_a_matrix_only_where_there_are_votes_for_it():
    assert choose(make_crowd(np.arange(60) % 5, 5, seed=0)[0]) == "one_coin"
    assert choose(make_crowd(np.arange(600) % 2, 2, seed=0)[0]) == "dawid_skene"
    with pytest.raises(
        BadInput, match="unknown method of consensus 'dawid'; did you mean dawid_sk"
    ):
        find_consensus(LONG, "dawid")


def test_notes_tell_of_overconfidence():
    votes, _ = make_crowd(np.arange(60) % 5, 5, seed=0)
    assert "surer than they should be" in " ".join(find_consensus(votes, "dawid_skene").notes)
    assert not find_consensus(votes).notes


# ---- how good each annotator is -----------------------------------------------------------------


@pytest.mark.parametrize(("K", "N"), [(2, 400), (4, 600), (10, 600)])
def test_true_accuracies_lie_in_their_intervals(K, N):
    inside, width = [], []
    for seed in range(8):
        clean = np.random.default_rng(seed).integers(0, K, N)
        votes, accuracy = make_crowd(clean, K, seed, people=25)
        found = skills(votes)
        inside.append((found.low <= accuracy) & (accuracy <= found.high))
        width.append(found.high - found.low)
    assert np.mean(inside) >= 0.9
    assert np.mean(width) < 0.4


def test_intervals_know_who_gave_few_votes():
    clean = np.arange(200) % 2
    matrix = np.stack([clean, clean, clean, np.full(200, -1)], 1)
    matrix[0, 3] = 0
    found = find_consensus(matrix)
    width = found.annotators.accuracy_high - found.annotators.accuracy_low
    assert width[3] > 0.4 > 0.1 > width[:3].max()
    assert found.annotators.remark[3] == "too few votes to tell"


def test_who_gave_no_vote_has_the_skill_that_is_believed_beforehand():
    """Jeffreys' prior of knowing; a habit as of three guesses of every class. All truths are 0."""
    item, who = np.tile(range(200), 3), np.repeat(range(3), 200)
    votes = Votes(item, who, np.zeros(600, int), list(range(200)), list(range(400)), ["0", "1"])
    found = skills(votes)
    g = np.random.default_rng(0)
    knows, habit = g.beta(0.5, 0.5, (300, 4000)), g.beta(3, 3, (300, 4000))
    draws = knows + (1 - knows) * habit
    low, high = np.quantile(draws, [0.025, 0.975], axis=0).mean(1)
    assert found.accuracy[3:].mean() == pytest.approx(draws.mean(), abs=0.01)
    assert found.low[3:].mean() == pytest.approx(low, abs=0.01)
    assert found.high[3:].mean() == pytest.approx(high, abs=0.01)
    assert found.low[:3].min() > 0.9


def test_same_seed_same_intervals():
    votes, _ = make_crowd(np.arange(100) % 2, 2, seed=0)
    first, again, other = (skills(votes, seed=s) for s in (0, 0, 1))
    assert (first.low == again.low).all() and (first.low != other.low).any()


def test_votes_tell_which_are_wrong():
    clean = np.random.default_rng(0).integers(0, 4, 600)
    votes, _ = make_crowd(clean, 4, seed=0)
    found = find_consensus(votes)
    wrong = votes.label != clean[votes.item]
    assert found.votes.p_wrong[wrong].mean() > found.votes.p_wrong[~wrong].mean() + 0.3
    assert found.votes.p_wrong.mean() == pytest.approx(wrong.mean(), abs=0.05)


# ---- with a model -------------------------------------------------------------------------------


def noisy_model(clean: np.ndarray, K: int, right: float) -> np.ndarray:
    g = np.random.default_rng(1)
    said = np.where(g.random(len(clean)) < right, clean, g.integers(0, K, len(clean)))
    return np.where(np.eye(K)[said] > 0, 0.7, 0.3 / (K - 1))


def test_a_model_counts_as_one_more_annotator():
    clean = np.random.default_rng(0).integers(0, 4, 800)
    votes, accuracy = make_crowd(clean, 4, seed=0)
    p = noisy_model(clean, 4, right=0.9)
    alone, joint = consensus(votes).probs, with_model(votes, p).probs
    assert (joint.argmax(1) == clean).mean() > (alone.argmax(1) == clean).mean() + 0.05
    found = audit(p, annotations=votes)
    people = found.annotators.set_index("annotator")
    truly = (p.argmax(1) == clean).mean()
    assert people.accuracy_low[MODEL] <= truly <= people.accuracy_high[MODEL]
    inside = (people.accuracy_low[:-1] <= accuracy) & (accuracy <= people.accuracy_high[:-1])
    assert inside.mean() >= 0.8
    given = found.issues.given_label.to_numpy()
    assert (given == alone.argmax(1)).all()
    assert found.noise_rate.low <= (given != clean).mean() <= found.noise_rate.high
    suspects = found.issues[found.issues.is_label_issue]
    assert (suspects.predicted_label == clean[suspects["index"]]).mean() > 0.8
    assert len(found.votes) == len(votes)


def test_a_model_may_be_ten_times_too_modest_or_sixteen_times_too_sure():
    clean = np.random.default_rng(0).integers(0, 4, 800)
    votes, _ = make_crowd(clean, 4, seed=0)
    modest = np.where(np.eye(4)[clean] > 0, 0.28, 0.24)
    assert with_model(votes, modest).temperature == pytest.approx(0.1)
    blind = np.where(np.eye(4)[np.random.default_rng(1).integers(0, 4, 800)] > 0, 0.997, 0.001)
    assert with_model(votes, blind).temperature == pytest.approx(16)


def test_a_model_that_knows_nothing_has_no_say():
    clean = np.random.default_rng(0).integers(0, 3, 600)
    votes, _ = make_crowd(clean, 3, seed=0)
    joint = with_model(votes, noisy_model(clean, 3, right=0.0))
    assert joint.temperature > 4
    assert (joint.probs.argmax(1) == clean).mean() > 0.75


def test_checked_rows_count_among_votes_too():
    clean = np.random.default_rng(0).integers(0, 4, 800)
    votes, _ = make_crowd(clean, 4, seed=0)
    p = noisy_model(clean, 4, right=0.9)
    rows = np.random.default_rng(1).choice(800, 100, replace=False)
    found = audit(p, annotations=votes, checked={int(row): int(clean[row]) for row in rows})
    wrong = (found.issues.given_label.to_numpy() != clean).mean()
    assert found.checked is not None and found.noise_rate.low <= wrong <= found.noise_rate.high


def test_audit_takes_labels_or_votes():
    p = noisy_model(np.arange(30) % 3, 3, right=1.0)
    matrix = (np.arange(30) % 3)[:, None].repeat(2, 1)
    for y, votes in ((None, None), (matrix[:, 0], matrix)):
        with pytest.raises(BadInput, match="audit needs y, one label a row, or annotations"):
            audit(p, y, annotations=votes)
    with pytest.raises(BadInput, match="of annotators T is estimated"):
        audit(p, annotations=matrix, transition=np.eye(3))
    with pytest.raises(BadInput, match=r"'3' in 2 rows .* not one of the 3 classes"):
        audit(p, annotations=np.where(np.arange(30)[:, None] == 4, 3, matrix))
    with pytest.raises(BadInput, match="no vote for 1 item of pred_probs"):
        audit(p, annotations=matrix[:29])
    with pytest.raises(BadInput, match="votes for 1 item that pred_probs does not have"):
        audit(p[:29], annotations=matrix)


# ---- the method ---------------------------------------------------------------------------------


def crowd_data(n: int = 300, K: int = 3, seed: int = 0) -> Data:
    data = blobs(n, K)
    votes, _ = make_crowd(data.clean.numpy(), K, seed)
    y = torch.as_tensor(consensus(votes).probs.argmax(1))
    return replace(data, y=y, votes=votes.padded(), annotators=tuple(votes.annotators))


def fitted_crowd(data: Data, recipe: Recipe = RECIPE, **fields) -> Crowd:
    method = create("crowd", **fields)
    fit_method(method, data, recipe, backbone=BACKBONE)
    return method


@pytest.mark.parametrize("groups", [1, 3])
def test_the_loss_is_the_likelihood_of_all_votes(groups):
    data = crowd_data(60)
    method = fitted_crowd(data, replace(RECIPE, epochs=1, val=0.0), groups=groups, lam=0.0)
    with torch.no_grad():
        method.own.normal_(generator=torch.Generator().manual_seed(0))
    trainer = fit_method(create("ce"), data, replace(RECIPE, epochs=1, val=0.0), backbone=BACKBONE)
    batch = trainer.batch(data, torch.arange(60))
    step = type("Step", (), {"augment": staticmethod(lambda x: x)})
    method.eval()
    log_T, p = method.log_T().double(), method.predict_proba(batch.x).double()
    at = torch.zeros(60, dtype=torch.long)
    if groups > 1:
        at = torch.cdist(method.features(batch.x), method.centres).argmin(1)
        assert len(at.unique()) == groups
    slow = 0.0
    for i, pairs in enumerate(data.votes.tolist()):
        row = p[i].log()
        for a, j in pairs:
            row = row + (log_T[at[i], a, :, j] if a >= 0 else 0)
        slow -= float(row.detach().logsumexp(0)) / 60
    prior = method.skills.square().sum() / (2 * method.skill**2)
    prior = prior + method.own.square().sum() / (2 * method.spread**2)
    assert float(method.loss(batch, step).detach()) == pytest.approx(
        slow + float(prior.detach()) / 60, rel=1e-5
    )


def test_two_votes_for_each_entry_are_enough_for_a_matrix():
    for number, wanted in ((7, "one_coin"), (8, "dawid_skene")):
        rows = np.arange(number)
        votes = Votes(rows, 0 * rows, rows % 2, list(map(str, rows)), ["one"], ["no", "yes"])
        assert choose(votes) == wanted and choose(votes, "majority") == "majority"


def test_crowd_starts_at_the_solution_of_dawid_and_skene():
    """W is the log of the common T; a skill the logit of being right beyond the average, where ten
    votes of average quality count for everyone."""
    data = crowd_data(200)
    method = create("crowd")
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.start(data)
    votes, _ = make_crowd(data.clean.numpy(), 3, 0)
    truth = dawid_skene(votes, shrink=10.0).probs
    counts = np.zeros((len(votes.annotators), 3, 3))
    for item, who, label in zip(votes.item, votes.annotator, votes.label, strict=True):
        counts[who, :, label] += truth[item]
    total = counts.sum(0) + 0.5 * np.eye(3) + 0.5 / 3
    T = total / total.sum(1, keepdims=True)
    np.testing.assert_allclose(method.common[0].detach().exp(), T, rtol=1e-4)
    average = np.trace(T) / 3
    for who in range(len(votes.annotators)):
        share = (np.trace(counts[who]) + 10 * average) / (counts[who].sum() + 10)
        want = np.log(share / (1 - share)) - np.log(average / (1 - average))
        assert float(method.skills[who].detach()) == pytest.approx(want, abs=1e-3)
    assert not method.own.any()


def test_rows_without_a_vote_do_no_harm():
    """The model is what it is without them; they have the mean of the others' consensus."""
    data = crowd_data(90)
    data.votes[:5] = -1
    votes = Votes.from_padded(data.votes, data.annotators, list("abc"))
    few = Votes.from_padded(data.votes[5:], data.annotators, list("abc"))
    whole, part = majority(votes), majority(few)
    np.testing.assert_allclose(whole.probs[5:], part.probs)
    np.testing.assert_allclose(whole.probs[:5], part.probs.mean(0)[None].repeat(5, 0))
    np.testing.assert_allclose(whole.matrices, part.matrices)
    assert np.isfinite(dawid_skene(votes).probs).all()
    y = data.y.clone()
    y[:5] = -1
    method = fitted_crowd(replace(data, y=y), replace(RECIPE, epochs=20, val=0.0))
    p = method.predict_proba(data.x)
    assert (p.argmax(1) == data.clean).float().mean() > 0.9


def test_crowd_without_votes_has_one_annotator_who_gave_the_labels():
    data = blobs(60, 3, rate=0.2)
    data.y[:3] = -1
    method = create("crowd")
    method.build(make_spec(data, BACKBONE, RECIPE))
    method.start(data)
    assert method.annotator_transition().shape == (1, 3, 3)
    batch = Batch(data.x, data.y, torch.arange(60))
    torch.testing.assert_close(method.transition(batch), method.annotator_transition()[0])
    pairs = single_votes(data.y)[:, 0].tolist()
    assert pairs == [[-1, -1] if y < 0 else [0, y] for y in data.y.tolist()]


def test_an_annotators_matrix_is_the_common_one_a_skill_and_own_confusions():
    method = create("crowd")
    data = crowd_data(60)
    method.build(make_spec(data, BACKBONE, RECIPE))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in (method.common, method.skills, method.own):
            part.normal_(generator=generator)
    T = method.annotator_transition().detach()
    W, s, D = (part.detach() for part in (method.common, method.skills, method.own))
    for a in range(len(data.annotators)):
        for k in range(3):
            logits = [float(W[0, k, j] + D[a, k, j] + (s[a] if j == k else 0)) for j in range(3)]
            want = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(T[a, k], want, rtol=1e-4)


def test_crowd_learns_whom_to_trust():
    data = crowd_data(900)
    method = fitted_crowd(data, replace(RECIPE, epochs=20))
    _, accuracy = make_crowd(data.clean.numpy(), 3, 0)
    found = method.annotator_transition().detach().diagonal(dim1=1, dim2=2).mean(1).numpy()
    assert np.corrcoef(found[1:], accuracy[1:])[0, 1] > 0.9
    constant = method.annotator_transition()[0]  # who always says 0
    assert (constant[:, 0] > 0.6).all()
    p = method.predict_proba(data.x)
    assert (p.argmax(1) == data.clean).float().mean() > 0.97


def test_who_gave_few_votes_keeps_the_common_matrix():
    """Shrinkage: the matrix of one vote stays near the common one, that of many does not."""
    data = crowd_data(900)
    once = torch.full((900, 1, 2), -1, dtype=torch.int32)
    once[0, 0] = torch.tensor([12, 2])
    data = replace(
        data, votes=torch.cat([data.votes, once], 1), annotators=(*data.annotators, "new")
    )
    method = fitted_crowd(data, replace(RECIPE, epochs=20))
    common = method.common[0].softmax(-1)
    apart = (method.annotator_transition() - common).abs().sum(-1).mean(-1).detach()
    assert apart[12] < 0.3 * apart[0]
    assert apart[12] < apart[:12].median()


def test_votes_follow_their_rows():
    data = crowd_data()
    rows = torch.tensor([5, 2])
    assert torch.equal(data.rows(rows).votes, data.votes[rows])
    method = create("crowd")
    trainer = fit_method(method, data, replace(RECIPE, epochs=1), backbone=BACKBONE)
    assert torch.equal(trainer.batch(data, rows).votes, data.votes[rows])
    lazy = replace(data, x=Lazy(data.x))
    assert torch.equal(trainer.batch(lazy, rows).votes, data.votes[rows])
    other = data.votes.clone()
    other[0, 0, 1] = (other[0, 0, 1] + 1) % 3
    assert fingerprint(data) != fingerprint(replace(data, votes=other))
    assert fingerprint(replace(data, votes=None, annotators=())) != fingerprint(data)


class Lazy:
    def __init__(self, x):
        self.x, self.shape = x, x.shape

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index]


def test_lazy_rows_train_alike():
    data = crowd_data(120)
    recipe = replace(RECIPE, epochs=2, val=0.0, workers=0)
    kept, lazy = (fitted_crowd(d, recipe) for d in (data, replace(data, x=Lazy(data.x))))
    for name, value in kept.state_dict().items():
        assert torch.equal(value, lazy.state_dict()[name]), name


# ---- Classifier ---------------------------------------------------------------------------------

SMALL = {"backbone": BACKBONE, "epochs": 8, "batch_size": 32, "optimizer": "adam", "lr": 5e-3}


@pytest.fixture(scope="module")
def people():
    data = blobs(240)
    votes, _ = make_crowd(data.clean.numpy(), 3, 0)
    matrix = np.full((240, 12), -1)
    matrix[votes.item, votes.annotator] = votes.label
    return data.x.numpy(), data.clean.numpy(), matrix


def test_classifier_takes_annotations(people, tmp_path):
    X, clean, matrix = people
    clf = Classifier("crowd", **SMALL).fit(X, annotations=matrix)
    assert clf.classes_.tolist() == [0, 1, 2] and clf.score(X, clean) > 0.95
    T = clf.annotator_transition()
    assert T.shape == (12, 3, 3) and np.allclose(T.sum(-1), 1, atol=1e-5)
    clf.save(tmp_path / "model.safetensors")
    again = Classifier.load(tmp_path / "model.safetensors")
    assert (again.predict_proba(X) == clf.predict_proba(X)).all()
    assert (again.annotator_transition() == T).all()
    assert again.annotators_.tolist() == clf.annotators_.tolist()


def test_every_form_of_annotations_fits_the_same(people):
    X, _, matrix = people
    rows, workers = np.nonzero(matrix >= 0)
    table = pd.DataFrame({"task": rows, "worker": workers, "label": matrix[rows, workers]})
    ids = [f"row {i}" for i in range(len(X))]
    forms = [
        (X, matrix),
        (X, table.sample(frac=1, random_state=0).sort_values("worker", kind="stable")),
        (pd.DataFrame(X, ids), table.assign(task=[ids[i] for i in rows])),
    ]
    first, *others = (Classifier("crowd", **SMALL).fit(x, annotations=a) for x, a in forms)
    for other in others:
        assert np.allclose(first.annotator_transition(), other.annotator_transition(), atol=1e-4)


def test_other_methods_train_on_the_consensus(people):
    X, _, matrix = people
    labels = consensus(read_votes(matrix)).probs.argmax(1)
    by_votes = Classifier("elr", **SMALL).fit(X, annotations=matrix)
    by_labels = Classifier("elr", **SMALL).fit(X, labels)
    assert (by_votes.predict_proba(X) == by_labels.predict_proba(X)).all()
    with pytest.raises(BadInput, match='only method="crowd"'):
        by_votes.annotator_transition()
    with pytest.raises(BadInput, match='only method="crowd"'):
        Classifier("crowd", **SMALL).fit(X, labels).annotator_transition()


def test_crowd_differs_from_the_consensus(people):
    X, _, matrix = people
    labels = consensus(read_votes(matrix)).probs.argmax(1)
    by_votes = Classifier("crowd", **SMALL).fit(X, annotations=matrix)
    by_labels = Classifier("crowd", **SMALL).fit(X, labels)
    assert np.abs(by_votes.predict_proba(X) - by_labels.predict_proba(X)).max() > 1e-3


def test_classifier_audits_annotations(people):
    X, clean, matrix = people
    clf = Classifier("crowd", **SMALL).fit(X, annotations=matrix)
    found = clf.audit(X, annotations=matrix, folds=2)
    assert (found.issues.predicted_label == clean).mean() > 0.95
    assert MODEL in found.annotators.annotator.tolist()
    assert len(clf.audit(X, annotations=matrix, folds=0).annotators) == 13


def test_classifier_refuses_bad_annotations(people):
    X, clean, matrix = people
    for words, said in (
        ({"y": clean, "annotations": matrix}, "but not both"),
        ({"annotations": matrix[:100]}, "no vote for 140 items of X"),
        ({"annotations": np.concatenate([matrix, matrix])}, "240 items that X does not have"),
    ):
        with pytest.raises(BadInput, match=said):
            Classifier("crowd", **SMALL).fit(X, **words)
    clf = Classifier("crowd", **SMALL).fit(X, annotations=matrix)
    with pytest.raises(BadInput, match=r"'3' in .* not one of the 3 classes"):
        clf.audit(X, annotations=np.where(matrix >= 0, matrix + 1, -1), folds=0)


# ---- command line -------------------------------------------------------------------------------


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code or isinstance(result.exception, BadInput), result.output
    return result.output if code == 0 else str(result.exception)


@pytest.fixture
def files(tmp_path, people, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, clean, matrix = people
    rows, workers = np.nonzero(matrix >= 0)
    ids = np.array([f"r{i}" for i in range(len(X))])
    names = np.array(["ant", "bee", "cow"])
    table = {"task": ids[rows], "worker": workers, "label": names[matrix[rows, workers]]}
    pd.DataFrame(table).to_csv("votes.csv", index=False)
    data = pd.DataFrame(X, columns=list("abcdef"))
    data.insert(0, "id", ids)
    data.assign(clean_label=names[clean]).to_csv("data.csv", index=False)
    return tmp_path


def test_consensus_command(files, people):
    said = run("consensus", "votes.csv", "--out", "out/consensus.csv")
    assert "12 annotators on 240 items in 3 classes" in said
    found = pd.read_csv("out/consensus.csv").set_index("item")
    names = np.array(["ant", "bee", "cow"])[people[1]]
    right = found.loc[[f"r{i}" for i in range(240)]].consensus_label == names
    assert right.mean() > 0.75
    for kind, rows in (
        ("annotators", 12),
        ("matrices", 12 * 9),
        ("votes", len(pd.read_csv("votes.csv"))),
    ):
        assert len(pd.read_csv(f"out/consensus-{kind}.csv")) == rows
    page = (files / "out/consensus.html").read_text()
    assert "Items that need one more vote" in page and "This file is complete" in page
    run("consensus", "votes.csv", "--out", "out/consensus.csv", "--method", "majority")  # its own


def test_consensus_command_writes_nothing_over_foreign_files(files):
    (files / "mine-votes.csv").write_text("mine\n")
    said = run("consensus", "votes.csv", "--out", "mine.csv", code=2)
    assert "mine-votes.csv exists and is no earlier output" in said
    assert "is an input" in run("consensus", "votes.csv", "--out", "votes.csv", code=2)
    assert sorted(p.name for p in files.iterdir()) == ["data.csv", "mine-votes.csv", "votes.csv"]
    assert (files / "mine-votes.csv").read_text() == "mine\n"


def test_a_name_from_the_votes_is_text_on_the_page(files):
    table = pd.read_csv("votes.csv")
    table.assign(worker="<script>alert(1)</script>" + table.worker.astype(str)).to_csv("bad.csv")
    run("consensus", "bad.csv", "--out", "bad-out.csv")
    page = (files / "bad-out.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_fit_and_audit_with_annotations(files):
    fit = ("fit", "data.csv", "--annotations", "votes.csv", "--epochs", "4", "--backbone", BACKBONE)
    said = run(*fit, "--method", "crowd", "--out", "run", "--batch-size", "32")
    assert "votes of 12 annotators" in said and "labels are their consensus" in said
    assert "of the predicted labels are right" in said  # clean_label was read
    config = json.loads((files / "run/config.json").read_text())
    assert config["annotations"]["path"] == "votes.csv" and config["classes"] == [
        "ant",
        "bee",
        "cow",
    ]
    said = run("audit", "run", "--folds", "2")
    assert "annotators.csv" in said
    assert MODEL in pd.read_csv("run/annotators.csv").annotator.tolist()
    assert pd.read_csv("run/votes.csv")["item"].isin([f"r{i}" for i in range(240)]).all()
    assert "The annotators" in (files / "run/report.html").read_text()
    run("predict", "run", "data.csv", "--out", "predictions.csv")
    assert len(pd.read_csv("predictions.csv")) == 240
    table = pd.read_csv("votes.csv")
    table.loc[0, "label"] = "cow" if table.label[0] != "cow" else "bee"
    table.to_csv("votes.csv", index=False)
    assert "has changed since run was trained" in run("audit", "run", "--folds", "2", code=2)


def test_fit_says_that_others_train_on_the_consensus(files):
    fit = ("fit", "data.csv", "--annotations", "votes.csv", "--epochs", "1", "--backbone", BACKBONE)
    assert "second_opinion trains on the consensus; --method crowd learns from the votes" in run(
        *fit
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--annotations", "nowhere.csv"), "no file 'nowhere.csv'"),
        (("--annotations", "votes.csv", "--drop", "id"), "items that data.csv does not have"),
        (("--annotations", "votes.csv", "--noise", "symmetric:0.2"), "--noise corrupts one label"),
        (("--item", "task"), "give --annotations"),
        (("--annotations", "votes.csv", "--item", "x"), "no item column 'x' in votes.csv"),
    ],
)
def test_fit_refuses_bad_annotations(files, words, said):
    assert said in run("fit", "data.csv", *words, code=2)
    assert not (files / "runs").exists()


def test_a_table_of_numbers_is_no_table_of_votes(tmp_path):
    """Each value would be a class: a matrix of thousands of classes for each column."""
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(100, 4)), columns=[*"abcd"]).to_csv(tmp_path / "d.csv")
    with pytest.raises(BadInput, match="so they are no votes; name the columns"):
        find_consensus(tmp_path / "d.csv")
    votes = {"house": [f"h{k // 3}" for k in range(90)], "who": [*"abc"] * 30, "kind": ["x"] * 90}
    pd.DataFrame(votes).to_csv(tmp_path / "long.csv", index=False)
    with pytest.raises(BadInput, match=r"Column 'house' of .* has 30 values that no other"):
        find_consensus(tmp_path / "long.csv")
