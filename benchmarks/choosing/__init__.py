"""Which method to choose: two pages and what `flower-unlearn plan` says, from committed rows.

docs/explanation-choosing-a-method.md, docs/results/distances.md and docs/pictures/choosing.png are made by

python -m benchmarks.choosing

measured.py   rows of docs/results into comparisons
advice.py     the table "if you have … take …", with the measurement behind each line
page.py       the tables of both pages
picture.py    the picture
"""
