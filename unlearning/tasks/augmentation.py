"""Random changes of training pictures."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

PADDING = 4


def crop_and_flip(mean: Sequence[float], std: Sequence[float]) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Pad by 4 black pixels, crop back at a random place, mirror every second picture at random.

    `mean` and `std` are those by which the pictures were standardised: black is not 0 then.
    Source: He et al., Deep Residual Learning for Image Recognition, section 4.2.
    """
    black = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).reshape(-1, 1, 1)
    return partial(_crop_and_flip, black)


def _crop_and_flip(black: Tensor, pictures: Tensor, generator: torch.Generator) -> Tensor:
    n, channels, height, width = pictures.shape
    padded_size = (n, channels, height + 2 * PADDING, width + 2 * PADDING)
    canvas = black.to(pictures.dtype).expand(padded_size).clone()
    canvas[:, :, PADDING : PADDING + height, PADDING : PADDING + width] = pictures
    top = torch.randint(2 * PADDING + 1, (n, 1), generator=generator)
    left = torch.randint(2 * PADDING + 1, (n, 1), generator=generator)
    mirrored = torch.randint(2, (n, 1), generator=generator).bool()
    rows = top + torch.arange(height)
    straight = torch.arange(width)
    columns = left + torch.where(mirrored, straight.flip(0), straight)
    picture = torch.arange(n).reshape(n, 1, 1)
    cropped = canvas.movedim(1, -1)[picture, rows[:, :, None], columns[:, None, :]]
    return cropped.movedim(-1, 1).contiguous()
