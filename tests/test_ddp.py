"""Many processes: two with gloo train as one does at the same global batch."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from test_cli import refused, ytilde
from ytilde import Classifier, checkpoint
from ytilde.data import BadInput, Data
from ytilde.engine import Recipe, parallel
from ytilde.fitting import fit_method
from ytilde.method import Method, create, list_methods
from ytilde.testing import blobs

RECIPE = Recipe(
    epochs=3, batch_size=16, lr=0.02, val=0.2, augment="jitter0.1", clip=1.0, device="cpu"
)
BACKBONE = "mlp:width=8,depth=1"


class Lazy:
    """Rows that are read when they are asked for; counts how many."""

    def __init__(self, x):
        self.x, self.shape, self.read = x, x.shape, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read += len(index)
        return self.x[index]


class Normed(nn.Module):
    """A backbone with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


@dataclass(eq=False, repr=False)
class Watched(Method):
    """Notes how many rows its backbone computes in a step, and penalises the weights itself."""

    def fit(self, data, trainer):
        self.rows = []
        self.net.backbone.register_forward_hook(lambda module, args, out: self.rows.append(args))
        super().fit(data, trainer)

    def loss(self, batch, step):
        penalty = sum(p.square().sum() for p in self.net.parameters())
        return super().loss(batch, step) + 0.1 * penalty


def trained(method, data, backbone=BACKBONE, **own):
    fit_method(method, data, replace(RECIPE, **own), backbone=backbone)
    return {key: value.clone() for key, value in method.state_dict().items()}


def odd_cases():
    """Training that could go wrong with many processes; what each leaves."""
    data = blobs(80, rate=0.2)
    torch.manual_seed(0)
    watched = Watched()
    states = {"watched": trained(watched, data)}
    states["rows"] = {"rows": torch.tensor([len(args[0]) for args in watched.rows])}
    states["odd batch"] = trained(create("co_teaching"), data, batch_size=13)
    states["weights average"] = trained(create("elr"), data, ema=0.9, balance=True, keep="best")
    states["batch norm"] = trained(create("ce"), data, Normed())
    lazy = Lazy(data.x)
    states["lazy"] = trained(create("ce"), replace(data, x=lazy), workers=0, val=0.0)
    states["bfloat16"] = trained(create("ln"), data, precision="bfloat16")
    states["dropout"] = trained(create("ce"), data, "mlp:width=8,depth=1,dropout=0.5")
    torch.manual_seed(0)
    with parallel.team().sharing(net := nn.Sequential(Dropping()), torch.device("cpu")):
        states["masks"] = {"mask": net[0].part(torch.ones(8, 50))}
    return states | {"read": {"rows": torch.tensor(lazy.read)}}


class Dropping(nn.Module):
    row_parallel = ("part",)

    def __init__(self):
        super().__init__()
        self.part = nn.Dropout(0.5)


def train_all(names):
    states = {name: trained(create(name), blobs(80, rate=0.2)) for name in names}
    return states, odd_cases()


@pytest.fixture(scope="module")
def by_two():
    names = [name for name in list_methods() if create(name).distributable]
    with parallel.spawn_workers(2, train_all, names):
        return train_all(names)


@pytest.fixture(scope="module")
def by_one():
    return odd_cases()


def assert_alike(first, second, rtol=1e-4, atol=1e-5):
    assert set(first) == set(second)
    for key, value in first.items():
        same = torch.allclose(value, second[key], rtol=rtol, atol=atol, equal_nan=True)
        assert same, (key, (value.double() - second[key].double()).abs().max())


@pytest.mark.parametrize("name", list_methods())
def test_two_processes_equal_one(name, by_two):
    if name not in by_two[0]:
        pytest.skip("says that it trains in one process only")
    loose = 5 if name == "ptd" else 1  # it solves for its parts' matrices, on 64 rows badly so
    assert_alike(by_two[0][name], trained(create(name), blobs(80, rate=0.2)), atol=loose * 1e-4)


@pytest.mark.parametrize("case", ["watched", "odd batch", "weights average", "batch norm", "lazy"])
def test_odd_cases_equal_one_process_too(case, by_two, by_one):
    assert_alike(by_two[1][case], by_one[case])


