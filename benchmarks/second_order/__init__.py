"""Second-order methods on a convex problem; see docs/how-to-reproduce-the-papers.md."""
