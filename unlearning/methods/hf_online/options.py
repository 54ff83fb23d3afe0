"""What `prepare = "hf-online ..."` sets: who may be forgotten, how vectors are kept, and the budget of noise."""

from pathlib import Path

from pydantic import Field, model_validator

from unlearning.certified.sealed_vectors import read_key
from unlearning.certified.sensitivity import Weighting
from unlearning.methods.preparation import ClientOptions, NoiseBudget

GIB = 2**30


class CarriedVectorOptions(ClientOptions):
    """Who may be forgotten, and how the vectors are carried and kept."""

    weighting: Weighting = Field(
        default=Weighting.RENORMALISED, description="the others' weights in the retraining that is meant"
    )
    max_gib: float = Field(default=1.0, gt=0, description="one set of vectors may take so much")
    key_file: str = Field(default="", description="on the server: encrypts the kept vectors")
    feature_norm: float = Field(
        default=0.0,
        ge=0,
        description="no client trains where an input's ‖(x, 1)‖ is larger; for a proven bound",
    )
    sigma: float | None = Field(default=None, gt=0, description="noise on every unlearned model")
    epsilon: float | None = Field(default=None, gt=0, description="budget of all deletions together")
    delta: float | None = Field(default=None, gt=0, lt=1)
    sensitivity: float | None = Field(
        default=None,
        gt=0,
        description="where no bound is proven: ‖unlearned − retrained‖, as measured elsewhere",
    )

    @model_validator(mode="after")
    def _whole_budget(self) -> "CarriedVectorOptions":
        if len({self.sigma is None, self.epsilon is None, self.delta is None}) > 1:
            raise ValueError("a budget needs sigma, epsilon and delta; give all three or none")
        if self.sensitivity is not None and self.sigma is None:
            raise ValueError("sensitivity is of use with sigma, epsilon and delta only; give all or none")
        return self

    @property
    def noise_budget(self) -> NoiseBudget | None:
        """Return the budget, where it is given."""
        if self.sigma is None or self.epsilon is None or self.delta is None:
            return None
        return NoiseBudget(
            sigma=self.sigma, epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity
        )

    def key(self) -> bytes | None:
        """Return what the kept vectors are encrypted with.

        Raises:
            ConfigurationError: the key file cannot be used.
        """
        return read_key(Path(self.key_file)) if self.key_file else None
