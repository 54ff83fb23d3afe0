"""Members and strangers, and that an item is its origin's: strangers with certificates, members that lie."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.gossip import GossipMessage, Greeting, Kind, ModelOffer
from client.peer.journal import Journal
from client.peer.peer import Peer
from client.peer.record import PeerRules
from client.peer.signatures import Seals
from tests.certificates import Authority
from tests.peers import (
    FOUR,
    correction_item,
    counting_peer,
    forget,
    member_item,
    request_item,
    samples,
    tls_of,
)
from tests.raising import raises
from unlearning.errors import ConfigurationError, FlowerUnlearningError, SessionError

MakeSeals = Callable[[str], Seals]


@pytest.fixture(scope="module")
def seals(authority: Authority) -> MakeSeals:
    """The seals of a name, with a certificate of the right authority."""
    made: dict[str, Seals] = {}
    return lambda name: made.setdefault(name, Seals(tls_of(authority, name)))


def sealed_network(seals: MakeSeals) -> InProcessNetwork:
    """Four peers that sign what they say, and have trained for a round."""
    network = InProcessNetwork(counting_peer(name, FOUR, Journal(), seals=seals(name)) for name in FOUR.nodes)
    network.train()
    return network


def refused(peer: Peer, item: GossipMessage, sender: str, code: str) -> None:
    """`peer` takes the item neither into its record nor into its model, and does not pass it on."""
    before = peer.model
    with raises(FlowerUnlearningError, code):
        peer.take_payload(sender, item)
    assert item.id not in peer.record.items
    assert peer.model is before
    assert all(item.id not in (link.pending or {}) for link in peer._outboxes.values())


def test_signed_items_reach_everybody_through_intermediaries(seals: MakeSeals) -> None:
    """A deletion at peer 0 is in the model of peer 2, which never talks to it, and carries its signature there."""
    network = sealed_network(seals)
    forget(network, "0", samples("0", "3"))
    (item,) = network.peers["2"].record.of(Kind.CORRECTION)
    assert item.id in network.peers["2"].model.applied
    seals("2").check(item)
    assert network.refusals == []


def test_a_stranger_with_a_certificate_that_names_no_neighbours_is_refused(seals: MakeSeals) -> None:
    """The item that stopped every peer permanently is neither kept nor passed on."""
    network = sealed_network(seals)
    item = seals("x").seal(member_item("x"))
    refused(network.peers["0"], item, "1", "no-member")


def test_nothing_is_taken_from_a_sender_that_is_no_member(seals: MakeSeals) -> None:
    """Neither a greeting nor an item nor a model."""
    peer = sealed_network(seals).peers["0"]
    payloads = [
        Greeting("x"),
        seals("1").seal(member_item("1", "0", "2")),
        ModelOffer(sender="x", round=1, vector=np.zeros(3), applied=frozenset()),
    ]
    for payload in payloads:
        with raises(SessionError, "no-member", peer="x"):
            peer.take_payload("x", payload)


@pytest.mark.parametrize(
    ("name", "neighbours"),
    [
        ("4", ()),
        ("4", ("nobody",)),
        ("4", ("4",)),
        ("4", ("0", "0")),
        ("4", ("0", "nobody")),
        ("4", ("0", "1", "2")),  # beside everybody it would weigh in every model
        ("1", ("0", "2", "3")),  # a configured peer's are those of the configuration
    ],
)
def test_a_peer_whose_neighbours_do_not_fit_the_graph_is_refused(
    seals: MakeSeals, name: str, neighbours: tuple[str, ...]
) -> None:
    """Otherwise it would fall apart, have edges to unknown peers, or change; a joiner has two neighbours at most."""
    rules = PeerRules(members=frozenset("4"), max_neighbours=2)
    peer = counting_peer("0", FOUR, Journal(), rules, seals("0"))
    refused(peer, seals(name).seal(member_item(name, *neighbours)), name, "wrong-neighbours")
    assert peer.receive(seals("4").seal(member_item("4", "0", "2")), "4")


def test_a_member_does_not_speak_in_anothers_name(seals: MakeSeals) -> None:
    """Peer 1 passes on a correction that it says is peer 3's, signed by itself, unsigned, or with a copied seal."""
    network = sealed_network(seals)
    forget(network, "3", samples("3", "3"), "other")
    peer = network.peers["0"]
    request = seals("3").seal(request_item("3"))
    peer.receive(request, "3")
    forged = correction_item("3", 25_000.0)
    refused(peer, seals("1").seal(forged), "1", "signed-by-another")
    refused(peer, forged, "1", "unsigned")
    refused(peer, replace(forged, seal=request.seal), "1", "changed-vector")


@pytest.mark.parametrize("part", ["values", "vector", "subject", "kind"])
def test_a_signed_item_cannot_be_changed_on_its_way(seals: MakeSeals, part: str) -> None:
    """A peer that passes it on can drop it, and nothing else."""
    signed = seals("3").seal(correction_item("3"))
    changes: dict[str, object] = {
        "values": {**signed.values, "weight": 1.0},
        "vector": np.array([1.0, 0.0, 0.0]),
        "subject": "3-other",
        "kind": Kind.STATISTICS,
    }
    with raises(SessionError, "changed-vector" if part == "vector" else "wrong-signature"):
        seals("0").check(replace(signed, **{part: changes[part]}))  # type: ignore[arg-type]
    seals("0").check(signed)


def test_a_certificate_of_another_authority_proves_nothing(seals: MakeSeals, tmp_path: Path) -> None:
    """Though it carries the right name."""
    foreign = Seals(tls_of(Authority(tmp_path, "other"), "3"))
    with raises(SessionError, "other-authority"):
        seals("0").check(foreign.seal(correction_item("3")))


def test_an_item_of_another_federation_is_not_taken(authority: Authority) -> None:
    """The same certificates, another name: what was said then cannot be replayed."""
    tls = tls_of(authority, "1")
    earlier, now = Seals(tls, "2025"), Seals(tls, "2026")
    with raises(SessionError, "wrong-signature"):
        now.check(earlier.seal(member_item("1", "0", "2")))


def test_keys_that_are_not_the_certificates_are_refused(authority: Authority) -> None:
    """Before the peer starts, in a sentence."""
    mixed = replace(tls_of(authority, "1"), key=tls_of(authority, "2").key)
    with pytest.raises(ConfigurationError) as caught:
        Seals(mixed)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["tls.key"]


def test_a_replayed_item_changes_nothing(seals: MakeSeals) -> None:
    """Sent again a hundred times, a correction is in the model once."""
    network = sealed_network(seals)
    forget(network, "3", samples("3", "3"))
    peer = network.peers["0"]
    (item,), before = peer.record.of(Kind.CORRECTION), peer.model
    assert not any(peer.receive(item, "1") for _ in range(100))
    assert peer.model is before


def test_a_peer_that_says_two_things_under_one_id_is_found_out(seals: MakeSeals) -> None:
    """The first is kept; the second is refused, and recorded with the name of its signer."""
    peer = sealed_network(seals).peers["0"]
    peer.receive(seals("3").seal(request_item("3")), "3")
    peer.receive(seals("3").seal(correction_item("3", 1.0)), "3")
    before = peer.model
    with raises(SessionError, "contradiction"):
        peer.receive(seals("3").seal(correction_item("3", 2.0)), "1")
    assert peer.model is before
