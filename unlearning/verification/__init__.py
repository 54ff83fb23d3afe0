"""What can be measured of forgetting, and what it cost.

Import from the modules. Attacks on arrays: `membership_inference` (Yeom, learnt confidence), `thresholds`
(Song and Mittal), `lira`, `mia_u`, `backdoor`; `discrimination` gives any of them AUC, true positives and
intervals. In a federation: `observations` (what a client tells), `standard_attacks` and `optional_attacks` (what it
allows), `measurement` (one line of the report), `verdict`. Beside them `equivalence` (to a retrained model).
docs/verification.md explains all of it.

Like all of `unlearning` this folder knows no federation framework, network or database, and nothing of the
methods but the names that their formulas go by.
"""
