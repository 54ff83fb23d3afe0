"""What only tests of whole federations in one process need."""

import pytest

from server.report import page


@pytest.fixture(autouse=True)
def reports_without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report's pictures take a fifth of a second; tests marked `pictures` draw them."""
    if request.node.get_closest_marker("pictures") is None:
        for name in ("score_plot", "attack_plot", "cost_plot"):
            monkeypatch.setattr(page, name, lambda _data: "")
