"""Gradients and curvature of a task's mean loss over one data set, as flat vectors and products.

`gradients` and `products`; everything speaks flat vectors in the order of `unlearning.parameters.layout`.
`docs/explanation-curvature.md` says which kind to use and what it costs.

May import `unlearning.errors`, `unlearning.parameters`, `unlearning.tasks` and `unlearning.training`;
not `unlearning.methods`, which is built on it.
"""
