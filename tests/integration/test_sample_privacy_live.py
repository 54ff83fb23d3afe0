"""Training with privacy for single samples on real processes: what a site counts outlives its own death.

In the gate tests/acceptance/test_sample_privacy.py has a site that remembers.
"""

import pytest

from benchmarks.deployment import supernode
from server.ledger import SAMPLE_PRIVACY
from tests.integration.live_federation import LiveFederation, running
from tests.waiting import HANGS_S
from unlearning.outcomes import PRIVACY_ACCOUNT
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    """Three sites with noise, one of which demands it."""
    federation = LiveFederation(
        tmp_path_factory.mktemp("live"),
        num_clients=3,
        node_config={"require-sample-privacy": 100.0},
        privacy="samples",
        privacy_noise_multiplier=2.0,
        privacy_delta=1e-3,
        batch_size=16,
    )
    with running(federation) as known:
        known.wait_for_rounds(3)
        yield known


def test_samples_are_covered_and_a_killed_site_goes_on_counting(live: LiveFederation):
    def counted(client: str) -> int:
        rounds = live.ledger.facts()[SAMPLE_PRIVACY]["clients"][client]["rounds"]
        return sum(one["count"] for one in rounds)

    before = counted("1")
    live.deployment.kill(supernode(1))
    live.deployment.start(supernode(1))
    live.deployment.wait_until(lambda: counted("1") > before, HANGS_S, "the site trains again")
    assert not live.ledger.facts()[SAMPLE_PRIVACY]["lost"]

    target = live.samples(1, first=0, count=2)
    request = live.service.submit(target, method="dp-covered")
    live.wait_until_reached(request, Status.COMPLETED)
    found = live.ledger.requests.get(request.id).result[PRIVACY_ACCOUNT]
    assert found["basis"] == "empirical"
    assert "On the word of client 1" in found["statement"]
    assert "2 sample(s)" in found["statement"]
    report = live.deployment.layout.state_dir / "reports" / request.id
    for name in ("report.html", "certificate.json"):
        assert "On the word of client 1" in (report / name).read_text(encoding="utf-8")
