"""What a terminal shows while a request is followed."""

from io import StringIO

from rich.console import Console

from server.service.narrator import Narrator


def test_brackets_in_a_name_are_shown_as_they_are() -> None:
    """They are no markup: one that closes nothing ended the command."""
    shown = StringIO()
    narrator = Narrator(Console(file=shown, force_terminal=True, width=100))
    with narrator.show_progress():
        narrator.now("r-000001, forget client [/red]ward[1]")
    assert "client [/red]ward[1] …" in shown.getvalue()
