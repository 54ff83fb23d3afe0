"""Embeddings with second derivatives and a forward mode, which PyTorch lacks for bags and for sparse gradients."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def differentiable_embeddings(model: nn.Module) -> AbstractContextManager[object]:
    """Return what to enter while `model` is called; it does nothing where PyTorch has all derivatives."""
    bags = any(isinstance(one, nn.EmbeddingBag) for one in model.modules())
    sparse = any(isinstance(one, nn.Embedding) and one.sparse for one in model.modules())
    return DifferentiableEmbeddings() if bags or sparse else nullcontext()


class DifferentiableEmbeddings(TorchFunctionMode):
    """While entered, gradients of embeddings are dense, and the sum or mean of a bag is written out.

    A bag's maximum stays PyTorch's, and so does a bag whose gradient is scaled by frequency: it is none of a function.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, or do what concerns an embedding as it is done here."""
        given = dict(kwargs or {})
        if func in (functional.embedding, functional.embedding_bag):
            given["sparse"] = False
        if func is functional.embedding_bag and _is_linear(**given) and not args[0].is_nested:
            return _bag(*args, **given)
        return func(*args, **given)


def _is_linear(mode: str, scale_grad_by_freq: bool, **_others: Any) -> bool:
    return mode != "max" and not scale_grad_by_freq


def _bag(
    indices: Tensor,
    weight: Tensor,
    offsets: Tensor | None,
    max_norm: float | None,
    norm_type: float,
    mode: str,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
    **_others: Any,
) -> Tensor:
    """Compute Σ w_i e_i of each bag's embeddings e_i (bags, d), or (1/n) Σ e_i; an empty bag has zeros."""
    if padding_idx is not None:
        padding_idx %= len(weight)
    found = functional.embedding(indices, weight, padding_idx, max_norm, norm_type)
    counted = torch.ones_like(indices, dtype=weight.dtype)
    if padding_idx is not None:
        counted = (indices != padding_idx).to(weight.dtype)
    shares = counted if per_sample_weights is None else counted * per_sample_weights
    terms = found * shares.unsqueeze(-1)
    if offsets is None:
        total, count = terms.sum(-2), counted.sum(-1)
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        ends = torch.cat([offsets[1:], offsets.new_full((1,), len(indices))])[: len(starts)]
        bags = torch.arange(len(starts), device=offsets.device).repeat_interleave(ends - starts)
        total = terms.new_zeros(len(starts), weight.shape[1]).index_add(0, bags, terms[: len(bags)])
        count = counted.new_zeros(len(starts)).index_add(0, bags, counted[: len(bags)])
    return total if mode == "sum" else total / count.clamp_min(1).unsqueeze(-1)
