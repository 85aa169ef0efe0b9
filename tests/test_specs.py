"""Options written as one text, content hashes, and the import paths that must keep working."""

import importlib

import pytest
import torch

from ytilde.backbones import without_weights
from ytilde.bench import tables
from ytilde.data import BadInput, Data
from ytilde.data.readers import fingerprint
from ytilde.encoders.simclr import Settings
from ytilde.hashing import digest_of, hash_of
from ytilde.signing import sign
from ytilde.specs import format_spec, parse_spec


def test_a_spec_is_a_name_values_and_options():
    assert parse_spec("flip", "augmentation") == ("flip", [], {})
    found = parse_spec(" step : 0.5, 0.75 , last = a=b ", "schedule", values=2)
    assert found == ("step", ["0.5", "0.75"], {"last": "a=b"})
    assert format_spec(*found[::2], found.values) == "step:0.5,0.75,last=a=b"
    assert format_spec("flip", {}) == "flip"


@pytest.mark.parametrize("text", ["a:1,2", "a:x=1,2", "a:1,x=1,x=2"])
def test_a_spec_that_can_be_read_in_two_ways_is_refused(text):
    with pytest.raises(BadInput, match=r"the thing 'a:.*(write option=value|gives x twice)"):
        parse_spec(text, "the thing", values=1)


def test_the_last_of_two_values_counts_where_that_is_allowed():
    """Tables append the options that make a network small."""
    assert parse_spec("a:x=1,x=2", "it", last_wins=True).options == {"x": "2"}


def test_weights_are_taken_out_of_a_backbone():
    assert without_weights("resnet18:weights=a.safetensors,width=16") == "resnet18:width=16"
    assert without_weights("resnet18:weights=a.safetensors") == "resnet18"
    assert without_weights(None) is None


def test_options_of_pretraining_are_given_once():
    with pytest.raises(BadInput, match="gives epochs twice"):
        Settings.parse("simclr:epochs=1,epochs=2")


def test_names_of_contents_stay_what_they_are():
    """Caches, shared encoders and runs are found by them."""
    parts = {"b": [1, "x", None, (2.5,)], "a": torch.arange(6.0).reshape(2, 3)}
    parts |= {"c": torch.zeros(0), "d": torch.tensor(True)}
    assert hash_of(parts) == "c52543bffce9be4b36fa3226"
    assert hash_of(parts | {"a": torch.arange(6.0).reshape(3, 2)}) != hash_of(parts)
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])
    assert fingerprint(Data(x, y, 2, None, ("a", "b"))) == "c251b57f5ead1d2fa168dae8a1759ba1"
    assert digest_of("a", "b") == digest_of("ab") != digest_of("a", "b", size=7)
    config = {"source": "d.csv", "fields": {"lam": 3.0, "names": ["Äpfel", None]}, 1: (2,)}
    assert sign(config)["digest"] == "276bb311bc33c1d2dce3099aec4c190d"
    inputs = {"seed": 0, "method": "elr", "fields": {"lam": 3.0, "name": "Ü\udc80"}}
    assert tables.digest(inputs) == "3300ccd59faa4cd0490b"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("readers.read", "data.readers.read"),
        ("readers.Schema", "data.readers.Schema"),
        ("images.Images", "data.images.Images"),
        ("contrastive.SimCLR", "encoders.simclr.SimCLR"),
        ("contrastive.kmeans", "encoders.clusters.kmeans"),
        ("encoder.Encoder", "encoders.Encoder"),
        ("data.BadInput", "errors.BadInput"),
        ("data.few", "errors.shorten_list"),
        ("data.unknown", "errors.unknown_name_message"),
        ("data.Step", "data.StepInfo"),
        ("backbones.create_backbone", "backbones.registry.create_backbone"),
        ("datasets.load", "datasets.registry.load"),
    ],
)
def test_an_old_import_path_leads_to_the_same_thing(old, new):
    def find(path: str) -> object:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"ytilde.{module}"), name)

    assert find(old) is find(new)
