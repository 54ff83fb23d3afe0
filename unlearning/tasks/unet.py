"""A small residual U-Net with GroupNorm, for segmentation.

Source: Ronneberger et al., U-Net; Zhang et al., Road Extraction by Deep Residual U-Net, for the
residual blocks normalised before the activation.
"""

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64)
NUM_GROUPS = 8


class ResidualBlock(nn.Module):
    """Norm, ReLU, convolution, twice, beside a 1x1 shortcut; `stride` 2 halves the image."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.GroupNorm(NUM_GROUPS, channels),
            nn.ReLU(),
            nn.Conv2d(channels, width, 3, stride=stride, padding=1),
            nn.GroupNorm(NUM_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(channels, width, 1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, h, w) to (n, width, h/stride, w/stride)."""
        output: Tensor = self.residual(images) + self.shortcut(images)
        return output


class ResUNet(nn.Module):
    """Two levels down and up with skip connections; height and width must be multiples of 4."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        fine, middle, coarse = WIDTHS
        self.stem = nn.Conv2d(input_shape[0], fine, 3, padding=1)
        self.encoder_fine = ResidualBlock(fine, fine)
        self.encoder_middle = ResidualBlock(fine, middle, stride=2)
        self.bottom = ResidualBlock(middle, coarse, stride=2)
        self.up_middle = nn.ConvTranspose2d(coarse, middle, 2, stride=2)
        self.decoder_middle = ResidualBlock(2 * middle, middle)
        self.up_fine = nn.ConvTranspose2d(middle, fine, 2, stride=2)
        self.decoder_fine = ResidualBlock(2 * fine, fine)
        self.head = nn.Conv2d(fine, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, height, width) to logits (n, classes, height, width)."""
        fine = self.encoder_fine(self.stem(images))
        middle = self.encoder_middle(fine)
        coarse = self.bottom(middle)
        middle = self.decoder_middle(torch.cat([self.up_middle(coarse), middle], dim=1))
        fine = self.decoder_fine(torch.cat([self.up_fine(middle), fine], dim=1))
        logits: Tensor = self.head(fine)
        return logits
