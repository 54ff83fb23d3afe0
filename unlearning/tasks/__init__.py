"""What is learnt: model, loss, measures and data, each by name.

Import from here: `TaskSettings` and `problems`, `make_task`, `load_site`, `load_server_test`, the
registries `MODELS`, `DATASETS` and `PARTITIONS`, and the seam's types. A new model is one factory and
one line in `models`; a new data set one reader and one entry in `datasets`. Users bring their own by an
import string and `.npz` files, without a change here.

May import `unlearning.errors` and `unlearning.requests`; scikit-learn and torchvision only inside the
function that reads their data.
"""

from unlearning.tasks.datasets import DATASETS
from unlearning.tasks.loading import drop_own_data, load_server_test, load_site, make_task
from unlearning.tasks.models import MODELS
from unlearning.tasks.partitions import PARTITIONS
from unlearning.tasks.settings import TaskSettings, problems
from unlearning.tasks.task import Examples, PerExample, Site, Task, forgotten_mask, unknown_ids

__all__ = [
    "DATASETS",
    "MODELS",
    "PARTITIONS",
    "Examples",
    "PerExample",
    "Site",
    "Task",
    "TaskSettings",
    "drop_own_data",
    "forgotten_mask",
    "load_server_test",
    "load_site",
    "make_task",
    "problems",
    "unknown_ids",
]
