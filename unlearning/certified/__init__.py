"""Unlearning with a guarantee: vectors that forget by addition, the Newton step, bounds, noise and certificates.

- vectors: `tangents` (in local training), `unit_vectors` (in a round, and added), `sealed_vectors` (at rest);
- removal by influence: `newton_step`;
- bounds: `sensitivity`, `federated_bound` with `round_lengths`, `local_steps` and `rounding`, `linear_head`;
- noise: `noise`, `secret_noise`; what a release promises: `noise_certificate`, `privacy_accountant`.

Training in one place with such vectors is in `benchmarks.certified`. What is certified and what is not:
`docs/explanation-certified-deletion.md`. May import `unlearning.curvature`, `unlearning.solvers`,
`unlearning.runtime.stores`, `unlearning.tasks`, `unlearning.training` and what these may; not `unlearning.methods`,
which may import this.
"""
