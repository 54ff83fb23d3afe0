"""For authors of methods, as scikit-learn's `check_estimator` is for those of estimators. Needs no pytest.

    from unlearning.testing import check_method

    def test_it_keeps_to_the_contract() -> None:
        check_method(RetainedRound())

What may be imported is named below; `unlearning.testing.convex` beside it is a federation on which retraining is exact.
Nothing that runs in a federation imports this.
"""

from unlearning.testing.contract import Claim, check_method

__all__ = ["Claim", "check_method"]
