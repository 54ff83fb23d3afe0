"""The live federation as it stands: its state, checkpoints, clients and what methods keep."""
