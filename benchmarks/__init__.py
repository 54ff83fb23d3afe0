"""Programs that measure: speed and memory as ratios of one run, and the papers' tables that `bench` does not make."""
