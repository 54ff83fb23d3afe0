"""What the change from the model before a deletion to the model after gives away.

Import from the modules. On arrays: `membership` (was this record deleted?), `class_shares` (which classes were?),
`linear_record` (the record itself, in closed form), `gradient_inversion` (the same of a network, by optimisation).
For reports and plans: `holders`, who holds what and could learn what; it imports nothing that computes.
"""
