"""What can be measured of forgetting, and what it cost.

Import from the modules. Attacks on arrays: `membership_inference` (Yeom, learnt confidence), `thresholds`
(Song and Mittal), `mia_u`, `gaussian_poison`; `discrimination` gives any of them AUC, true positives and
intervals. In a federation: `observations` (what a client sends), `standard_attacks` and `optional_attacks` (what it
allows), `measurement` (one line of the report), `verdict`. What only experiments use (KLoM, LiRA, backdoors, the
distance to a retrained model) is in `benchmarks.bench`. docs/explanation-membership-attacks.md explains all of it.

Like all of `unlearning` this folder knows no federation framework, network or database.
"""
