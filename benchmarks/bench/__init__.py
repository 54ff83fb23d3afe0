"""The benchmark: an experiment file in, the papers' tables and figures out, from real runs.

experiment.py   what an experiment file may say
parts.py        one part of the work: train a federation, retrain it, or forget in it by one method
runner.py       which parts an experiment has, in which order; resuming, progress
oracles.py      many retrained models beside as many unlearned ones
shadows.py      shadow federations that are unlearned
first_pass.py   which examples are vulnerable
made.py         on which machine, under which load, with which versions a row was computed
tables.py       JSON lines and Markdown tables
figures.py      figures
experiments/    the experiments that come with the project
"""
