"""What deletions reveal to those who hold the model before and after, measured."""
