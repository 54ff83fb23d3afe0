"""A stand-in for a GPU that tests put on PYTHONPATH: writes down which process initialises CUDA.

Whatever asks whether there is a GPU initialises it, as PyTorch's own question does the driver. The answer is no, so
that everything computes on the CPU. The file FAKE_GPU_LOG gets a line for each process.
"""

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

_begun = set()


def _begin(*_):
    if os.getpid() not in _begun:
        _begun.add(os.getpid())
        with Path(os.environ["FAKE_GPU_LOG"]).open("a") as log:
            log.write(f"{os.getpid()}\n")
    return False


def _watch(torch):
    torch.cuda._lazy_init = torch.cuda.is_available = _begin


class _AfterTorch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _watch(module)

        spec.loader.exec_module = exec_module
        return spec


if "torch" in sys.modules:  # of a process that was forked
    _watch(sys.modules["torch"])
else:
    sys.meta_path.insert(0, _AfterTorch())
