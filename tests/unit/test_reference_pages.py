"""The reference pages are those of the definitions that they describe."""

import pytest

from benchmarks.reference.pages import DOCS, PAGES, made_again
from unlearning.advice import ADVICE
from unlearning.methods.registry import METHODS


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name):
    """If this fails: `make docs`."""
    assert made_again(name) == (DOCS / name).read_text(encoding="utf-8")


def test_every_method_has_a_card():
    """With its name, so that the index leads to it."""
    index = (DOCS / "reference-methods.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"(reference-method-{name}.md)" not in index] == []


def test_every_code_of_a_failure_has_its_advice_on_the_page():
    """As a person reads it who has only the code."""
    page = (DOCS / "reference-errors.md").read_text(encoding="utf-8")
    assert [code for code in ADVICE if f"`{code}`" not in page] == []
