"""Settings: their groups, how they are read and checked, and their page in the documentation."""
