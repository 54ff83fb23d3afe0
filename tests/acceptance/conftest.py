"""What only tests of whole federations in one process need."""

from collections.abc import Iterator

import pytest

from server.report import html_page as page

PICTURES = {name: getattr(page, name) for name in ("score_plot", "attack_plot")}


@pytest.fixture(autouse=True, scope="module")
def reports_without_pictures() -> Iterator[None]:
    """A report's pictures take a fifth of a second, also those of federations that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        for name in PICTURES:
            patch.setattr(page, name, lambda _data: "")
        yield


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests marked `pictures` draw them."""
    if request.node.get_closest_marker("pictures") is not None:
        for name, drawn in PICTURES.items():
            monkeypatch.setattr(page, name, drawn)
