"""Write the generated part of every reference page: `python -m benchmarks.reference`."""

import sys

from benchmarks.reference.pages import DOCS, PAGES, made_again

if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        path.write_text(made_again(name), encoding="utf-8")
    sys.stdout.write(f"{len(PAGES)} pages of {DOCS}\n")
