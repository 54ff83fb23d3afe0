"""What can be measured of forgetting, and what it cost.

Import from the modules: `observations` (what a client tells), `membership_inference` (attacks on
arrays), `measurement` (one line of the report), `costs` (closed formulas). Like all of `unlearning`
this folder knows no federation framework, network or database, and nothing of the methods.
"""
