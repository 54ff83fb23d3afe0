"""An unlearning method in a package of its own."""
