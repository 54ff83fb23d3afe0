"""Networks as users write them, small."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from benchmarks.user_apps.kind import NUM_CLASSES


class Quickstart(nn.Module):
    """Two convolutions whose features are viewed as a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16, 24)
        self.fc2 = nn.Linear(24, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of pictures (n, 3, 16, 16)."""
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.view(-1, 16)
        logits: Tensor = self.fc2(functional.relu(self.fc1(x)))
        return logits


class Recurrent(nn.Module):
    """A GRU or an LSTM, and a layer on its last output."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.recurrent = kind(5, 12, batch_first=True)
        self.head = nn.Linear(12, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of sequences (n, length, 5)."""
        logits: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return logits


class Encoder(nn.Module):
    """A transformer over token ids; with `tied`, its class scores come from the word vectors."""

    def __init__(self, *, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30 if tied else NUM_CLASSES, bias=not tied)
        if tied:
            self.head.weight = self.words.weight
        self.tied = tied

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of token ids (n, length)."""
        logits: Tensor = self.head(self.encoder(self.words(x)).mean(dim=1))
        return logits.reshape(-1, NUM_CLASSES, 10).mean(dim=2) if self.tied else logits


class SparseWords(nn.Module):
    """Word vectors with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(30, 16, sparse=True)
        self.head = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of token ids (n, length)."""
        logits: Tensor = self.head(self.words(x))
        return logits


class Causal(nn.Module):
    """Attention to earlier words only, by a mask of minus infinity that is in the state dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.shares = nn.Embedding(30, 16), nn.Linear(16, 48)
        self.head = nn.Linear(16, NUM_CLASSES)
        self.mask: Tensor
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of token ids (n, 8)."""
        query, key, value = self.shares(self.words(x)).chunk(3, dim=-1)
        attention = torch.softmax(query @ key.transpose(1, 2) / 4 + self.mask, dim=-1)
        logits: Tensor = self.head((attention @ value).mean(1))
        return logits


class Rotated(nn.Module):
    """Turns pairs of numbers by fixed angles, which are a buffer of complex numbers, as rotary positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, NUM_CLASSES)
        self.turns: Tensor
        self.register_buffer("turns", torch.polar(torch.ones(8), torch.arange(8.0)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of vectors (n, 8)."""
        pairs = torch.view_as_complex(self.body(x).reshape(-1, 8, 2))
        logits: Tensor = self.head(torch.view_as_real(pairs * self.turns).flatten(1).relu())
        return logits


class Sampled(nn.Module):
    """Adds noise in eval mode as well, as a variational autoencoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(8, 16), nn.Linear(8, 16)
        self.head = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of vectors (n, 8)."""
        mean, spread = self.mean(x), torch.exp(self.spread(x) / 2)
        logits: Tensor = self.head(mean + spread * torch.randn_like(mean))
        return logits


class Complex(nn.Module):
    """A layer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, NUM_CLASSES, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of vectors (n, 8)."""
        return (x.to(self.weight.dtype) @ self.weight).abs()


class Checkpointed(nn.Module):
    """Activations are computed again instead of kept."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(8, out=16), nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of vectors (n, 8)."""
        logits: Tensor = self.head(torch.relu(checkpoint(self.body, x, use_reentrant=False)))
        return logits


class Masked(nn.Module):
    """The mean word of a text without its padding, from a batch that is a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 16), nn.Linear(16, NUM_CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return class scores of token ids and their mask, each (n, length)."""
        mask = attention_mask.unsqueeze(2).to(self.words.weight.dtype)
        mean = (self.words(input_ids) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        logits: Tensor = self.head(mean)
        return logits


class Segmenter(nn.Module):
    """Scores of each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each pixel (n, 2, h, w)."""
        scores: Tensor = self.layers(x)
        return scores


def mlp(
    width: int = 8, hidden: int = 16, out: int = NUM_CLASSES, norm: nn.Module | None = None
) -> nn.Sequential:
    """Return one hidden layer, perhaps normalised."""
    return nn.Sequential(
        nn.Linear(width, hidden), *([norm] if norm is not None else []), nn.ReLU(), nn.Linear(hidden, out)
    )


def frozen_backbone() -> nn.Sequential:
    """Return a head on a network that is not trained."""
    return nn.Sequential(mlp(out=12).requires_grad_(False), nn.ReLU(), nn.Linear(12, NUM_CLASSES))


def weight_normalised() -> nn.Sequential:
    """Return a layer whose weight is a length and a direction."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, NUM_CLASSES)
    )


def hugging_face(**changes: int) -> nn.Module:
    """Return a text classifier made from a configuration; it returns logits.

    Raises:
        ImportError: `transformers` is not installed.
    """
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=30,
        dim=16,
        hidden_dim=32,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=8,
        num_labels=NUM_CLASSES,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        **changes,
    )
    return Logits(DistilBertForSequenceClassification(config))


def hugging_face_with_lora() -> nn.Module:
    """Return the same with LoRA adapters, of which alone something is trained, and the classifier's layers.

    Raises:
        ImportError: `peft` is not installed.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    inner: Any = hugging_face().inner
    wanted = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=2, lora_alpha=4, lora_dropout=0.0, target_modules=["q_lin", "v_lin"]
    )
    return Logits(get_peft_model(inner, wanted))


class Logits(nn.Module):
    """A model of transformers, of whose output only the logits are given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of token ids (n, length)."""
        logits: Tensor = self.inner(input_ids=x).logits
        return logits
