"""HF-online: vectors carried along with training, so that a deletion is one addition."""
