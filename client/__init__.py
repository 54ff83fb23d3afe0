"""The client side: a ClientApp that trains, unlearns, measures, and never trains on what it must forget.

Import from here: `client.app:app` (the ClientApp), `client.memory` (tombstones and the outbox of requests
filed at the client's own site). May import `strategies`, `unlearning` and Flower; not `server`.
"""
