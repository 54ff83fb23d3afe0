"""The secret that a federation's noise is derived from: a file of its own in the state directory.

    STATE_DIR/noise-secret    32 bytes, mode 600, made at the first start

It is made before there is anything to copy, so every copy of a state directory, and every backup, has the same one: a
deletion done again from a copy has the same noise. It is in no ledger, report, certificate, log or message. Whoever
reads it can subtract the noise from released models; whoever loses it cannot repeat a release.
"""

from collections.abc import Sequence
from pathlib import Path

from server.state_directory.files import NOISE_SECRET
from unlearning.certified.secret_noise import derived_key, noise_secret


def make_noise_secret(state_dir: Path) -> None:
    """Make the secret where there is none.

    Raises:
        ConfigurationError: there is one that cannot be used.
    """
    noise_secret(state_dir / NOISE_SECRET)


def noise_key(state_dir: Path, request_ids: Sequence[str]) -> bytes:
    """Return what the noise of a deletion of these requests is derived from.

    Raises:
        ConfigurationError: the secret cannot be used.
    """
    return derived_key(noise_secret(state_dir / NOISE_SECRET), "requests", *sorted(request_ids))
