"""Training loops as users have them: `train(model, loader, settings)` in place of the built-in loop."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Loop = Callable[[nn.Module, Any, Any], float]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained."""
    return [one for one in model.parameters() if one.requires_grad]


def batches(loader: Any, settings: Any) -> Iterator[tuple[Any, Tensor]]:
    """Go through the data as often as asked."""
    for _ in range(settings.epochs):
        yield from loader


def own_loop(model: nn.Module, loader: Any, settings: Any) -> float:
    """Train by SGD, as in every tutorial."""
    optimizer = torch.optim.SGD(trained(model), lr=settings.learning_rate)
    losses = []
    model.train()
    for inputs, targets in batches(loader, settings):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def watched_loop(
    model: nn.Module, loader: Any, settings: Any, after_step: Callable[[nn.Module], bool] | None = None
) -> float:
    """Do the same and let a method look after each step, climb or bound the gradient."""
    optimizer = torch.optim.SGD(trained(model), lr=settings.learning_rate, maximize=settings.maximize)
    losses = []
    model.train()
    for inputs, targets in batches(loader, settings):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm:
            nn.utils.clip_grad_norm_(trained(model), settings.clip_norm)
        optimizer.step()
        losses.append(loss.item())
        if after_step is not None and after_step(model):
            break
    return sum(losses) / len(losses)


def one_cycle(model: nn.Module, loader: Any, settings: Any) -> float:
    """Train by Adam under a schedule that rises and falls within a round."""
    optimizer = torch.optim.Adam(trained(model), lr=settings.learning_rate / 10)
    steps = settings.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate / 3, total_steps=steps)
    losses = []
    for inputs, targets in batches(loader, settings):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def proximal(model: nn.Module, loader: Any, settings: Any) -> float:
    """Train with FedProx's pull to the model of the round."""
    start = copy.deepcopy(trained(model))
    optimizer = torch.optim.SGD(trained(model), lr=settings.learning_rate)
    losses = []
    for inputs, targets in batches(loader, settings):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        pull = sum(
            ((now - before.detach()) ** 2).sum() for now, before in zip(trained(model), start, strict=True)
        )
        (loss + 0.05 * pull).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def in_bfloat16(model: nn.Module, loader: Any, settings: Any) -> float:
    """Train with automatic mixed precision."""
    optimizer = torch.optim.SGD(trained(model), lr=settings.learning_rate)
    losses = []
    for inputs, targets in batches(loader, settings):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def by_trainer(model: nn.Module, loader: Any, settings: Any) -> float:
    """Train by the Trainer of `transformers`.

    Raises:
        ImportError: `transformers` or `accelerate` is not installed.
    """
    import tempfile

    from transformers import Trainer, TrainingArguments

    class Pairs(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __init__(self) -> None:
            self.pairs = [pair for batch in loader for pair in zip(*batch, strict=True)]

        def __len__(self) -> int:
            return len(self.pairs)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"x": self.pairs[index][0], "labels": self.pairs[index][1]}

    class OwnLoss(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **_: Any) -> Tensor:
            return cross_entropy(model(inputs["x"]), inputs["labels"])

    with tempfile.TemporaryDirectory() as folder:
        wanted = TrainingArguments(
            output_dir=folder,
            num_train_epochs=settings.epochs,
            learning_rate=settings.learning_rate / 20,
            per_device_train_batch_size=settings.batch_size,
            seed=settings.seed,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            remove_unused_columns=False,
        )
        return float(OwnLoss(model=model, args=wanted, train_dataset=Pairs()).train().training_loss)
