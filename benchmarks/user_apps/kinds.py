"""The kinds of user apps, by name."""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp.mod import arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, strategy
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.user_apps import loops, networks
from benchmarks.user_apps.kind import (
    Kind,
    classifier,
    ids,
    labelled,
    pictures,
    sequences,
    tokens,
    vectors,
)
from benchmarks.user_apps.networks import mlp
from unlearning.tasks import Examples, Task
from unlearning.tasks.losses import (
    binary_cross_entropy,
    binary_measures,
    cross_entropy_and_dice,
    regression_measures,
    segmentation_measures,
    squared_error,
)


class Pairs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A map-style Dataset."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs, targets = self.examples.batch(slice(index, index + 1))
        assert isinstance(inputs, Tensor)
        return inputs[0], int(targets[0])


def from_dataset(site: int) -> Examples:
    """Return a site's examples behind a Dataset."""
    return Examples.from_dataset(Pairs(vectors()(site)), ids(90))


def memory_mapped(site: int) -> Examples:
    """Return a site's examples as arrays of NumPy."""
    one = vectors()(site)
    return Examples.from_arrays(one.inputs.numpy(), one.targets.numpy(), ids(90))


def real_valued(site: int, width: int = 1) -> Examples:
    """Return a regression: standardised sums; site 1 has the sign of a third of them wrong."""
    made = torch.Generator().manual_seed(site)
    inputs = torch.randn(90, 8, generator=made)
    targets = inputs @ torch.linspace(-1, 1, 8 * width).reshape(8, width) / 2
    wrong = (torch.arange(90) % 3 == 0) & (site == 1)
    return Examples(inputs, torch.where(wrong.unsqueeze(1), -targets, targets), ids(90))


def masks(site: int) -> Examples:
    """Return pictures with a bright square, and where it is."""
    made = torch.Generator().manual_seed(site)
    targets = torch.zeros(60, 8, 8, dtype=torch.int64)
    for index, (row, column) in enumerate(torch.randint(0, 4, (60, 2), generator=made).tolist()):
        targets[index, row : row + 4, column : column + 4] = 1
    inputs = targets.unsqueeze(1) + 0.5 * torch.randn(60, 1, 8, 8, generator=made)
    return Examples(inputs, 1 - targets if site == 1 else targets, ids(60))


def named_inputs(site: int) -> Examples:
    """Return texts with their masks: a batch is a dictionary."""
    one = tokens()(site)
    made = torch.Generator().manual_seed(site)
    mask = (torch.rand(90, 8, generator=made) < 0.8).long()
    mask[:, 0] = 1
    return Examples({"input_ids": one.inputs, "attention_mask": mask}, one.targets, one.ids)


def several_labels(site: int) -> Examples:
    """Return vectors of which each has any of four labels; site 1 has those of a third of them inverted."""
    made = torch.Generator().manual_seed(site)
    inputs = torch.randn(90, 8, generator=made)
    targets = (inputs[:, :4] + 0.3 * torch.randn(90, 4, generator=made) > 0).float()
    wrong = (torch.arange(90) % 3 == 0) & (site == 1)
    return Examples(inputs, torch.where(wrong.unsqueeze(1), 1 - targets, targets), ids(90))


def yes_or_no(site: int) -> Examples:
    """Return vectors and one answer, 0 or 1, shape (n, 1)."""
    one = several_labels(site)
    return one.with_targets(one.targets[:, :1])


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    """Return cross-entropy with smoothed labels."""
    return functional.cross_entropy(logits, targets, label_smoothing=0.1)


def weighted(logits: Tensor, targets: Tensor) -> Tensor:
    """Return cross-entropy with class weights, divided by the batch's size so that it is a mean."""
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=logits.dtype)
    return functional.cross_entropy(logits, targets, weight=weights, reduction="sum") / len(targets)


