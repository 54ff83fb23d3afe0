"""A certificate of a model that is frozen in part: `verify` checks what was trained and what was not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from server.certificate.keys import PUBLIC_KEY, SIGNING_KEY, make_key_pair
from server.cli import app
from tests.acceptance.test_own_app import Apps
from tests.own_pictures import TASK
from unlearning.training import frozen_part

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that has forgotten client 1 and signs, and its model."""
    made = tmp_path_factory.mktemp("frozen")
    make_key_pair(made / "keys")
    Apps(made).run(
        **{"rounds": 2, "recovery-max-rounds": 0, "certificate-key": str(made / "keys" / SIGNING_KEY)},
        requests="at=2 client=1 method=puf-special",
    )
    words = ["model", "--state-dir", str(made / "state"), "--output", str(made / "model.pt")]
    done = CliRunner().invoke(app, [*words, "--app", str(REPOSITORY)])
    assert done.exit_code == 0, done.output
    return made


def verified(directory: Path, model: Path) -> str:
    """What the check says of the model."""
    certificate = directory / "state" / "reports" / "r-000001" / "certificate.json"
    words = ["verify", str(certificate), "--public-key", str(directory / "keys" / PUBLIC_KEY)]
    done = CliRunner().invoke(app, [*words, "--model", str(model)])
    return next(line for line in done.output.splitlines() if "model:" in line)


def test_the_model_as_it_was_written_holds_with_its_frozen_part(directory):
    """Both hashes are in the certificate."""
    said = verified(directory, directory / "model.pt")
    assert said.startswith("holds\t")
    assert f"on the certified frozen part, {frozen_part(TASK)[:16]}." in said


def plus(name: str, difference: float | torch.Tensor) -> Callable[[Any], Any]:
    """Change one tensor, or add it."""

    def change(values: Any) -> Any:
        values[name] = values.get(name, 0) + difference
        return values

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (plus("0.1.weight", 1e-3), "its frozen part is another"),
        (plus("0.2.num_batches_tracked", 1), "its frozen part is another"),
        (plus("0.9.weight", torch.ones(2)), "its frozen part is another"),
        (plus("2.bias", 1e-3), "another model"),
        (dict, "does not say which of its tensors were trained"),
    ],
)
def test_what_was_changed_is_refused_by_name(directory, tmp_path, change: Callable[[Any], Any], words):
    """The backbone alone, a counter of it, the head, or a file that was saved again without the mark."""
    torch.save(change(torch.load(directory / "model.pt", weights_only=True)), tmp_path / "model.pt")
    said = verified(directory, tmp_path / "model.pt")
    assert said.startswith("REFUSED\t")
    assert words in said
