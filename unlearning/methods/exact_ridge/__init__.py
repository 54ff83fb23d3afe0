"""Exact ridge: a linear head in closed form, of sums over examples, from which anybody's share can be taken out."""
