"""Who may speak, and that an item is its origin's: strangers with certificates, members that lie."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.peer.admission import Limits
from client.peer.gossip import GossipMessage, Greeting, Kind, ModelOffer
from client.peer.in_process import InProcessNetwork, hand_over
from client.peer.journal import DirectoryJournal, MemoryJournal
from client.peer.node import Peer
from client.peer.rules import PeerRules
from client.peer.seals import CertificateSeals
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
from unlearning.errors import ConfigurationError, FlowerUnlearningError, SessionError

MakeSeals = Callable[[str], CertificateSeals]


@pytest.fixture(scope="module")
def seals(authority: Authority) -> MakeSeals:
    """The seals of a name, with a certificate of the right authority."""
    made: dict[str, CertificateSeals] = {}
    return lambda name: made.setdefault(name, CertificateSeals(tls_of(authority, name)))


def sealed_network(seals: MakeSeals) -> InProcessNetwork:
    """Four peers that sign what they say, and have trained for a round."""
    network = InProcessNetwork(
        counting_peer(name, FOUR, MemoryJournal(), seals=seals(name)) for name in FOUR.nodes
    )
    network.train()
    return network


def refused(peer: Peer, item: GossipMessage, sender: str, match: str) -> None:
    """`peer` takes the item neither into its record nor into its model, and does not pass it on."""
    before = peer.model
    with pytest.raises(FlowerUnlearningError, match=match):
        hand_over(peer, sender, item)
    assert item.id not in peer.record.items
    assert peer.model is before
    assert all(item.id not in (link.pending or {}) for link in peer._links.values())


def test_signed_items_reach_everybody_through_intermediaries(seals: MakeSeals) -> None:
    """A deletion at peer 0 is in the model of peer 2, which never talks to it, and carries its signature there."""
    network = sealed_network(seals)
    forget(network, "0", samples("0", "3"))
    (item,) = network.peers["2"].record.of(Kind.CORRECTION)
    assert item.id in network.peers["2"].model.applied
    seals("2").check(item)
    assert network.refusals == []


def test_a_stranger_with_a_certificate_that_names_no_neighbours_is_refused(seals: MakeSeals) -> None:
    """The item that stopped every peer for good is neither kept nor passed on."""
    network = sealed_network(seals)
    item = seals("x").seal(member_item("x"))
    refused(network.peers["0"], item, "1", "no member")


def test_nothing_is_taken_from_a_sender_that_is_no_member(seals: MakeSeals) -> None:
    """Neither a greeting nor an item nor a model."""
    peer = sealed_network(seals).peers["0"]
    payloads = [
        Greeting("x"),
        seals("1").seal(member_item("1", "0", "2")),
        ModelOffer(sender="x", round=1, vector=np.zeros(3), applied=frozenset()),
    ]
    for payload in payloads:
        with pytest.raises(SessionError, match="no member"):
            hand_over(peer, "x", payload)


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
def test_whose_neighbours_do_not_fit_the_graph_is_refused(
    seals: MakeSeals, name: str, neighbours: tuple[str, ...]
) -> None:
    """Otherwise it would fall apart, have edges to nobody, or be changed; who may join has two neighbours at most."""
    rules = PeerRules(limits=Limits(members=frozenset("4"), neighbours=2))
    peer = counting_peer("0", FOUR, MemoryJournal(), rules, seals("0"))
    refused(peer, seals(name).seal(member_item(name, *neighbours)), name, "do not fit")
    assert peer.receive(seals("4").seal(member_item("4", "0", "2")), "4")


def test_a_member_does_not_speak_in_anothers_name(seals: MakeSeals) -> None:
    """Peer 1 passes on a correction that it says is peer 3's, signed by itself, by nobody, or by a copied seal."""
    network = sealed_network(seals)
    forget(network, "3", samples("3", "3"), "other")
    peer = network.peers["0"]
    request = seals("3").seal(request_item("3"))
    peer.receive(request, "3")
    forged = correction_item("3", 25_000.0)
    refused(peer, seals("1").seal(forged), "1", "in another's name")
    refused(peer, forged, "1", "without its origin's signature")
    refused(peer, replace(forged, seal=request.seal), "1", "not the one that its origin signed")


