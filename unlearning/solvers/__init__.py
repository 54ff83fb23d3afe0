"""Solvers of A x = b and estimates of A's spectrum, for a symmetric A known by its products only.

`conjugate_gradient` and `direct` return a `solution.Solution`; `lanczos` gives the ends of the spectrum. `cg_state` is
conjugate gradients as a state machine, for a server that gets the products over a network and keeps checkpoints.

A solver never raises for numbers: how it ended is its solution's `outcome`. Dot products are float64
whatever the vectors are. May import `unlearning.errors` and `unlearning.parameters`, and no torch.
"""
