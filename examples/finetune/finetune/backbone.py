"""The network that stays as it is, and how its weights are made on pictures that are nobody's at a site:

    python -m finetune.backbone backbone.pt

Put your own network here. What it needs: one vector for each example, always the same one (no dropout).
"""

import sys
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from unlearning.errors import DataError

NUM_FEATURES = 32
NUM_PUBLIC = 600
"""So many of the 1,797 pictures are public: the backbone is trained on them, and no site has them."""


class UnitLength(nn.Module):
    """Features of length 1, so that a bound on them is known whatever the pictures are."""

    def forward(self, features: Tensor) -> Tensor:
        """Scale (n, f) to rows of length 1."""
        return nn.functional.normalize(features)


def make_backbone(path: str) -> nn.Sequential:
    """Return the network (n, 64) to (n, 32), with the weights in the file `path`; random ones where it is empty.

    Raises:
        DataError: the file is not there, or is another network's.
    """
    network = nn.Sequential(
        nn.Linear(64, 64), nn.GELU(), nn.Linear(64, NUM_FEATURES), nn.LayerNorm(NUM_FEATURES), UnitLength()
    )
    if path:
        try:
            network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as exc:  # torch's errors have no common base
            raise DataError(
                f"{path} cannot be read as the backbone's weights ({exc}). Make it with `python -m finetune.backbone "
                f"{path}`; every machine needs the same file."
            ) from exc
    return network


@cache
def pictures() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits in an order of our own: inputs (1797, 64) from 0 to 1, targets (1797,)."""
    inputs, targets = load_digits(return_X_y=True)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(inputs / 16)[order], torch.from_numpy(targets).long()[order]


def pretrain(path: Path) -> float:
    """Train the backbone on the public pictures, write its weights, and return the loss at the end."""
    torch.manual_seed(0)
    inputs, targets = (part[:NUM_PUBLIC] for part in pictures())
    backbone = make_backbone("")
    model = nn.Sequential(backbone, nn.Linear(NUM_FEATURES, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.float()), targets)
        loss.backward()
        optimizer.step()
    torch.save(backbone.state_dict(), path)
    return loss.item()


if __name__ == "__main__":
    print(f"{sys.argv[1]}: loss {pretrain(Path(sys.argv[1])):.3f} on {NUM_PUBLIC} public pictures")
