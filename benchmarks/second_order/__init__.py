"""Second-order methods on a convex problem; see docs/bench.md."""
