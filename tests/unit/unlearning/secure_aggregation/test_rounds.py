"""A round of secure aggregation: the sum to the bit, dropouts, and every attack that it refuses."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.unit.unlearning.secure_aggregation.rounds import WORK, Entropy, Round, forged, terms_of, values_of
from unlearning.errors import SecureAggregationError, UpdateRefused
from unlearning.secure_aggregation import client_round as at_client
from unlearning.secure_aggregation.keys import private_of, seal
from unlearning.secure_aggregation.ring import add_masks
from unlearning.secure_aggregation.shamir import SHARE_BYTES
from unlearning.secure_aggregation.terms import Unmasking, degree


def refused(code: str) -> "pytest.RaisesExc[SecureAggregationError]":
    return pytest.raises(SecureAggregationError, check=lambda exc: exc.code == code)


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_the_sum_is_the_plain_sum_to_the_bit(count: int) -> None:
    """Every mask cancels."""
    done = Round(count).until("unmask")
    np.testing.assert_array_equal(done.unmask(), done.expected())


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "confirm", "unmask"])
def test_the_sum_is_that_of_the_survivors_whatever_stage_clients_drop_out_at(stage: str) -> None:
    """Each client that masked a vector is in the sum, also if it is gone afterwards; no other is."""
    done = Round(9)
    for name in ("advertise", "share", "mask", "confirm"):
        getattr(done, name)({"c0000", "c0005"} if name == stage else ())
    total = done.unmask({"c0000", "c0005"} if stage == "unmask" else ())
    np.testing.assert_array_equal(total, done.expected())
    assert len(done.server.survivors) == (9 if stage in ("confirm", "unmask") else 7)


@pytest.mark.parametrize("stage", ["share", "mask"])
def test_too_many_dropouts_end_the_round(stage: str) -> None:
    """Below the threshold the server gives up by itself."""
    run = Round(9).until(stage)
    with refused("too-few-clients"):
        getattr(run, stage)({f"c{number:04}" for number in range(5)})


def test_below_the_threshold_no_client_unmasks_and_the_server_cannot() -> None:
    """Too few signatures move no client, and too few shares give no secret."""
    run = Round(9).until("unmask")
    few = dict(list(run.signatures.items())[:4])
    with refused("too-few-clients"):
        at_client.unmask(run.clients["c0000"], run.identities["c0000"], few)
    with refused("too-few-shares"):
        run.unmask({f"c{number:04}" for number in range(5)})


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_clients_on_the_graph_with_dropouts() -> None:
    """The sum is exact where each shares masks with 128 others only."""
    run = Round(1000)
    gone = set(run.names[::25])
    run.advertise()
    run.share()
    run.mask(gone)
    run.confirm()
    np.testing.assert_array_equal(run.unmask(), run.expected())
    assert len(run.server.survivors) == 960


def test_a_round_that_was_answered_is_refused_whatever_the_cohort() -> None:
    """Cohort differencing: the sum over S and that over S without one client would give that client's part."""
    run = Round()
    with refused("answered-before"):
        at_client.advertise(run.identities["c0000"], run.terms, answered=5, entropy=Entropy(1))


def test_no_stage_is_answered_twice() -> None:
    """A second list of participants, vector, set of survivors or unmasking for one round is refused."""
    run = Round().until("mask")
    first, own = "c0000", run.identities["c0000"]
    with refused("other-stage"):
        at_client.share(run.clients[first], own, run.members, Entropy(2))
    before = run.clients[first]
    run.mask()
    with refused("other-stage"):
        at_client.mask(run.clients[first], own, run.server.shares_for(first), WORK, values_of(first))
    assert before.stage == "shared"
    run.confirm()
    with refused("other-stage"):
        at_client.confirm(run.clients[first], own, run.server.survivors[:3])
    run.unmask()
    with refused("other-stage"):
        at_client.unmask(run.clients[first], own, run.signatures)


def test_nothing_secret_is_left_of_a_round_that_is_unmasked() -> None:
    """What a thief finds afterwards opens no masked vector."""
    run = Round().until("confirm")
    run.confirm()
    secrets = {run.clients["c0000"].seed, run.clients["c0000"].mask_key}
    run.unmask()
    assert not any(repr(secret) in repr(vars_of(run.clients["c0000"])) for secret in secrets)


def vars_of(state: at_client.ClientRound) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


def test_an_invented_participant_is_refused() -> None:
    """One whom the site's roster does not know, and one whose keys its owner has not signed."""
    run = Round().until("share")
    mine = run.identities["c0000"]
    stranger = forged(run.members[1], "stranger")
    with refused("not-in-roster"):
        at_client.share(run.clients["c0000"], mine, [*run.members, stranger], Entropy(1))
    swapped = replace(run.members[1], mask_key=run.members[2].mask_key)
    with refused("wrong-signature"):
        at_client.share(run.clients["c0000"], mine, [run.members[0], swapped, *run.members[2:]], Entropy(1))


