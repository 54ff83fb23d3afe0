"""Logging of the server side: our own lines go where Flower's go, so that `flwr run --stream` shows them."""

import logging

PACKAGES = ("server", "strategies", "unlearning", "client")


def log_to_flower(level: int = logging.INFO) -> None:
    """Send this project's log lines to Flower's handlers; calling it twice changes nothing."""
    flower = logging.getLogger("flwr")
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = flower.handlers
        logger.propagate = not flower.handlers
