"""What a benchmark's figures depend on beside its settings."""

import platform
from subprocess import run

import torch


def provenance() -> str:
    """Machine, versions and commit."""
    commit = run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return (
        f"{platform.machine()}, {device}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
        f"commit {commit or 'unknown'}"
    )
