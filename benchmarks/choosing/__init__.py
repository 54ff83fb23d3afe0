"""Which method to choose: the page docs/choosing.md and what `flower-unlearn plan` says, from committed rows.

python -m benchmarks.choosing

measured.py   rows of docs/results into comparisons
advice.py     the table "if you have … take …", with the measurement behind each line
page.py       the tables of the page
picture.py    the picture of the page
"""
