"""The template engine and the style sheet of the report's page and the console's pages."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from server.report import words
from unlearning.gdpr import Ground


@cache
def environment(package: str) -> Environment:
    """Return the template engine of a package's folder `templates`: everything is escaped, nothing may be undefined."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["opening"] = lambda text: text[:1].upper() + text[1:]  # `capitalize` makes "Auc" of AUC
    made.globals.update(words=words, grounds={str(ground): ground.describe() for ground in Ground})
    return made


@cache
def style() -> str:
    """Return the style sheet of the report's page and the console's."""
    return files("server.report").joinpath("static", "style.css").read_text(encoding="utf-8")
