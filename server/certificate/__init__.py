"""The certificate of a deletion: its form, keys and checks. Knows no live federation."""