def test_low_precision_differs_by_its_rounding_only(by_two, by_one):
    assert_alike(by_two[1]["bfloat16"], by_one["bfloat16"], rtol=0.05, atol=0.02)


def test_each_process_computes_its_share(by_two, by_one):
    two, one = by_two[1]["rows"]["rows"], by_one["rows"]["rows"]
    assert len(two) == len(one)
    assert torch.equal(two, torch.where(one % 2 == 0, one // 2, one))
    assert (two < one).any()
    # of a lazy reader too; what is sampled for the inputs' mean is read by both
    assert by_two[1]["read"]["rows"] == by_one["read"]["rows"] / 2 + 80 / 2


def test_shares_are_dropped_out_independently(by_two, by_one):
    first, second = by_two[1]["masks"]["mask"].chunk(2)
    assert not torch.equal(first, second)
    for key, value in by_two[1]["dropout"].items():
        assert value.shape == by_one["dropout"][key].shape and value.isfinite().all()


def test_a_method_may_refuse(monkeypatch):
    @dataclass(eq=False, repr=False)
    class Alone(Method):
        distributable = False

    monkeypatch.setattr(parallel, "_TEAM", parallel.Team(0, 2))
    with pytest.raises(BadInput, match="one process only"):
        fit_method(Alone(), blobs(), RECIPE)


def test_estimator_with_two_devices(tmp_path):
    data = blobs(80, rate=0.2)
    x, y = data.x.numpy(), data.y.numpy()
    settings = {"epochs": 2, "batch_size": 16, "val": 0.2, "device": "cpu"}
    one = Classifier("elr", BACKBONE, **settings).fit(x, y)
    two = Classifier("elr", BACKBONE, **settings, devices=2).fit(x, y)
    assert np.allclose(one.predict_proba(x), two.predict_proba(x), atol=1e-4)
    assert [r["epoch"] for r in two.history_] == [1, 2]
    with pytest.raises(BadInput, match="devices"):
        Classifier("elr", BACKBONE, **settings, devices=0).fit(x, y)


@pytest.mark.parametrize("method", ["elr", "auto"])
@pytest.mark.parametrize(("device", "gpus", "says"), [("cpu", 8, "3 CPUs"), ("cuda", 1, "1 GPU;")])
def test_more_devices_than_there_are(monkeypatch, method, device, gpus, says):
    """Refused before anything is trained or any process started."""

    def started(*args, **options):
        raise AssertionError("work began")

    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("ytilde.estimator.training.fit_method", started)
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", started)
    data = blobs(80, rate=0.2)
    model = Classifier(method, BACKBONE, epochs=1, device=device, devices=4)
    with pytest.raises(BadInput, match=f"devices is 4, but this machine has {says}") as said:
        model.fit(data.x.numpy(), data.y.numpy())
    assert "\n" not in str(said.value)


def test_torchrun_with_more_processes_than_cpus(monkeypatch, tmp_path):
    (tmp_path / "d.csv").write_text("a,label\n1,0\n2,1\n")
    sizes = {"WORLD_SIZE": "326", "LOCAL_WORLD_SIZE": "326", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    words = ("fit", "d.csv", "--out", "run")
    refused(*words, match="torchrun started 326 processes, but this machine has 3", cwd=tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "7")
    assert ytilde(*words, cwd=tmp_path, check=False) == (2, "", "")  # one of them says it
    assert not (tmp_path / "run").exists()


FALLS = """
import os
from ytilde.method import register
from ytilde.methods.co_teaching import CoTeaching

@register("falls")
class Falls(CoTeaching):
    def loss(self, batch, step):
        if step.epoch and (os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT")) == ("1", "0"):
            os.abort()
        return super().loss(batch, step)
"""  # noqa: E501


def test_torchrun_fits_goes_on_after_a_fall_and_one_process_resumes(tmp_path, monkeypatch):
    data = blobs(120, rate=0.2)
    frame = pd.DataFrame(data.x.numpy(), columns=list("abcdef")).assign(label=data.y)
    frame[:80].to_csv(tmp_path / "d.csv", index=False)
    frame[80:].to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "falls.py").write_text(FALLS)
    monkeypatch.setenv("YTILDE_METHODS", str(tmp_path))
    words = ["fit", "d.csv", "--test", "t.csv", "--method", "falls", "--rate", "0.2"]
    words += ["--backbone", BACKBONE, "--batch-size", "16", "--epochs", "3", "--device", "cpu"]
    many = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    many += ["--max-restarts", "3", "-m", "ytilde"]
    command = [sys.executable, "-m", *many, *words, "--out", "two"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("main 3/3") == 1, done.stdout  # the leader alone speaks
    assert "failed (exitcode: -6)" in done.stderr, done.stderr[-3000:]  # it did fall
    alone = [sys.executable, "-m", "ytilde", *words, "--out"]
    subprocess.run([*alone, "one"], cwd=tmp_path, env=env, check=True)
    states = [checkpoint.load(tmp_path / k / "model.safetensors")[0] for k in ("one", "two")]
    assert_alike(*states)
    assert len((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()) == 3
    assert {p.name for p in (tmp_path / "one").iterdir()} == {
        p.name for p in (tmp_path / "two").iterdir()
    }
    # the state is everybody's: what two began, one goes on with
    (tmp_path / "two" / "stages" / "main.safetensors").unlink()
    subprocess.run([*alone, "two", "--resume"], cwd=tmp_path, env=env, check=True)
    assert_alike(states[0], checkpoint.load(tmp_path / "two" / "model.safetensors")[0])


@pytest.mark.slow
def test_torchrun_on_two_nodes_is_one_process(tmp_path):
    """Two launchers with a process each, as on two machines; the first one writes the run."""
    data = blobs(80, rate=0.2)
    frame = pd.DataFrame(data.x.numpy(), columns=list("abcdef")).assign(label=data.y)
    frame.to_csv(tmp_path / "d.csv", index=False)
    words = ["fit", "d.csv", "--method", "elr", "--backbone", BACKBONE, "--batch-size", "16"]
    words += ["--epochs", "2", "--device", "cpu"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
    ]
    launch += ["--master-addr", "127.0.0.1", "--master-port", port]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [*launch, "--node-rank", rank, "-m", "ytilde", *words, "--out", "two"],
            cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    said = [node.communicate(timeout=240) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert ["run folder" in out for out, _ in said] == [True, False]
    ytilde(*words, "--out", "one", cwd=tmp_path)
    assert_alike(*(checkpoint.load(tmp_path / k / "model.safetensors")[0] for k in ("one", "two")))


def test_data_crosses_to_other_processes_by_value():
    from ytilde.estimator.training import _sent

    data = Data(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), 2)
    assert isinstance(_sent(data).x, np.ndarray) and isinstance(_sent(data).y, np.ndarray)


def test_what_processes_share_is_named_by_the_nearest_class():
    """A plugin's `by_rows`, the word of 0.1, still counts, and wins over what it inherits."""

    class Old(nn.Module):
        by_rows = ("part",)

        def __init__(self):
            super().__init__()
            self.part, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    class New(Old):
        row_parallel = ("other",)

    class OldAgain(New):
        by_rows = ("part", "other")

    class Inherits(New):
        pass

    for cls, names in ((Old, ["part"]), (New, ["other"]), (Inherits, ["other"])):
        module = cls()
        assert parallel.heavy_modules(nn.Sequential(module)) == [getattr(module, n) for n in names]
    module = OldAgain()
    assert parallel.heavy_modules(module) == [module.part, module.other]
    assert parallel.heavy_modules(nn.Linear(2, 2)) == []


def test_on_gpus_batch_norm_is_synchronised(monkeypatch):
    monkeypatch.setattr(parallel.Team, "broadcast_", lambda self, tensors: None)
    method = create("ce")
    fit_method(method, blobs(40), replace(RECIPE, epochs=1), backbone=Normed())
    before = dict(method.named_parameters())
    with parallel.Team(0, 2).sharing(method, torch.device("cuda")):
        kinds = [type(module) for module in method.net.backbone.modules()]
        assert nn.SyncBatchNorm in kinds and nn.BatchNorm1d not in kinds
    after = dict(method.named_parameters())
    assert list(before) == list(after) and all(before[k] is after[k] for k in before)
    assert method.predict_proba(torch.zeros(2, 6)).shape == (2, 3)
