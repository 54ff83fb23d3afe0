"""What commands on a data owner's machine share: how they end, their state directory; and `flower-unlearn-site noise`.

With `noise` an owner plants noise in its own data, and sees whether the federation's models know it.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from client.memory import PLANTED
from unlearning.errors import FlowerUnlearningError, InvalidRequest
from unlearning.runtime.command_output import outlive_readers
from unlearning.runtime.durable_files import keep_private
from unlearning.runtime.gc_tuning import end_without_collecting

noise_app = typer.Typer(
    no_args_is_help=True,
    help="Noise in this site's own data, by which its owner sees whether a model still knows it.",
)

StateDir = Annotated[
    Path, typer.Option(help="The client's state directory, as in the SuperNode's --node-config.")
]


def run_command(app: typer.Typer) -> None:
    """Run the command; errors are one sentence, not a stack trace."""
    keep_private()
    outlive_readers()
    end_without_collecting()
    try:
        app()
    except (FlowerUnlearningError, OSError, UnicodeError) as exc:
        typer.echo(f"Error: {exc}", err=True)
        sys.exit(2)


@noise_app.command()
def plant(
    state_dir: StateDir,
    data: Annotated[Path, typer.Option(help="This site's train.npz (docs/tasks.md).")],
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


@noise_app.command()
def show(state_dir: StateDir) -> None:
    """Show for each model that this site measured whether it still knows the noise."""
    from client.planted_noise import read_scores

    if not (state_dir / PLANTED).exists():
        raise InvalidRequest(
            f"No noise was planted here: {state_dir} holds no {PLANTED}. `noise plant` makes it, before training."
        )
    found = read_scores(state_dir)
    if not found:
        typer.echo("No model was measured here yet: that happens before, during and after a deletion.")
        return
    for score in found:
        typer.echo(
            f"round {score.round:>5}  model {score.model[:16]}  z {score.z:7.2f}  p {score.p_value:.2g}"
        )
    first, last = found[0], found[-1]
    typer.echo(
        f"z was {first.z:.2f} and is {last.z:.2f}. Of a model that never saw the noise it is above 2.33 in one of a "
        "hundred cases; a model that does not know its examples by heart may not know the noise either, so what counts "
        "is a z that was high. The certificate names the models by the same hashes."
    )
