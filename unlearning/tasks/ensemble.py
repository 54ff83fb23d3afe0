"""An ensemble of shard models as one model, for a federation that trains several apart (SISA).

The flat vector holds S numbers, 1 where a shard votes and 0 where it was never trained or no client is left in it,
and then the S shard models one after the other, each as the single model's.

    trains        log of the mean probability of the voting shards
    vote = mean   the same
    vote = outputs: the mean of the voting shards' outputs, of a task that tells no classes apart (its score is named
                  otherwise than accuracy or dice), whatever vote is wanted
    vote = majority (the default): each voting shard names its arg-max. p = (1 − τ) · share of the votes +
                  τ · mean probability, τ = 1/(S + 2), so that most votes win, the mean probability decides a
                  tie, and every loss is finite; the output is log p

Outputs are log-probabilities, but for `outputs`: the losses and measures of the single model's task read them as they
are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from unlearning.parameters import Vector, at_home
from unlearning.tasks.inputs import as_outputs
from unlearning.tasks.task import Task

Vote: TypeAlias = Literal["majority", "mean"]

_OF_CLASSES = ("accuracy", "dice")


class Ensemble(nn.Module):
    """The shard models; shard s starts as the single model does with the seed that is s larger."""

    votes: Tensor
    travelling_buffers = ("votes",)

    def __init__(
        self, builder: Callable[[], nn.Module], num_shards: int, vote: Vote | Literal["outputs"]
    ) -> None:
        super().__init__()
        seed = torch.initial_seed()
        members = []
        with torch.random.fork_rng(devices=[]):
            for shard in range(num_shards):
                torch.manual_seed(seed + shard)
                members.append(builder())
        for member in members[1:]:
            _share_frozen(members[0], member)
        self.shards = nn.ModuleList(members)
        self.register_buffer("votes", torch.zeros(num_shards))
        self._vote = vote

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return log-probabilities of the shape of one model's logits; or the mean outputs."""
        outputs = torch.stack([as_outputs(model, model(*inputs, **named)) for model in self.shards])
        # Before the first round no shard has a vote; then all do.
        votes = self.votes if bool(self.votes.any()) else torch.ones_like(self.votes)
        weights = (votes / votes.sum()).reshape(-1, *[1] * (outputs.ndim - 1))
        if self._vote == "outputs":
            return (outputs * weights).sum(dim=0)
        logs = torch.log_softmax(outputs, dim=2)
        mean = torch.logsumexp(logs + weights.log(), dim=0)
        if self.training or self._vote == "mean":
            return mean
        classes = nn.functional.one_hot(logs.argmax(dim=2), logs.shape[2]).movedim(-1, 2)
        shares = (classes.to(logs.dtype) * weights).sum(dim=0)
        tie_break = torch.tensor(1 / (len(votes) + 2), dtype=logs.dtype, device=logs.device)
        return torch.logaddexp((1 - tie_break).log() + shares.log(), tie_break.log() + mean)


def _share_frozen(first: nn.Module, other: nn.Module) -> None:
    """Give `other` the frozen part of `first`, which is the single model's; its parameters lie in memory once."""
    other.load_state_dict(at_home(first), strict=False)
    for one, same in zip(first.modules(), other.modules(), strict=True):
        for name, parameter in one.named_parameters(recurse=False):
            if not parameter.requires_grad:
                setattr(same, name, parameter)


def shard_task(task: Task, num_shards: int, vote: Vote = "majority") -> Task:
    """Return the task of an ensemble of `num_shards` models of `task`, which `Task.shard` of it is."""
    own = vote if task.score_name in _OF_CLASSES else "outputs"
    builder = partial(Ensemble, task.build_model, num_shards, own)
    load = partial(_load_all, task.load_pretrained) if task.load_pretrained else None
    return replace(
        task,
        name=f"{task.name} in {num_shards} shards",
        build_model=builder,
        load_pretrained=load,
        shard=task,
    )


def _load_all(load_pretrained: Callable[[nn.Module], None], model: nn.Module) -> None:
    """Start every shard from the same pre-trained weights, each with a head of its own."""
    assert isinstance(model, Ensemble), "made by `shard_task`"
    for member in model.shards:
        load_pretrained(member)


def part(vector: Vector, shard: int, num_shards: int) -> slice:
    """Return where shard `shard` of an ensemble's flat vector lies."""
    size = (vector.size - num_shards) // num_shards
    return slice(num_shards + shard * size, num_shards + (shard + 1) * size)
