"""The report of one deletion: `report.json` for machines and `report.html` for people.

Import `write_report` and `canonical_json` from here, the dataclasses from `server.report.report_data`.
"""

import json
from pathlib import Path

from server.report.report_data import ReportData
from unlearning.runtime.durable_files import write_atomically


def canonical_json(data: ReportData) -> str:
    """Return the report as JSON text with sorted keys: equal reports have equal bytes.

    Raises:
        TypeError: a parameter of the request is not JSON.
    """
    return json.dumps(data.to_json(), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_report(directory: Path, data: ReportData) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` into `directory`; return both paths.

    Each file is there as a whole or not at all, also after a power cut, and writing the same report
    again gives the same bytes. The page comes first: where there is a `report.json`, there is a page.

    Raises:
        OSError: the directory cannot be written to.
        TypeError: a parameter of the request is not JSON.
    """
    # Imported here because it draws: what only reads words or data needs no Matplotlib, half a second of a processor.
    from server.report.html_page import render_page

    text, page = canonical_json(data), render_page(data)
    json_path, html_path = directory / "report.json", directory / "report.html"
    write_atomically(html_path, page.encode())
    write_atomically(json_path, text.encode())
    return json_path, html_path
