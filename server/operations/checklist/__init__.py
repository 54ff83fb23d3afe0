"""What can be wrong with an installation, found by looking at it: files, processes, ports, ledger, versions.

Import from here: `inspect_installation`, `check_from_outside`, `Installation`, `Finding`, `Level`. Each check is
a function that yields findings and changes nothing; what it looks at is a parameter, so that it can be tested.
"""

from server.operations.checklist.finding import Finding, Installation, Level
from server.operations.checklist.inspection import inspect_installation
from server.operations.checklist.ports import check_from_outside

__all__ = ["Finding", "Installation", "Level", "check_from_outside", "inspect_installation"]
