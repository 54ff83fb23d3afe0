"""What is learnt: a linear head on a frozen network, or LoRA adapters in it as well."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from finetune.backbone import NUM_FEATURES, NUM_PUBLIC, make_backbone, pictures
from unlearning.errors import ConfigurationError
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import classification_measures, cross_entropy

NUM_TEST = 300


def make_task(settings: Mapping[str, Any]) -> Task:
    """Return the head on the network, which is frozen; with `adapter="lora"` adapters of that rank are learnt too.

    Only what is learnt travels: 330 numbers of the head, and 896 of adapters of rank 4.

    Raises:
        ConfigurationError: there is no such adapter or precision, or the package `peft` is not installed.
    """
    if settings["adapter"] not in ("", "lora") or settings["precision"] not in ("float32", "float64"):
        raise ConfigurationError(
            [
                f'finetune.adapter must be "" or "lora", and precision "float32" or "float64", got '
                f"{settings['adapter']!r} and {settings['precision']!r}."
            ]
        )

    def build_model() -> nn.Module:
        backbone = make_backbone(settings["backbone"]).requires_grad_(False)
        if settings["adapter"]:
            backbone = with_adapters(backbone, settings["rank"])
        return nn.Sequential(backbone, nn.Linear(NUM_FEATURES, 10))

    return Task(
        name="finetune",
        num_classes=10,
        score_name="accuracy",
        build_model=build_model,
        loss=cross_entropy,
        per_example=classification_measures,
        dtype=getattr(torch, settings["precision"]),
    )


def with_adapters(backbone: nn.Sequential, rank: int) -> nn.Sequential:
    """Return the network with a LoRA adapter beside each linear layer, of which alone something is trained.

    Raises:
        ConfigurationError: the package `peft` is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as exc:
        raise ConfigurationError(
            ["finetune.adapter: lora needs the package peft: pip install 'flower-unlearning[finetune]'."]
        ) from exc
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    adapted: nn.Sequential = inject_adapter_in_model(
        LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=linear), backbone
    )
    return adapted


def load_site(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    """Return this site's share of the pictures that are neither public nor the server's."""
    site, num_sites = int(node_config["partition-id"]), int(node_config["num-partitions"])
    rows = np.arange(NUM_PUBLIC + NUM_TEST, 1797)[site::num_sites]
    return Site(train=_examples(rows), test=_examples(rows[:0]))


def load_test(settings: Mapping[str, Any]) -> Examples | None:
    """Return the pictures that the server measures on."""
    return _examples(np.arange(NUM_PUBLIC, NUM_PUBLIC + NUM_TEST))


def _examples(rows: NDArray[np.intp]) -> Examples:
    inputs, targets = pictures()
    return Examples(inputs[rows], targets[rows], np.array([f"picture-{row}" for row in rows], dtype=np.str_))
