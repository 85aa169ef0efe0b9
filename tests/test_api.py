"""Every public name is documented, parameter by parameter, with an example that runs."""

import dataclasses
import doctest
import inspect
import re
from operator import attrgetter
from types import ModuleType

import pytest

import ytilde
from ytilde import method as method_file
from ytilde.flags import field_comments
from ytilde.losses import Loss

BESIDE = (  # what people also call, though `ytilde` does not export it
    "fitting.fit_method",
    "fitting.make_spec",
    "testing.check_method",
    "transition.LowRankT",
    "transition.SoftmaxT",
    "transition.materialise_cost",
    "transition.validate_transition",
    "uncertainty.decompose",
)
OPTIONS = doctest.NORMALIZE_WHITESPACE


def public_things():
    """Every public class and function by its name: what `ytilde` exports, and its modules do."""
    found = {}
    for name in ytilde.__all__:
        thing = getattr(ytilde, name)
        if isinstance(thing, ModuleType):
            inside = {f"{name}.{part}": getattr(thing, part) for part in thing.__all__}
            found |= {full: part for full, part in inside.items() if is_ours(part)}
        else:
            found[name] = thing
    return found | {name: attrgetter(name)(ytilde) for name in BESIDE}


def is_ours(thing):
    return inspect.isclass(thing) or inspect.isfunction(thing)


def methods_of(cls):
    """The public methods that a class of ytilde defines, and its properties."""
    for base in cls.__mro__:
        for name, value in vars(base).items() if base.__module__.startswith("ytilde") else ():
            value = getattr(value, "__func__", value)
            if not name.startswith("_") and (inspect.isfunction(value) or type(value) is property):
                yield name, value


THINGS = public_things()
CLASSES = {name: thing for name, thing in THINGS.items() if inspect.isclass(thing)}
METHODS = {f"{c}.{m}": value for c, cls in CLASSES.items() for m, value in methods_of(cls)}


def parameters(thing):
    return [p for p in inspect.signature(thing).parameters if p not in ("self", "cls")]


def documented(thing):
    """The names under Args or Attributes; of a dataclass also the fields with comments."""
    doc = inspect.getdoc(thing) or ""
    parts = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", doc, re.M)
    found = set(re.findall(r"^    \*{0,2}(\w+): \S", "\n".join(parts), re.M))
    return found | (set(field_comments(thing)) if dataclasses.is_dataclass(thing) else set())


@pytest.mark.parametrize("name", THINGS)
def test_every_parameter_is_documented(name):
    thing = THINGS[name]
    if inspect.isclass(thing) and issubclass(thing, Loss) and thing is not Loss:
        # its settings are those of the function
        assert set(thing(**needed(thing)).settings) <= documented(thing.function)
        thing = Loss
    assert set(parameters(thing)) <= documented(thing)


def needed(loss):
    return {"generator": None} if "generator" in parameters(loss.function) else {}


@pytest.mark.parametrize("name", [name for name, thing in THINGS.items() if name not in CLASSES])
def test_every_function_says_what_it_returns(name):
    assert re.search(r"^Returns:\n    \S", inspect.getdoc(THINGS[name]), re.M)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_documented(name):
    """In a sentence; from two parameters on, each of them."""
    method = METHODS[name]
    if name.split(".")[-1] == "forward" or overrides(name):
        return  # a module is called, and its class says with what; the first one is documented
    assert inspect.getdoc(method)
    if inspect.isfunction(method) and len(parameters(method)) > 1 and "Args as of" not in doc(name):
        assert set(parameters(method)) <= documented(method)


def overrides(name):
    """Is it another class's method, said anew?"""
    *path, method = name.split(".")
    cls = CLASSES[".".join(path)]
    return sum(method in vars(base) for base in cls.__mro__) > 1


def doc(name):
    return inspect.getdoc(METHODS[name])


@pytest.mark.parametrize("name", THINGS)
def test_the_example_runs(name, monkeypatch):
    """In the module's own names, as doctest has it. What it registers is forgotten."""
    ytilde.list_methods()  # what is found while an example runs would be forgotten too
    monkeypatch.setattr(method_file, "_REGISTRY", dict(method_file._REGISTRY))
    thing = THINGS[name]
    if inspect.isclass(thing) and issubclass(thing, Loss):
        thing = thing.function if thing is not Loss else Loss
    module = inspect.getmodule(thing)
    found = doctest.DocTestFinder(recurse=False).find(thing, name, module=module)
    tests = [test for test in found if test.examples]
    assert tests, "no example"
    said = []
    for test in tests:
        doctest.DocTestRunner(optionflags=OPTIONS, verbose=False).run(test, out=said.append)
    assert not said, "".join(said)
