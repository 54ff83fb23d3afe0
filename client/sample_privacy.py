"""The account of a site that trains with differential privacy for single samples: it counts first, then trains.

The figures are the site's own statement. Its owner can demand such training, and end it at an ε of their own, in the
node's configuration (`require-sample-privacy=2.0`): no operator of the server can change that.
"""

import math
from collections.abc import Mapping
from typing import Any

from client.site_work import ClientWork
from strategies.messages import SAMPLE_ACCOUNT
from unlearning.certified.private_samples import PrivateSteps
from unlearning.certified.private_training import SampleAccount
from unlearning.errors import DataError
from unlearning.methods.method import MethodInfo
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings


def demanded_epsilon(node_config: Mapping[str, Any]) -> float:
    """Return the largest ε for one sample that the owner allows; infinite where none is named.

    Raises:
        DataError: it is no number above 0.
    """
    named = node_config.get("require-sample-privacy", "")
    if named == "":
        return math.inf
    try:
        found = float(named)
    except (TypeError, ValueError):
        found = math.nan
    if not found > 0:
        raise DataError(
            f"require-sample-privacy in this node's configuration is {named!r}. Give the largest ε, such as 4.0."
        )
    return found


def count_training(local: ClientWork, training: TrainingSettings, examples: Examples) -> dict[str, Any]:
    """Count a training before it begins; return what the answer says of it, nothing where there is no account.

    Raises:
        DataError: the owner demands noise and none is asked for, or the run does not ask for it, the budget is spent,
            or δ is too large. What of the task gets past the noise is refused where the data is loaded.
    """
    demanded, known = demanded_epsilon(local.node_config), local.memory.privacy()
    noise, settings = training.sample_noise, local.settings
    if not noise and demanded < math.inf:
        raise DataError(
            "The owner of this site demands training with privacy for single samples (require-sample-privacy), and "
            'this run has none. Set privacy = "samples" in the run.'
        )
    if noise and not settings.hides_samples:
        raise DataError(
            'The message asks for noise that the run does not ask for. Set privacy = "samples" in the run.'
        )
    if not (noise or known) or not len(examples):
        return {}
    if noise and settings.privacy_delta >= 1 / len(examples):
        raise DataError(
            f"privacy-delta: {settings.privacy_delta:g} would allow to give away one of this site's {len(examples):,} "
            f"samples. Choose one below {1 / len(examples):.2g}."
        )
    steps = PrivateSteps.of(len(examples), training.batch_size, training.epochs)
    account = SampleAccount.counting((*known, steps.with_noise(noise)), settings.privacy_delta)
    stops = settings.privacy_at_budget == "stop" and settings.privacy_epsilon
    allowed = min(demanded, settings.privacy_epsilon if stops else math.inf)
    if allowed < math.inf and (account.epsilon is None or account.epsilon > allowed):
        before = SampleAccount.counting(known, settings.privacy_delta).epsilon
        raise DataError(
            f"One more training would exceed this site's privacy budget of ε = {allowed:g} for one sample: "
            f"{_said(before)} is used, and it would be {_said(account.epsilon)}. It trains no more."
        )
    local.memory.count_privacy(account.rounds)
    return {SAMPLE_ACCOUNT: to_plain(account)}


def refuse_unhidden_method(local: ClientWork, method: MethodInfo) -> None:
    """Refuse an unlearning step that would answer from the site's samples without noise.

    Raises:
        DataError: its exchanges are no training rounds, and the site's samples have noise everywhere else.
    """
    private = local.settings.hides_samples or demanded_epsilon(local.node_config) < math.inf
    if private and not method.trains_as_rounds:
        raise DataError(
            f"{method.title} would answer from this site's samples without the noise that hides them. Choose "
            "dp-covered, retrain or natural."
        )


def _said(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{epsilon:.4g}"
