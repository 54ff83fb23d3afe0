"""The files at the root of the state directory: their names, the ledger's address, the two secrets."""
