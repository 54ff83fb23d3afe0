"""ViT-Lite: a small vision transformer without dropout.

Source: Hassani et al., Escaping the Big Data Paradigm with Compact Transformers, ViT-Lite;
pre-normalised blocks after Dosovitskiy et al., An Image Is Worth 16x16 Words.
"""

import torch
from torch import Tensor, nn

WIDTH = 128
DEPTH = 4
NUM_HEADS = 4


class Attention(nn.Module):
    """Multi-head self-attention, written out: the fused kernels have no second derivative."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute (n, t, width) to the same shape."""
        n, t, width = tokens.shape
        head_width = width // self.num_heads
        split = self.query_key_value(tokens).reshape(n, t, 3, self.num_heads, head_width)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-2, -1) / head_width**0.5, dim=-1)
        mixed: Tensor = self.output((weights @ value).transpose(1, 2).reshape(n, t, width))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each normalised before and added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, num_heads))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute (n, t, width) to the same shape."""
        tokens = tokens + self.attention(tokens)
        output: Tensor = tokens + self.perceptron(tokens)
        return output


class ViT(nn.Module):
    """Patches, a class token and learnt positions, four blocks of width 128, and a head on the class token.

    Patches have 4x4 pixels, or 2x2 where a side is under 16.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        patch = 4 if min(height, width) >= 16 else 2
        num_patches = (height // patch) * (width // patch)
        self.patches = nn.Conv2d(channels, WIDTH, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.empty(1, num_patches + 1, WIDTH))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.blocks = nn.Sequential(*(Block(WIDTH, NUM_HEADS) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, height, width) to logits (n, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        encoded = self.norm(self.blocks(tokens + self.positions))
        logits: Tensor = self.head(encoded[:, 0])
        return logits
