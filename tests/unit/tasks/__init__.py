"""Tests of `unlearning.tasks`."""