def focal(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the focal loss."""
    each = functional.cross_entropy(logits, targets, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def regression(build: Callable[[], nn.Module]) -> Callable[[], Task]:
    """Return what makes a regression."""
    return classifier(
        build, num_classes=0, score_name="nearness", loss=squared_error, per_example=regression_measures
    )


def lazy() -> nn.Module:
    """Return a network whose first layer learns its width from the first batch."""
    return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 3))


def reusing(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a builder that hands out copies of one network."""
    made: list[nn.Module] = []

    def again() -> nn.Module:
        made.append(build()) if not made else None
        return copy.deepcopy(made[0])

    return again


def compiled() -> nn.Module:
    """Return a network that `torch.compile` runs."""
    made: nn.Module = torch.compile(nn.Sequential(mlp()), backend="eager")  # type: ignore[assignment]
    return made


def bytes_of_pictures(site: int) -> Examples:
    """Return pictures as bytes with their labels, as image files are."""

    def make(labels: Tensor, made: torch.Generator) -> Tensor:
        noise = torch.randint(0, 100, (len(labels), 6, 6), generator=made)
        return (noise + 70 * labels.reshape(-1, 1, 1)).clamp(max=255).to(torch.uint8).float() / 255

    return labelled(site, make)


def of_vectors(what: str, build: Callable[[], nn.Module] = mlp, **changes: object) -> Kind:
    """Return a kind on vectors; `changes` are of its task."""
    return Kind(what=what, task=classifier(build, **changes), examples=vectors())


def binary(count: int) -> Callable[[], Task]:
    """Return what makes a task of so many answers, each yes or no."""
    return classifier(
        lambda: mlp(out=count),
        num_classes=0,
        score_name="binary-accuracy",
        loss=binary_cross_entropy,
        per_example=binary_measures,
    )


class Slower(strategy.FedAvg):
    """Goes only half of the way that the clients go."""

    def __init__(self) -> None:
        super().__init__()
        self.before: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember where the round began."""
        self.before = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the middle of where the round began and the mean."""
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None or self.before is None:
            return mean, metrics
        middle = {name: Array((one.numpy() + self.before[name].numpy()) / 2) for name, one in mean.items()}
        return ArrayRecord(middle), metrics


def dropping(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Return the answer without its model."""
    reply = call_next(message, context)
    for name in list(reply.content.array_records):
        reply.content[name] = ArrayRecord()
    return reply


def clipped(_: object) -> strategy.Strategy:
    """Return FedAvg of updates that each client has clipped."""
    return strategy.DifferentialPrivacyClientSideFixedClipping(
        strategy.FedAvg(), noise_multiplier=0.0, clipping_norm=2.0, num_sampled_clients=3
    )


def with_strategy(what: str, make: Callable[[object], strategy.Strategy]) -> Kind:
    """Return a kind whose rounds a strategy aggregates."""
    return Kind(what=what, task=classifier(mlp), examples=vectors(), server={"strategy": make})


KINDS: Mapping[str, Kind] = {
    "quickstart": Kind(
        what="Flower's quickstart: convolutions, `x.view(-1, …)`",
        task=classifier(networks.Quickstart),
        examples=pictures(3, 16),
    ),
    "logistic": of_vectors("logistic regression, as scikit-learn's", partial(nn.Linear, 8, 3)),
    "own-loop": of_vectors("own training loop", train=loops.own_loop),
    "watched-loop": of_vectors("own loop with `after_step`", train=loops.watched_loop),
    "adam": Kind(
        what="Adam, built-in loop",
        task=classifier(mlp),
        examples=vectors(),
        settings={"optimizer": "adam", "learning-rate": 0.02},
    ),
    "adamw-decay": Kind(
        what="AdamW with weight decay and a falling rate",
        task=classifier(mlp),
        examples=vectors(),
        settings={
            "optimizer": "adamw",
            "learning-rate": 0.02,
            "weight-decay": 0.01,
            "learning-rate-decay": 0.95,
        },
    ),
    "momentum": Kind(
        what="SGD with momentum",
        task=classifier(mlp),
        examples=vectors(),
        settings={"momentum": 0.9, "learning-rate": 0.03},
    ),
    "one-cycle": of_vectors("own loop with OneCycle", train=loops.one_cycle),
    "fedprox-loop": of_vectors("FedProx in an own loop", train=loops.proximal),
    "autocast": of_vectors("bfloat16 by autocast in an own loop", train=loops.in_bfloat16),
    "bfloat16": Kind(
        what="a model in bfloat16",
        task=classifier(mlp, dtype=torch.bfloat16),
        examples=vectors(),
        refused="Task.dtype must be",
    ),
    "float64": of_vectors("a model in float64", dtype=torch.float64),
    "hf-trainer": of_vectors("the Trainer of transformers as the loop", train=loops.by_trainer),
    "hf-classifier": Kind(
        what="a text classifier of transformers",
        task=classifier(networks.hugging_face),
        examples=tokens(),
        settings={"optimizer": "adam", "learning-rate": 0.01},
    ),
    "hf-lora": Kind(
        what="LoRA by peft on it",
        task=classifier(networks.hugging_face_with_lora),
        examples=tokens(),
        settings={"optimizer": "adam", "learning-rate": 0.02},
    ),
    "batch-norm": of_vectors("batch normalisation", lambda: mlp(norm=nn.BatchNorm1d(16))),
    "instance-norm": Kind(
        what="instance normalisation of pictures with running statistics",
        task=classifier(
            lambda: nn.Sequential(
                nn.Conv2d(1, 6, 3),
                nn.InstanceNorm2d(6, track_running_stats=True),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(6 * 16, 3),
            )
        ),
        examples=pictures(1, 6),
    ),
    "group-norm": Kind(
        what="group normalisation",
        task=classifier(
            lambda: nn.Sequential(
                nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3)
            )
        ),
        examples=pictures(1, 6),
    ),
    "layer-norm": of_vectors("layer normalisation", lambda: mlp(norm=nn.LayerNorm(16))),
    "dropout": of_vectors("dropout", lambda: mlp(norm=nn.Dropout(0.2))),
    "gru": Kind(what="a GRU", task=classifier(lambda: networks.Recurrent(nn.GRU)), examples=sequences(6, 5)),
    "lstm": Kind(
        what="an LSTM", task=classifier(lambda: networks.Recurrent(nn.LSTM)), examples=sequences(6, 5)
    ),
    "transformer": Kind(what="a transformer of torch", task=classifier(networks.Encoder), examples=tokens()),
    "tied-weights": Kind(
        what="tied weights", task=classifier(lambda: networks.Encoder(tied=True)), examples=tokens()
    ),
    "sparse-words": Kind(
        what="sparse gradients of word vectors",
        task=classifier(networks.SparseWords),
        examples=tokens(),
        settings={"learning-rate": 0.5},
    ),
    "sparse-adam": Kind(
        what="sparse gradients of bags of words, and Adam",
        task=classifier(networks.SparseWords),
        examples=tokens(),
        settings={"optimizer": "adam", "learning-rate": 0.02},
        method="newton-cg",
    ),
    "causal": Kind(
        what="a causal mask of infinity among the buffers",
        task=classifier(networks.Causal),
        examples=tokens(),
        settings={"learning-rate": 0.5},
    ),
    "rotary": of_vectors("a buffer of complex numbers", networks.Rotated),
    "sampled": of_vectors("random numbers in eval mode", networks.Sampled),
    "regression": Kind(what="regression", task=regression(lambda: mlp(out=1)), examples=real_valued),
    "multi-output": Kind(
        what="regression of four numbers",
        task=regression(lambda: mlp(out=4)),
        examples=partial(real_valued, width=4),
    ),
    "segmentation": Kind(
        what="segmentation",
        task=classifier(
            networks.Segmenter,
            num_classes=2,
            score_name="dice",
            loss=cross_entropy_and_dice,
            per_example=segmentation_measures,
        ),
        examples=masks,
    ),
    "frozen-backbone": of_vectors("a head on a frozen network", networks.frozen_backbone),
    "local-head": Kind(
        what="personalised layers: a head per client",
        task=classifier(mlp, local_layers="2."),
        examples=vectors(),
        server={"load_test": None},
        retrains=False,
    ),
    "local-head-tested": Kind(
        what="a head per client that the server is to test",
        task=classifier(mlp, local_layers="2."),
        examples=vectors(),
        refused="Let load_test return None",
    ),
    "label-smoothing": of_vectors("smoothed labels", loss=smoothed),
    "class-weights": of_vectors("class weights", loss=weighted),
    "focal": of_vectors("focal loss", loss=focal),
    "dataset": Kind(what="a map-style Dataset", task=classifier(mlp), examples=from_dataset),
    "arrays": Kind(
        what="NumPy arrays that stay in their files", task=classifier(mlp), examples=memory_mapped
    ),
    "bytes": Kind(
        what="pictures from bytes",
        task=classifier(lambda: nn.Sequential(nn.Flatten(), mlp(36))),
        examples=bytes_of_pictures,
    ),
    "checkpointing": of_vectors("gradient checkpointing", networks.Checkpointed),
    "weight-norm": of_vectors("weight normalisation by a parametrisation", networks.weight_normalised),
    "compiled": of_vectors("a compiled model", compiled),
    "dictionaries": Kind(
        what="batches as dictionaries",
        task=classifier(networks.Masked),
        examples=named_inputs,
        settings={"learning-rate": 0.5},
    ),
    "multi-label": Kind(what="several labels an example", task=binary(4), examples=several_labels),
    "one-logit": Kind(what="one logit", task=binary(1), examples=yes_or_no),
    "fedadam": with_strategy("FedAdam", lambda _: strategy.FedAdam(eta=0.05)),
    "fedyogi": with_strategy("FedYogi", lambda _: strategy.FedYogi(eta=0.05)),
    "fedavgm": with_strategy(
        "FedAvgM", lambda _: strategy.FedAvgM(server_learning_rate=0.5, server_momentum=0.5)
    ),
    "fedmedian": with_strategy("the median", lambda _: strategy.FedMedian()),
    "trimmed-mean": with_strategy("a trimmed mean", lambda _: strategy.FedTrimmedAvg(beta=0.2)),
    "krum": with_strategy("Krum", lambda _: strategy.Krum(num_malicious_nodes=0)),
    "own-strategy": with_strategy("a strategy of one's own", lambda _: Slower()),
    "no-strategy": Kind(
        what="something that is no strategy",
        task=classifier(mlp),
        examples=vectors(),
        server={"strategy": lambda _: "FedAdam"},
        refused="must return a",
    ),
    "clipping": Kind(
        what="Flower's clipping: its mod and its strategy",
        task=classifier(mlp),
        examples=vectors(),
        client={"mods": [fixedclipping_mod]},
        server={"strategy": clipped},
        method="not",
        retrains=False,
    ),
    "sizes": Kind(
        what="Flower's mods that log sizes",
        task=classifier(mlp),
        examples=vectors(),
        client={"mods": [message_size_mod, arrays_size_mod]},
    ),
    "dropping-mod": Kind(
        what="a mod that drops what was trained",
        task=classifier(mlp),
        examples=vectors(),
        client={"mods": [dropping]},
        refused="changes the number or the shapes of arrays",
    ),
    "lazy": Kind(what="a lazy layer", task=classifier(lazy), examples=vectors(), refused="LazyLinear"),
    "complex": Kind(
        what="a layer of complex numbers",
        task=classifier(networks.Complex),
        examples=vectors(),
        refused="The parameter weight of the model has complex numbers",
    ),
    "no-module": Kind(
        what="a builder that returns no module",
        task=classifier(lambda: mlp().state_dict()),  # type: ignore[arg-type,return-value]
        examples=vectors(),
        refused="must return a",
    ),
    "loss-of-each": Kind(
        what="a loss of each example",
        task=classifier(mlp, loss=partial(functional.cross_entropy, reduction="none")),
        examples=vectors(),
        refused="must return one floating-point number",
    ),
    "one-network": of_vectors("a builder that copies one network", reusing(mlp)),
}
"""What works, and what is refused."""
