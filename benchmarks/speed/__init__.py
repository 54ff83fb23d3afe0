"""Speed and memory, as ratios measured in one run; see docs/results/README.md."""