@pytest.mark.parametrize("part", ["values", "vector", "subject", "kind"])
def test_a_signed_item_cannot_be_changed_on_its_way(seals: MakeSeals, part: str) -> None:
    """Whoever passes it on can drop it, and nothing else."""
    signed = seals("3").seal(correction_item("3"))
    changes: dict[str, object] = {
        "values": {**signed.values, "weight": 1.0},
        "vector": np.array([1.0, 0.0, 0.0]),
        "subject": "3-other",
        "kind": Kind.STATISTICS,
    }
    with pytest.raises(SessionError, match=r"does not hold|not the one"):
        seals("0").check(replace(signed, **{part: changes[part]}))  # type: ignore[arg-type]
    seals("0").check(signed)


def test_a_certificate_of_another_authority_proves_nothing(seals: MakeSeals, tmp_path: Path) -> None:
    """Though it carries the right name."""
    foreign = CertificateSeals(tls_of(Authority(tmp_path, "other"), "3"))
    with pytest.raises(SessionError, match="authority"):
        seals("0").check(foreign.seal(correction_item("3")))


def test_an_item_of_another_federation_is_not_taken(authority: Authority) -> None:
    """The same certificates, another name: what was said then cannot be replayed."""
    tls = tls_of(authority, "1")
    earlier, now = CertificateSeals(tls, "2025"), CertificateSeals(tls, "2026")
    with pytest.raises(SessionError, match="does not hold"):
        now.check(earlier.seal(member_item("1", "0", "2")))


def test_keys_that_are_not_the_certificates_are_refused(authority: Authority) -> None:
    """Before the peer starts, in a sentence."""
    mixed = replace(tls_of(authority, "1"), key=tls_of(authority, "2").key)
    with pytest.raises(ConfigurationError, match="not the certificate's"):
        CertificateSeals(mixed)


def test_a_replayed_item_changes_nothing(seals: MakeSeals) -> None:
    """Sent again a hundred times, a correction is in the model once."""
    network = sealed_network(seals)
    forget(network, "3", samples("3", "3"))
    peer = network.peers["0"]
    (item,), before = peer.record.of(Kind.CORRECTION), peer.model
    assert not any(peer.receive(item, "1") for _ in range(100))
    assert peer.model is before


def test_a_peer_that_says_two_things_under_one_id_is_found_out(seals: MakeSeals) -> None:
    """The first is kept; the second is refused, and recorded with the name of who signed both."""
    peer = sealed_network(seals).peers["0"]
    peer.receive(seals("3").seal(request_item("3")), "3")
    peer.receive(seals("3").seal(correction_item("3", 1.0)), "3")
    before = peer.model
    with pytest.raises(SessionError, match="two different things"):
        peer.receive(seals("3").seal(correction_item("3", 2.0)), "1")
    assert peer.model is before


def test_unsigned_items_of_an_earlier_version_are_signed_by_their_origins(
    seals: MakeSeals, tmp_path: Path
) -> None:
    """Journals without signatures open; each peer signs its own, and gets the others' from them."""
    network = InProcessNetwork(
        counting_peer(name, FOUR, DirectoryJournal(tmp_path / name)) for name in FOUR.nodes
    )
    network.train()
    forget(network, "1", samples("1", "3"))
    models = {name: peer.model.vector for name, peer in network.peers.items()}
    again = InProcessNetwork(
        counting_peer(name, FOUR, DirectoryJournal(tmp_path / name), seals=seals(name)) for name in FOUR.nodes
    )
    again.settle()
    for name, peer in again.peers.items():
        assert all(item.seal is not None for item in peer.record.items.values())
        np.testing.assert_array_equal(peer.model.vector, models[name])
    assert again.refusals == []