def test_keys_of_another_round_are_refused() -> None:
    """A participant's signature binds run, round and purpose, so that of an earlier round fits no later one."""
    earlier = Round(sequence=4).until("share")
    run = Round().until("share")
    with refused("wrong-signature"):
        at_client.share(
            run.clients["c0000"],
            run.identities["c0000"],
            [run.members[0], *earlier.members[1:]],
            Entropy(1),
        )


def test_one_client_is_not_counted_twice() -> None:
    """Two rows of one client do not make a cohort larger."""
    run = Round(3).until("share")
    with refused("wrong-members"):
        at_client.share(
            run.clients["c0000"], run.identities["c0000"], [*run.members[:2], run.members[1]], Entropy(1)
        )


def test_a_list_without_this_client_or_with_other_keys_of_it_is_refused() -> None:
    """Also keys that it signed itself, in this round, before it was started again."""
    run = Round().until("share")
    mine = run.identities["c0000"]
    _, before = at_client.advertise(mine, run.terms, answered=0, entropy=Entropy("before"))
    assert before.mask_key != run.members[0].mask_key
    for members in (run.members[1:], [before, *run.members[1:]]):
        with refused("wrong-members"):
            at_client.share(run.clients["c0000"], mine, members, Entropy(1))


@pytest.mark.parametrize("site_asks", [True, False])
def test_a_small_cohort_is_refused_by_the_client_itself(site_asks: bool) -> None:
    """By what its site asks for, and never below three, whatever the server's terms say."""
    run = Round(4, min_cohort=1, threshold=0.5).until("share")
    mine = replace(run.identities["c0000"], min_cohort=5 if site_asks else 1)
    members = run.members if site_asks else run.members[:2]
    with refused("too-few-clients"):
        at_client.share(run.clients["c0000"], mine, members, Entropy(1))


def test_a_threshold_below_a_half_is_refused() -> None:
    """With it two sets of survivors could each be signed by enough clients."""
    run = Round(threshold=0.4)
    with refused("low-threshold"):
        at_client.advertise(run.identities["c0000"], run.terms, answered=0, entropy=Entropy(1))


def test_a_client_gives_no_shares_of_both_kinds_of_one_client() -> None:
    """Both would open its vector alone."""
    run = Round(5)
    run.advertise()
    run.share()
    run.mask({"c0004"})
    run.confirm()
    run.unmask()
    for found in run.unmasking.values():
        assert set(found.seeds) == {"c0000", "c0001", "c0002", "c0003"}
        assert set(found.mask_keys) == {"c0004"}


def test_a_server_that_tells_clients_of_different_survivors_gets_no_shares() -> None:
    """Equivocation: a client unmasks only with enough signatures of the survivors that it was told of itself."""
    run = Round(5).until("confirm")
    others = run.server.survivors[:4]
    for name in run.names:
        told = run.server.survivors if name in ("c0000", "c0001") else others
        if name in told:
            run.clients[name], run.signatures[name] = at_client.confirm(
                run.clients[name], run.identities[name], told
            )
    with refused("wrong-signature"):
        at_client.unmask(run.clients["c0000"], run.identities["c0000"], run.signatures)
    agreeing = {name: run.signatures[name] for name in ("c0000", "c0001")}
    with refused("too-few-clients"):
        at_client.unmask(run.clients["c0000"], run.identities["c0000"], agreeing)


def test_a_client_signs_no_survivors_without_itself_and_none_outside_the_cohort() -> None:
    """Its vector was sent, so a set without it is a lie."""
    run = Round(5).until("confirm")
    with refused("unknown-client"):
        at_client.confirm(run.clients["c0000"], run.identities["c0000"], run.names[1:])
    with refused("unknown-client"):
        at_client.confirm(run.clients["c0000"], run.identities["c0000"], [*run.names, "stranger"])


def test_shares_that_are_not_for_this_round_do_not_decrypt() -> None:
    """Replayed from an earlier round between the same clients, or sent back to their sender."""
    earlier = Round(sequence=4).until("mask")
    run = Round().until("mask")
    first = "c0000"
    for replayed in (earlier.server.sealed["c0001"][first], run.server.sealed[first]["c0001"]):
        sealed = {**run.server.shares_for(first), "c0001": replayed}
        with refused("sealed-otherwise"):
            at_client.mask(run.clients[first], run.identities[first], sealed, WORK, values_of(first))


def test_shares_of_another_length_are_refused() -> None:
    """Sealed by a neighbour as they must be, but cut or longer."""
    run = Round().until("mask")
    sender = run.clients["c0001"]
    own_key = private_of(sender.channel_key)
    channel = at_client._channel(sender, own_key, sender.cohort, "c0000", sends=True)
    for length in (0, 2 * SHARE_BYTES - 1, 2 * SHARE_BYTES + 1):
        sealed = {**run.server.shares_for("c0000"), "c0001": seal(channel, bytes(length))}
        with refused("unfit-shares"):
            at_client.mask(run.clients["c0000"], run.identities["c0000"], sealed, WORK, values_of("c0000"))


def test_shares_of_a_stranger_are_refused() -> None:
    """A client masks with neighbours of this round only."""
    run = Round().until("mask")
    sealed = {**run.server.shares_for("c0000"), "stranger": "00"}
    with refused("unknown-client"):
        at_client.mask(run.clients["c0000"], run.identities["c0000"], sealed, WORK, values_of("c0000"))


