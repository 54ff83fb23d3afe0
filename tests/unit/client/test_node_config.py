"""A site's own configuration: what is misspelt, or says nothing, is named and not left out."""

import re
from pathlib import Path

import pytest

from client.node_config import KEYS, OF_DATA, node_problems

SITE = {"partition-id": 0, "num-partitions": 3, "client-id": "a", "state-dir": "/var/lib/x"}


@pytest.mark.parametrize("is_built_in", [True, False])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"state_dir": "/var/lib/x"}, "state-dir"),
        ({"statedir": "/var/lib/x"}, "state-dir"),
        ({"require_secure_aggregation": True}, "require-secure-aggregation"),
        ({"require-secure-agregation": True}, "require-secure-aggregation"),
        ({"Require-Sample-Privacy": 4.0}, "require-sample-privacy"),
        ({"answer-recheck": True}, "answer-rechecks"),
        ({"require-secure-aggregation": "yes"}, "require-secure-aggregation"),
        ({"answer-rechecks": "True"}, "answer-rechecks"),
        ({"require-sample-privacy": "high"}, "require-sample-privacy"),
        ({"min-cohort": "three"}, "min-cohort"),
        ({"min-cohort": 2.5}, "min-cohort"),
        ({"min-cohort": True}, "min-cohort"),
    ],
)
def test_a_demand_that_would_be_left_out_is_named(given, named, is_built_in):
    """Whatever app it is for; one sentence each."""
    (said,) = node_problems(given, is_built_in=is_built_in)
    assert named in said


@pytest.mark.parametrize(
    "given", [{"data_dir": "/data"}, {"client_id": "7"}, {"partition_id": 2}, {"site": "north"}]
)
def test_what_else_an_app_reads_is_its_own_affair(given):
    """The built-in tasks read nothing else, and would learn another site's part."""
    assert node_problems(given, is_built_in=False) == []
    (said,) = node_problems(given, is_built_in=True)
    assert next(iter(given)) in said


@pytest.mark.parametrize("value", ["two", -1, 1.5, True])
def test_a_part_that_is_no_number_is_named(value):
    """Where parts are dealt out."""
    assert len(node_problems({**SITE, "partition-id": value}, is_built_in=True)) == 1
    assert node_problems({**SITE, "partition-id": value}, is_built_in=False) == []


@pytest.mark.parametrize("is_built_in", [True, False])
def test_what_is_right_passes(is_built_in):
    """Flower gives true and numbers as such, or as texts; a key that is given may have a namesake of an app's own."""
    values = {"answer-rechecks": "true", "require-secure-aggregation": False, "min-cohort": "4"}
    given = {
        **SITE,
        **values,
        "require-sample-privacy": "4.0",
        "data-dir": "/data",
        "session-tls-ca": "/etc/ca.crt",
    }
    assert node_problems(given, is_built_in=is_built_in) == []
    assert node_problems({}, is_built_in=is_built_in) == []
    assert node_problems({**SITE, "state_dir": "mine"}, is_built_in=False) == []


def test_the_documentation_names_every_key():
    """In the part of the settings' page that is about nodes."""
    page = (Path(__file__).parents[3] / "docs" / "reference-settings.md").read_text()
    said = page[page.index("## A node's own configuration") :]
    assert {*re.findall(r"`([a-z-]+)", said)} >= {*KEYS, *OF_DATA}
