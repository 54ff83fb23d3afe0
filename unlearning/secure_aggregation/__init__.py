"""Sums over a cohort of clients of which the server learns nothing else: keys, shares, masks, fixed point.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, with the
graph of Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, for large cohorts.

Client and server are state machines of five stages (`client_round`, `server_round`). No Flower, no network and no file
is used here. Nothing is reused of Flower's own prototype, which folds each mask's seed to 32 bits, draws masks with a
generator that is not cryptographic, clips without saying so, and derives keys bound to no identity and no round.
"""
