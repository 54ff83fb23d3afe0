"""The report of one deletion: `report.json` for machines and `report.html` for people.

Import `write_report` and the dataclasses of `server.report_data` from here.
"""

import json
import os
from pathlib import Path

from server.report_data import (
    SCHEMA_VERSION,
    Asked,
    FederationSummary,
    MeasuringCost,
    RecoveryPhase,
    ReportData,
    ReportEvent,
    UnlearningPhase,
)
from server.report_page import render_page

__all__ = [
    "SCHEMA_VERSION",
    "Asked",
    "FederationSummary",
    "MeasuringCost",
    "RecoveryPhase",
    "ReportData",
    "ReportEvent",
    "UnlearningPhase",
    "canonical_json",
    "write_report",
]


def canonical_json(data: ReportData) -> str:
    """The report as JSON text with sorted keys: equal reports have equal bytes.

    Raises:
        TypeError: a parameter of the request is not JSON.
    """
    return json.dumps(data.to_json(), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_report(directory: Path, data: ReportData) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` into `directory`; returns both paths.

    Each file is there as a whole or not at all, also after a power cut, and writing the same report
    again gives the same bytes. The page comes first: where there is a `report.json`, there is a page.

    Raises:
        OSError: the directory cannot be written to.
        TypeError: a parameter of the request is not JSON.
    """
    text, page = canonical_json(data), render_page(data)
    directory.mkdir(parents=True, exist_ok=True)
    json_path, html_path = directory / "report.json", directory / "report.html"
    _write_atomically(html_path, page)
    _write_atomically(json_path, text)
    return json_path, html_path


def _write_atomically(path: Path, text: str) -> None:
    # the process id keeps a second writer off this file; what a killed one left behind is no harm
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the renaming itself must survive a power cut
    finally:
        os.close(descriptor)
