"""Fixtures that several kinds of tests share."""

import functools
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
import typer.testing
from hypothesis import settings

from server.operations.logs import PACKAGES
from tests.federation import InProcessFederation, federations

pytest_plugins = ["tests.ledgers"]

# CI draws the same few cases each time; `--hypothesis-profile default` draws new ones, and more.
settings.register_profile(
    "same cases", derandomize=True, deadline=None, max_examples=30
)  # a busy machine is no failure
settings.load_profile("same cases")

UMASK = os.umask(0o022)
os.umask(UMASK)

WITH_SLOW_TESTS = pytest.StashKey[set[Path]]()


def pytest_configure() -> None:
    """Compute with one thread, as `make test` does, also in processes that tests start: more wait for each other.

    And collect no garbage among a million objects that imports and the collection of tests make and that stay.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which files have slow tests, whether these are run or not."""
    marked = {item.path for item in items if item.get_closest_marker("slow")}
    config.stash[WITH_SLOW_TESTS] = {path for path in marked if path.is_relative_to(config.rootpath)}


def pytest_collection_finish() -> None:
    """Let the garbage collector look from now on, at what tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def the_same_is_made_once() -> Iterator[None]:
    """A command line's parser, 20 ms, and the trusted certificates of a client of HTTP, 10 ms."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (typer.testing, "_get_command"),
            (httpx._transports.default, "create_ssl_context"),
        ):
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield


@pytest.fixture(autouse=True)
def same_draws_in_every_order() -> None:
    """What a test draws without a generator does not depend on which tests ran before it in this process."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def same_logs_in_every_order() -> Iterator[None]:
    """Nor does what is seen of the log: commands and apps set levels and handlers for the process that they have."""
    loggers = [logging.getLogger(name) for name in ("flwr", *PACKAGES)]
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


@pytest.fixture(autouse=True)
def same_umask_in_every_order() -> Iterator[None]:
    """Apps and commands set the one of their process; the directories of a later test may be for another user.

    An app that a module's tests share has run before the first of them.
    """
    os.umask(UMASK)
    yield
    os.umask(UMASK)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Callable[..., InProcessFederation]]:
    """Makes federations in this process."""
    with federations(tmp_path, InProcessFederation) as make:
        yield make


@pytest.fixture(scope="module")
def shared_federation(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., InProcessFederation]]:
    """The same for what the tests of a file share."""
    with federations(tmp_path_factory.mktemp("shared"), InProcessFederation) as make:
        yield make
