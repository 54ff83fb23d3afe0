"""Made-up patients in files of the same columns, to try the app without the public data:

python -m hospitals.made_up DIRECTORY
"""

import sys
from pathlib import Path

import numpy as np

from hospitals.patients import COLUMNS
from hospitals.task import HOSPITALS


def write_hospitals(directory: Path) -> None:
    """Write four hospitals of 40 to 100 patients; the first records no blood pressure."""
    for seed, name in enumerate(HOSPITALS):
        write_patients(directory / f"processed.{name}.data", 40 + 20 * seed, seed)


def write_patients(path: Path, count: int, seed: int) -> None:
    """Write patients of whom the older ones and those of a low heart rate are ill, with some values missing."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        age, rate = random.normal(55, 9), random.normal(140, 25)
        ill = int((age - 55) / 9 - (rate - 140) / 25 + random.normal(0, 0.3) > 0)
        values = dict.fromkeys(COLUMNS, "?") | {
            "age": f"{age:.1f}",
            "sex": str(random.integers(2)),
            "cp": str(random.integers(1, 5)),
            "trestbps": str(random.integers(90, 180)) if seed else "0",
            "chol": str(random.integers(150, 300)) if random.random() > 0.2 else "?",
            "thalach": f"{rate:.1f}",
            "thal": str(random.choice([3, 6, 7])),
            "num": str(ill * random.integers(1, 5)),
        }
        lines.append(",".join(values.values()))
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_hospitals(target)
