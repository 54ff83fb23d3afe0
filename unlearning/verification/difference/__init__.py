"""What the change from the model before a deletion to the model after gives away.

Import from the modules. On arrays: `membership` (was this record deleted?). For reports and plans: `holders`, who holds
what and could learn what; it imports nothing that computes. Attacks on records and classes: `benchmarks.difference`.
"""
