"""What commands on a data owner's machine share: their state directory; and `flower-unlearn-site noise`.

With `noise` an owner plants noise in its own data, and sees whether the federation's models know it.
"""

from pathlib import Path
from typing import Annotated

import typer

from client.memory import PLANTED, site_directory
from strategies.command_line import Command, Printing, say, show_table
from unlearning.errors import InvalidRequest

noise_app = typer.Typer(
    no_args_is_help=True,
    help="Noise in this site's own data, by which its owner sees whether a model still knows it.",
)

StateDir = Annotated[
    Path,
    typer.Option(
        parser=lambda text: site_directory(Path(text)),
        metavar="PATH",
        help="The client's state directory, as in the SuperNode's --node-config.",
    ),
]


@noise_app.command(cls=Command)
def plant(
    state_dir: StateDir,
    data: Annotated[Path, typer.Option(help="This site's train.npz (docs/how-to-use-your-own-data.md).")],
    output: Annotated[Path, typer.Option(help="Where the noisy train.npz goes: the data-dir to train on.")],
    deviation: Annotated[float, typer.Option(help="Of the noise, in the inputs' own scale.")],
    share: Annotated[float, typer.Option(help="Of the examples that get noise.")] = 0.1,
    seed: Annotated[int | None, typer.Option(help="Of the noise; random without it.")] = None,
) -> None:
    """Write a copy of the data with noise in a share of the examples; the noise stays in the state directory."""
    from client.planted_noise import plant_in_file

    count = plant_in_file(data, output, state_dir, share=share, deviation=deviation, seed=seed)
    typer.echo(
        f"{count} example(s) in {output / 'train.npz'} carry noise. Train on that directory; {state_dir / PLANTED} "
        "holds the noise and stays here. `flower-unlearn-site noise show` shows what models know of it."
    )


@noise_app.command(cls=Printing)
def show(state_dir: StateDir) -> None:
    """Show for each model that this site measured whether it still knows the noise."""
    from client.planted_noise import read_scores

    if not (state_dir / PLANTED).exists():
        raise InvalidRequest(
            f"No noise was planted here: {state_dir} holds no {PLANTED}. `noise plant` makes it, before training."
        )
    found = read_scores(state_dir)
    rows = [(str(one.round), one.model[:16], f"{one.z:.2f}", f"{one.p_value:.2g}") for one in found]
    empty = "No model was measured here yet: that happens before, during and after a deletion."
    show_table(("round", "model", "z", "p"), rows, empty, data=found)
    if not found:
        return
    first, last = found[0], found[-1]
    say(
        f"z was {first.z:.2f} and is {last.z:.2f}. Of a model that never saw the noise it is above 2.33 in one of a "
        "hundred cases; a model that does not know its examples by heart may not know the noise either, so what counts "
        "is a z that was high. The certificate names the models by the same hashes."
    )
