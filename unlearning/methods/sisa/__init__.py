"""SISA: shards of clients, each with a model of its own that can be trained again alone."""
