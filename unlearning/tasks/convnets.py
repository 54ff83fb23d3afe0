"""Small convolutional networks; see `models` for what every factory promises."""

import torch
from torch import Tensor, nn

CNN_POOLED_SIDE = 4
RESNET_GROUPS = 2
UNET_WIDTHS = (16, 32, 64)
UNET_GROUPS = 8


class _PoolWhileLarge(nn.Module):
    """2x2 max-pooling of images of more than 8 pixels a side; smaller ones pass."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, height, width) to half the height and width."""
        pooled: Tensor = self.pool(images) if min(images.shape[-2:]) > 8 else images
        return pooled


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build three 3x3 convolutions, mean-pooling to 4x4, one hidden layer: 188,234 parameters on 1x28x28.

    The number of parameters does not depend on the height and width (10 classes; 188,810 with three
    channels), so digits, Fashion-MNIST and CIFAR-10 share one architecture.
    """
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 32, 3, padding=1),
        nn.ReLU(),
        _PoolWhileLarge(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        _PoolWhileLarge(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(CNN_POOLED_SIDE),
        nn.Flatten(),
        nn.Linear(64 * CNN_POOLED_SIDE**2, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


def small_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build three normalised 3x3 convolutions and a linear head, for CIFAR-10 on a CPU: 94,762 parameters.

    GroupNorm instead of BatchNorm: batch statistics differ between clients and cannot be unlearnt by
    negating an update.
    """
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for width in (32, 64, 128):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def lenet(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build LeNet-5 with ReLU and max-pooling: 61,706 parameters on 1x28x28 and 10 classes.

    Source: LeCun, Bottou, Bengio, Haffner, Gradient-Based Learning Applied to Document Recognition.
    """
    channels, height, width = input_shape
    flat = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(RESNET_GROUPS, width, eps=1e-5)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(channels, width, 3, stride),
            _norm(width),
            nn.ReLU(),
            _convolution(width, width, 3),
            _norm(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(_convolution(channels, width, 1, stride), _norm(width))
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, h, w) to (n, width, h/stride, w/stride)."""
        output: Tensor = self.activation(self.residual(images) + self.shortcut(images))
        return output


def resnet18(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build ResNet-18 for small images: 11,173,962 parameters in 62 tensors for 3 channels and 10 classes.

    Source: He et al., Deep Residual Learning for Image Recognition, Table 1, with the changes of PUF's experiments:
    GroupNorm of 2 groups for BatchNorm, a 3x3 stem without max-pooling.
    """
    layers: list[nn.Module] = [_convolution(input_shape[0], 64, 3), _norm(64), nn.ReLU()]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(channels, width, stride), BasicBlock(width, width, 1)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Norm, ReLU, convolution, twice, beside a 1x1 shortcut; `stride` 2 halves the image."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.GroupNorm(UNET_GROUPS, channels),
            nn.ReLU(),
            nn.Conv2d(channels, width, 3, stride=stride, padding=1),
            nn.GroupNorm(UNET_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(channels, width, 1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, h, w) to (n, width, h/stride, w/stride)."""
        output: Tensor = self.residual(images) + self.shortcut(images)
        return output


class ResUNet(nn.Module):
    """A small residual U-Net: two levels down and up with skip connections; height and width must be multiples of 4.

    Source: Ronneberger et al., U-Net; Zhang et al., Road Extraction by Deep Residual U-Net, for the residual blocks
    normalised before the activation.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        fine, middle, coarse = UNET_WIDTHS
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
