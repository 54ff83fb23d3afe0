"""Makes the reference pages of docs/ from the definitions that they describe: `python -m benchmarks.reference`.

Each page has one part between two marks that a module here writes; the rest is written by hand. A
test compares every page with what would be written.
"""
