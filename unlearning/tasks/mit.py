"""MiT-B0, the encoder of SegFormer with a linear head, from the optional package `transformers`.

Source: Xie et al., SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers; as
PUF, Section V-A, trains it on CIFAR-100: pictures resized to 224x224, a pre-trained encoder, the
one-layer head initialised at random.

Unlike PUF's it drops no layers at random (the library's default drops each with probability up to 0.1 in
training): the loss of an example then depends on the weights alone, as with the other models here.
"""

from typing import Any

import torch
from torch import Tensor, nn

from unlearning.errors import DataError

PACKAGE = "transformers"
IMAGE_SIDE = 224
SMALLEST_SIDE = 32
"""The first of the four stages sees a quarter of a side, in windows of 8."""
_ATTENTION = "unlearning-written-out"


class MixTransformer(nn.Module):
    """The library's classifier behind a resize to squares of `image_side` pixels, with random weights.

    3,345,092 parameters on colour pictures and 100 classes, 3.6M on ImageNet's 1,000.

    Raises:
        ImportError: the optional package is not installed.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, image_side: int = IMAGE_SIDE) -> None:
        super().__init__()
        from transformers import AttentionInterface, SegformerConfig, SegformerForImageClassification

        self._side = image_side
        AttentionInterface.register(_ATTENTION, _attention)
        config = SegformerConfig(
            num_channels=input_shape[0],
            num_labels=num_classes,
            drop_path_rate=0.0,
            attn_implementation=_ATTENTION,
        )
        self.network = SegformerForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        """Compute (n, channels, height, width) to logits (n, classes)."""
        if images.shape[2:] != (self._side, self._side):
            size = (self._side, self._side)
            images = nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)
        logits: Tensor = self.network(images).logits
        return logits


def load_pretrained(source: str, model: nn.Module) -> None:
    """Put a checkpoint's encoder into `model`, in place; the head stays as it was initialised.

    source: a directory in the library's format, or the id of a model that it can fetch.

    Raises:
        DataError: there is no such checkpoint, or it is not one of MiT-B0 on colour pictures.
    """
    from safetensors import SafetensorError
    from transformers import SegformerModel
    from transformers.utils import logging

    assert isinstance(model, MixTransformer), "only this model has such checkpoints"
    logging.disable_progress_bar()
    try:
        found, told = SegformerModel.from_pretrained(source, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as exc:
        raise DataError(
            f"The pre-trained model {source!r} cannot be loaded ({exc}). Name a directory that holds config.json "
            "and model.safetensors, or the id of a model that this machine can fetch."
        ) from exc
    missing = sorted(told["missing_keys"])
    try:
        if missing:
            raise DataError(f"The pre-trained model {source!r} lacks {', '.join(missing[:3])}, …: no MiT-B0.")
        model.network.segformer.load_state_dict(found.state_dict())
    except RuntimeError as exc:
        raise DataError(
            f"The pre-trained model {source!r} is of another shape than MiT-B0 on colour pictures: {exc}."
        ) from exc


def _attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute (n, heads, t, width) each to (n, t, heads, width), with the weights, in the model's own precision.

    The fused kernels have no second derivative, and the library's eager one takes the softmax in float32.
    """
    weights = torch.softmax(query @ key.transpose(2, 3) * scaling, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights
