"""Crop and flip."""

import torch
from torch import Tensor
from torch.nn import functional

from unlearning.tasks.datasets import crop_and_flip

augment = crop_and_flip((0.5, 0.25), (0.5, 0.5))
BLACK = (-1.0, -0.5)


def pictures() -> Tensor:
    return torch.rand(50, 2, 6, 5, generator=torch.Generator().manual_seed(0))


def test_every_picture_is_a_crop_of_itself_in_a_black_frame() -> None:
    """Straight or mirrored, at one of 9 x 9 places; all channels alike; every place can occur."""
    originals = pictures()
    changed = augment(originals, torch.Generator().manual_seed(0))
    found = set()
    for original, picture in zip(originals, changed, strict=True):
        padded = torch.stack(
            [
                functional.pad(channel, (4, 4, 4, 4), value=black)
                for channel, black in zip(original, BLACK, strict=True)
            ]
        )
        places = [
            (top, left, mirrored)
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
            if torch.equal(picture, crop(padded, top, left, mirrored))
        ]
        assert places
        found.add(places[0])
    assert {mirrored for _, _, mirrored in found} == {False, True}
    assert len({(top, left) for top, left, _ in found}) > 20


def crop(padded: Tensor, top: int, left: int, mirrored: bool) -> Tensor:
    cut = padded[:, top : top + 6, left : left + 5]
    return cut.flip(-1) if mirrored else cut


def test_the_generator_alone_decides() -> None:
    """The same generator state gives the same pictures; the originals stay."""
    originals = pictures()
    first = augment(originals, torch.Generator().manual_seed(1))
    again = augment(originals, torch.Generator().manual_seed(1))
    other = augment(originals, torch.Generator().manual_seed(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(originals, pictures())
