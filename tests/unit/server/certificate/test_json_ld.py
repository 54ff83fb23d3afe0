"""A certificate as linked data: its facts are there under the terms of DPV and Dublin Core."""

from typing import Any

from pyld import jsonld

from server.certificate.document import decode, encode
from server.certificate.json_ld import as_json_ld
from tests.unit.server.certificate.test_document import HASH, certificate

DPV, DCT, OWN = "https://w3id.org/dpv#", "http://purl.org/dc/terms/", "urn:flower-unlearning:certificate#"


def expanded(**changes: Any) -> dict[str, Any]:
    """The record as a processor of JSON-LD sees it; it fetches nothing."""
    document = as_json_ld(decode(encode(certificate(**changes), None)))

    def refuse(url: str, _: Any) -> None:
        raise AssertionError(f"{url} would be fetched")

    [record] = jsonld.expand(document, {"documentLoader": refuse})
    return dict(record)


def test_it_is_a_record_of_an_exercised_right_to_erasure() -> None:
    """A fulfilled activity of Art. 17, with its notice."""
    record = expanded()
    [activity] = record[f"{DCT}hasPart"]
    [notice] = activity[f"{DPV}hasNotice"]
    assert record["@type"] == [f"{DPV}RightExerciseRecord"]
    assert activity["@type"] == [f"{DPV}RightExerciseActivity"]
    assert activity[f"{DPV}hasRight"] == [{"@id": "https://w3id.org/dpv/legal/eu/gdpr#A17"}]
    assert activity[f"{DPV}hasStatus"] == [{"@id": f"{DPV}RequestFulfilled"}]
    assert notice["@type"] == [f"{DPV}RightFulfilmentNotice"]


def test_a_deletion_of_which_nothing_was_shown_is_not_called_fulfilled() -> None:
    """It was accepted and carried out; the notice is no notice of fulfilment, in the register too."""
    [activity] = expanded(outcome="not-shown")[f"{DCT}hasPart"]
    [notice] = activity[f"{DPV}hasNotice"]
    assert activity[f"{DPV}hasStatus"] == [{"@id": f"{DPV}RequestAccepted"}]
    assert notice["@type"] == [f"{DPV}RightExerciseNotice"]


def test_no_fact_is_lost() -> None:
    """Each field of the certificate is there, by a term of others or one of our own."""
    facts = certificate().model_dump(exclude_none=True)
    [activity] = expanded()[f"{DCT}hasPart"]
    [notice] = activity[f"{DPV}hasNotice"]
    assert len(notice) == len(facts) + 1  # and its type
    assert notice[f"{DCT}publisher"] == [{"@value": "Zürich"}]
    assert notice[f"{DCT}issued"] == [
        {"@type": "http://www.w3.org/2001/XMLSchema#dateTime", "@value": "2026-03-01T00:00:00+00:00"}
    ]
    [request] = notice[f"{OWN}request"]
    assert request[f"{DCT}identifier"] == [{"@value": "r-000001"}]
    [attacks] = notice[f"{OWN}attacks"]
    assert attacks["@value"]["after"] == {"yeom": {"called": 0.25}}
    [model] = notice[f"{OWN}model"]
    assert model[f"{OWN}before"] == [{"@value": HASH}]
