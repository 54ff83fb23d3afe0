"""Small convolutional classifiers; see `models` for what every factory promises."""

from torch import Tensor, nn

CNN_POOLED_SIDE = 4


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
