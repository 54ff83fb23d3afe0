"""Apps as Flower's users write them: which work, and how near a deletion in each comes to retraining."""
