"""`flower_unlearning.NAME` is the package NAME itself, for Python, for pickles and for type checkers."""

import pickle
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import flower_unlearning
from flower_unlearning_names import PACKAGES

HERE = Path(flower_unlearning.__file__).parent
BELOW = ("client.app", "server.requests.admission", "strategies.messages", "unlearning.tasks.task")


@pytest.mark.parametrize("name", [*PACKAGES, *BELOW])
def test_a_module_has_two_names_and_is_one(name: str) -> None:
    """It goes on to say its own name, also where it is reloaded from."""
    module = import_module(f"flower_unlearning.{name}")
    assert module is import_module(name) is sys.modules[f"flower_unlearning.{name}"]
    assert module.__name__ == module.__spec__.name == name


def test_either_name_may_come_first() -> None:
    """The long one here, the short one in all other tests."""
    code = (
        "import flower_unlearning.unlearning.errors as a, unlearning.errors as b\n"
        "import unlearning.gdpr as c, flower_unlearning.unlearning.gdpr as d\n"
        "assert a is b and c is d"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pickle_is_read_under_either_name() -> None:
    """One that was written where the long name was the module's own, too."""
    from flower_unlearning.unlearning.requests import Target

    written = pickle.dumps(Target, protocol=0)  # which names the module in plain text
    long = written.replace(b"cunlearning.requests", b"cflower_unlearning.unlearning.requests")
    assert written != long
    assert pickle.loads(written) is pickle.loads(long) is Target


@pytest.mark.parametrize("name", ["client.nothing", "benchmarks", "nothing"])
def test_what_is_not_there_is_not_found(name: str) -> None:
    assert find_spec(f"flower_unlearning.{name}") is None


def test_each_stub_names_the_module_in_its_place() -> None:
    stubs = sorted(HERE.rglob("*.pyi"))
    assert {stub.relative_to(HERE).parts[0] for stub in stubs} == set(PACKAGES)
    for stub in stubs:
        name = ".".join(stub.relative_to(HERE).with_suffix("").parts).removesuffix(".__init__")
        assert stub.read_text() == f"from {name} import *\n"
        assert find_spec(name) is not None
