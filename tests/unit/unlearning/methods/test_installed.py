"""Methods of other packages are found by their entry points; one that cannot be used is left out with its reason."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from tests.programs import run_program
from unlearning.errors import UnknownMethod
from unlearning.methods import registry
from unlearning.methods.installed import GROUP, installed_methods
from unlearning.methods.retrain import Natural


class Own(Natural):
    """A method of a package of one's own."""

    info = replace(Natural.info, name="own")


NO_METHOD = object()


def entry(name: str, thing: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{thing}" if ":" not in thing else thing, GROUP)


def test_a_method_of_another_package_is_one_of_the_methods():
    """Made of its class, under its own name."""
    methods, unusable = installed_methods(["natural"], [entry("own", "Own")])
    assert list(methods) == ["own"]
    assert isinstance(methods["own"], Own)
    assert unusable == {}


@pytest.mark.parametrize(
    ("name", "thing", "why"),
    [
        ("own", "nowhere.at_all:Own", "No module named 'nowhere'"),
        ("own", "Missing", "Missing"),
        ("own", "NO_METHOD", "it is a object, and no Method"),
        ("other", "Own", "its MethodInfo calls it own"),
        ("natural", "Own", "its MethodInfo calls it own"),
    ],
)
def test_one_that_cannot_be_used_is_left_out_with_its_reason(name, thing, why):
    """And the others stay."""
    methods, unusable = installed_methods(["natural"], [entry(name, thing)])
    assert methods == {}
    assert why in unusable[name]


def test_a_name_that_is_taken_stays_whose_it_is():
    """Also between two packages."""
    methods, unusable = installed_methods([], [entry("own", "Own"), entry("own", "Own")])
    assert list(methods) == ["own"]
    assert "already" in unusable["own"]


def test_who_asks_for_one_that_cannot_be_used_reads_why(monkeypatch):
    """Beside the names of those there are."""
    monkeypatch.setattr(registry, "UNUSABLE", {"own": "hospital.methods:Own of hospital: no module"})
    with pytest.raises(UnknownMethod):
        registry.method_named("own")


def test_the_command_lists_what_is_installed_where_no_service_answers():
    """With the sentence that none does."""
    status, said = run_program("flower-unlearn", "--server", "127.0.0.1:1", "methods")
    assert status == 0
    assert "These are installed on this machine" in said
    assert "puf-special" in said
