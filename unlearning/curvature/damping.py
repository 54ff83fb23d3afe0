"""How large a damping is beside the curvature that it is added to."""


def relative_damping(damping: float, largest: float) -> dict[str, float]:
    """Return the estimate of the largest eigenvalue (weight decay included, damping not), and λ as a
    multiple of it.

    λ is a bias wherever it is not small beside the eigenvalues that matter, so its size alone says nothing.
    """
    found = {"largest eigenvalue (estimate from below)": largest}
    return {**found, "damping relative to it": damping / largest} if largest > 0 else found
