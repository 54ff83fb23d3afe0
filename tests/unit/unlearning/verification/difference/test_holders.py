"""What the deletion reveals, by who holds what."""

import itertools

import pytest

from unlearning.verification.difference.holders import Deletion, Layer, TargetSends, reveals
from unlearning.verification.figures import Estimate

UNLEARNED, END = Estimate(0.8, 0.7, 0.9), Estimate(0.6, 0.5, 0.7)
MEASURED = Deletion(sends=TargetSends.FORGOTTEN, layer=Layer.WHOLE, after_unlearning=UNLEARNED, at_end=END)


def test_only_who_saw_every_round_has_the_model_before_recovery():
    """The public has the figure of the final model, the others that of the model right after unlearning."""
    public, client, server, _ = reveals(MEASURED)
    assert [one.membership.auc for one in (public, client, server)] == [END, UNLEARNED, UNLEARNED]


def test_what_was_not_measured_says_why():
    """Before a deletion nothing is measured."""
    for one in reveals(Deletion(sends=TargetSends.KEPT, layer=Layer.NONE, sums_suffice=True)):
        assert one.membership.basis == "not measured"
        assert "measured after the deletion" in one.membership.text


@pytest.mark.parametrize(
    ("sends", "layer", "basis"),
    [
        (TargetSends.SUMS, Layer.WHOLE, "derived"),
        (TargetSends.FORGOTTEN, Layer.WHOLE, "derived"),
        (TargetSends.FORGOTTEN, Layer.LAST, "derived"),
        (TargetSends.FORGOTTEN, Layer.NONE, "not measured"),
        (TargetSends.KEPT, Layer.NONE, "derived"),
        (TargetSends.OWN, Layer.WHOLE, "not measured"),
        (TargetSends.UNSTATED, Layer.WHOLE, "not measured"),
    ],
)
def test_what_the_server_learns_is_arithmetic_or_not_measured(sends, layer, basis):
    """It is derived where one record's update has rank one, or none is sent."""
    assert reveals(Deletion(sends=sends, layer=layer))[2].record.basis == basis


def test_secure_aggregation_hides_what_one_client_sends():
    """The server saw sums only, and what it learns of them is said in its own line."""
    *_, server, of_sums = reveals(
        Deletion(sends=TargetSends.FORGOTTEN, layer=Layer.WHOLE, sums_suffice=True, secure=True)
    )
    assert "sums only" in server.record.text
    assert of_sums.record.basis == "not measured"
    assert "Not switched on" not in of_sums.record.text


def test_the_difference_of_two_sums_of_data_is_said_where_sums_are_seen():
    """Only there: the server saw no client's own, and yet learns the deleted records."""
    given = Deletion(sends=TargetSends.SUMS, layer=Layer.WHOLE, sums_suffice=True, secure=True)
    *_, server, of_sums = reveals(given)
    assert of_sums.record.text.startswith("Of one record: its features and class, exactly.")
    assert of_sums.record.basis == "derived"
    assert "Nothing" not in server.record.text


def test_every_case_has_an_answer():
    """No combination is left without words, and a figure comes with "measured" only."""
    for sends, layer, sums, secure in itertools.product(TargetSends, Layer, (True, False), (True, False)):
        for one in reveals(Deletion(sends=sends, layer=layer, sums_suffice=sums, secure=secure)):
            for answer in (one.membership, one.record):
                assert answer.text
                assert answer.auc is None
