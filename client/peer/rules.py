"""What peers of a federation agree on, a round of training, and where a peer is."""

from dataclasses import dataclass, field

from client.peer.admission import Limits
from client.peer.seals import NoSeals, Seals
from unlearning.parameters import Vector
from unlearning.requests import Forget


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRules:
    """The rules that all peers of a federation must agree on.

    rounds: of training; 0 goes on for ever. fine_tuning_rounds: after each deletion, when training has ended.
    shared_curvature: deletions of samples and classes wait for everybody's curvature, too.
    weighs_examples: every example counts the same; else every peer does.
    mixes_first: a round's training begins at the mixture of models, as more than one step needs (`local_move`).
    limits: what one peer may bring to the others. count_factor: see `Record`.
    buffers: where the model's vector holds statistics, which are no part of its length.
    """

    rounds: int = 0
    fine_tuning_rounds: int = 1
    shared_curvature: bool = False
    weighs_examples: bool = True
    mixes_first: bool = False
    limits: Limits = field(default_factory=Limits)
    count_factor: float = 10.0
    buffers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round's local training, to be computed: from `parameters` (d,), without what is forgotten."""

    number: int
    parameters: Vector
    without: Forget
    scale: float


@dataclass(frozen=True, slots=True)
class Place:
    """The address at which others reach a peer, and how it proves what it says."""

    address: str = ""
    seals: Seals = field(default_factory=NoSeals)
