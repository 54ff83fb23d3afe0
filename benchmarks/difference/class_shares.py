"""Which classes were deleted? The share of each, from the change of predictions.

    Δz   change of a class's output, less the mean over classes      share  max(−Δz, 0) over its sum

A record of class y has raised the output of y and lowered the others (its gradient for the biases is p − e_y, whose
sum is 0), so to delete it lowers y's.

Source: after iDLG (Zhao, Mopuri, Bilen, arXiv 2001.02610), which reads the label off the sign of that gradient.
"""

import numpy as np

from unlearning.verification.thresholds import Values

_FLOOR = 1e-30


def shares_by_predictions(before: Values, after: Values) -> Values:
    """Return each class's share (classes,) from posteriors (n, classes) of both models on any n records.

    Equal shares where no output has changed.
    """
    change = np.mean(np.log(np.maximum(after, _FLOOR)) - np.log(np.maximum(before, _FLOOR)), axis=0)
    falls = np.maximum(change.mean() - change, 0.0)
    total = falls.sum()
    return falls / total if total > 0 else np.full(len(change), 1 / len(change))
