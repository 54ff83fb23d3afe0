"""ResNet-18 for small images, with GroupNorm.

Source: He et al., Deep Residual Learning for Image Recognition, Table 1, with the changes of PUF's
experiments: GroupNorm of 2 groups for BatchNorm, a 3x3 stem without max-pooling.
"""

from torch import Tensor, nn

NUM_GROUPS = 2


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(NUM_GROUPS, width, eps=1e-5)


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
    """Build 11,173,962 parameters in 62 tensors for 3 channels and 10 classes."""
    layers: list[nn.Module] = [_convolution(input_shape[0], 64, 3), _norm(64), nn.ReLU()]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(channels, width, stride), BasicBlock(width, width, 1)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)