def test_shares_of_too_few_neighbours_mask_nothing() -> None:
    """A server that hides the others' shares would leave the vector under its own mask alone."""
    run = Round(9).until("mask")
    first = "c0000"
    sealed = dict(list(run.server.shares_for(first).items())[:2])
    with refused("too-few-clients"):
        at_client.mask(run.clients[first], run.identities[first], sealed, WORK, values_of(first))


def test_wrong_shares_end_the_round() -> None:
    """A client's secret is checked against what the client advertised, so no wrong sum is taken for one."""
    run = Round(5).until("confirm")
    run.confirm()
    run.unmask()
    honest = run.unmasking["c0000"]
    wrong = dict.fromkeys(honest.seeds, "00" * 66)
    for found in (replace(honest, seeds=wrong), Unmasking(seeds=dict.fromkeys(honest.seeds, "zz"))):
        with refused("unfit-shares"):
            run.server.sum({**run.unmasking, "c0000": found}, WORK)


def test_shares_of_another_secret_than_the_advertised_one_end_the_round() -> None:
    """All holders together exchange two clients' seeds, or two mask keys; or a share is longer than one can be."""
    run = Round(7)
    run.advertise()
    run.share()
    run.mask({"c0005", "c0006"})
    run.confirm()
    run.unmask()
    seeds, keys, long = ({}, {}, {})
    for name, found in run.unmasking.items():
        seeds[name] = replace(found, seeds={**found.seeds, "c0000": found.seeds["c0001"]})
        keys[name] = replace(found, mask_keys={**found.mask_keys, "c0005": found.mask_keys["c0006"]})
        long[name] = replace(found, seeds={one: f"00{share}" for one, share in found.seeds.items()})
    for changed in (seeds, keys, long):
        with refused("unfit-shares"):
            run.server.sum(changed, WORK)


def test_of_what_the_server_can_unmask_only_the_sum_of_all_is_free_of_masks() -> None:
    """With every seed that shares gave it, each sum or difference of some vectors still has their pairs' masks."""
    run = Round(4, length=64).until("unmask")
    seen = {name: vector.copy() for name, vector in run.masked.items()}
    for name, vector in seen.items():
        add_masks(vector, [(run.clients[name].seed, True)])
    for signs in product((-1, 0, 1), repeat=4):
        weights = np.array(signs).view(np.uint64)
        found, wanted = (
            sum(w * one for w, one in zip(weights, vectors, strict=True))
            for vectors in (seen.values(), (values_of(name, 64) for name in seen))
        )
        assert np.array_equal(found, wanted) == (len(set(signs)) == 1)


def test_clients_that_were_asked_different_work_give_no_sum() -> None:
    """A server that sends one client another model learns nothing: the masks do not cancel."""
    run = Round(5)
    run.advertise()
    run.share()
    run.mask(work={"c0002": b"another model"})
    run.confirm()
    assert not np.array_equal(run.unmask(), run.expected())


def test_a_masked_vector_of_another_length_or_client_is_refused_by_name() -> None:
    """It enters no sum, and the others' round goes on."""
    run = Round(4).until("mask")
    with pytest.raises(UpdateRefused, check=lambda exc: exc.code == "wrong-length"):
        run.server.check_masked("c0000", values_of("c0000", 7))
    with pytest.raises(UpdateRefused, check=lambda exc: exc.code == "wrong-length"):
        run.server.check_masked("c0000", values_of("c0000").astype(np.float64))
    with pytest.raises(UpdateRefused, check=lambda exc: exc.code == "unknown-client"):
        run.server.check_masked("stranger", values_of("stranger"))
    with refused("wrong-length"):
        at_client.mask(
            run.clients["c0000"],
            run.identities["c0000"],
            run.server.shares_for("c0000"),
            WORK,
            values_of("c0000", 7),
        )


def test_the_graph_is_symmetric_regular_and_of_everybodys_keys() -> None:
    """Each client has as many neighbours; other keys give other neighbours."""
    large = Round(200, length=1).until("share").server.cohort
    near = {name: set(large.neighbours(name)) for name in large.members}
    assert all(name in near[other] for name, others in near.items() for other in others)
    assert {len(others) for others in near.values()} == {degree(200)} == {98}
    other = Round(200, length=1, sequence=6).until("share").server.cohort
    assert large.neighbours("c0000") != other.neighbours("c0000")


def test_each_terms_field_changes_what_is_signed() -> None:
    """Nothing of a round can be passed off as another one's."""
    terms = terms_of(3)
    changes = {
        "federation": "b",
        "run": 2,
        "sequence": 9,
        "purpose": "unlearn",
        "length": 3,
        "num_clients": 4,
    }
    changes |= {"min_cohort": 4, "threshold": 0.7, "clip_norm": 2.0, "max_weight": 9.0}
    assert set(changes) == set(terms.__dataclass_fields__)
    texts = {replace(terms, **{name: value}).bytes_for("x") for name, value in changes.items()}  # type: ignore[arg-type]
    assert len(texts | {terms.bytes_for("x")}) == len(changes) + 1
