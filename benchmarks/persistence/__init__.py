"""Whether deletions last: rechecks over 100 further rounds, and how soon what was forgotten is learnt again."""
