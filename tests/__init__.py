"""The tests: unit, contract (every implementation of a seam), integration (real processes), acceptance."""
