"""Federated Newton-CG: whom it asks what (`method`), and the solve that goes on from exchange to exchange (`solve`)."""
