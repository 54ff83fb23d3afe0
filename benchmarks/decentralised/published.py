"""Figures of Wu et al., Certified Unlearning in Decentralized Federated Learning, tables I to IV, in %.

Test accuracy ± deviation, attack accuracy ± deviation, each by (partition, level), (topology, data set) and method.
The paper has no such table for whole clients: only a figure, without numbers.
"""

Published = tuple[float, float, float, float]

TABLES: dict[tuple[str, str], tuple[str, str]] = {
    ("iid", "sample"): ("Table I", "samples, IID"),
    ("dirichlet", "sample"): ("Table II", "samples, Dirichlet 0.3"),
    ("iid", "class"): ("Table III", "class 0, IID"),
    ("dirichlet", "class"): ("Table IV", "class 0, Dirichlet 0.3"),
}

TIME_SAVED = 97.0
"""In %, "across all datasets and unlearning types" (section VI-B3; figure 2)."""

PUBLISHED: dict[tuple[str, str, str, str, str], Published] = {
    # partition, level, topology, data set, method
    ("iid", "sample", "ring", "cifar10", "RT"): (58.99, 0.40, 50.25, 0.98),
    ("iid", "sample", "ring", "cifar10", "DU"): (55.28, 0.79, 50.72, 1.48),
    ("iid", "sample", "ring", "mnist", "RT"): (86.34, 0.23, 52.29, 0.27),
    ("iid", "sample", "ring", "mnist", "DU"): (86.63, 0.04, 51.96, 0.53),
    ("iid", "sample", "ring", "fashion-mnist", "RT"): (84.24, 0.16, 49.53, 0.19),
    ("iid", "sample", "ring", "fashion-mnist", "DU"): (84.40, 0.23, 50.00, 0.58),
    ("iid", "sample", "ER", "cifar10", "RT"): (62.20, 0.46, 50.48, 0.67),
    ("iid", "sample", "ER", "cifar10", "DU"): (57.82, 0.23, 51.47, 0.70),
    ("iid", "sample", "ER", "mnist", "RT"): (86.25, 0.10, 51.60, 0.56),
    ("iid", "sample", "ER", "mnist", "DU"): (86.63, 0.04, 51.51, 0.42),
    ("iid", "sample", "ER", "fashion-mnist", "RT"): (84.21, 0.15, 50.53, 0.72),
    ("iid", "sample", "ER", "fashion-mnist", "DU"): (84.42, 0.20, 50.42, 0.83),
    ("dirichlet", "sample", "ring", "cifar10", "RT"): (51.68, 2.23, 50.40, 0.37),
    ("dirichlet", "sample", "ring", "cifar10", "DU"): (45.06, 3.74, 50.20, 1.29),
    ("dirichlet", "sample", "ring", "mnist", "RT"): (86.59, 0.13, 50.27, 0.66),
    ("dirichlet", "sample", "ring", "mnist", "DU"): (86.95, 0.15, 50.69, 0.17),
    ("dirichlet", "sample", "ring", "fashion-mnist", "RT"): (82.41, 1.12, 50.00, 0.81),
    ("dirichlet", "sample", "ring", "fashion-mnist", "DU"): (81.14, 1.62, 49.98, 0.17),
    ("dirichlet", "sample", "ER", "cifar10", "RT"): (54.95, 1.34, 49.70, 0.75),
    ("dirichlet", "sample", "ER", "cifar10", "DU"): (47.53, 3.40, 50.77, 0.70),
    ("dirichlet", "sample", "ER", "mnist", "RT"): (84.16, 4.22, 52.56, 1.55),
    ("dirichlet", "sample", "ER", "mnist", "DU"): (87.21, 0.33, 52.79, 1.75),
    ("dirichlet", "sample", "ER", "fashion-mnist", "RT"): (82.35, 1.22, 49.50, 0.66),
    ("dirichlet", "sample", "ER", "fashion-mnist", "DU"): (81.20, 1.40, 49.78, 0.88),
    ("iid", "class", "ring", "cifar10", "RT"): (54.67, 0.50, 51.08, 3.27),
    ("iid", "class", "ring", "cifar10", "DU"): (53.35, 1.07, 53.50, 2.35),
    ("iid", "class", "ring", "mnist", "RT"): (77.71, 0.04, 53.66, 2.25),
    ("iid", "class", "ring", "mnist", "DU"): (84.01, 0.12, 52.55, 0.36),
    ("iid", "class", "ring", "fashion-mnist", "RT"): (77.88, 0.13, 49.58, 4.23),
    ("iid", "class", "ring", "fashion-mnist", "DU"): (78.02, 0.14, 49.42, 3.83),
    ("iid", "class", "ER", "cifar10", "RT"): (57.77, 0.64, 49.75, 3.02),
    ("iid", "class", "ER", "cifar10", "DU"): (55.20, 1.02, 50.40, 0.44),
    ("iid", "class", "ER", "mnist", "RT"): (77.71, 0.04, 53.66, 2.25),
    ("iid", "class", "ER", "mnist", "DU"): (84.00, 0.14, 52.55, 0.42),
    ("iid", "class", "ER", "fashion-mnist", "RT"): (77.86, 0.13, 49.42, 3.80),
    ("iid", "class", "ER", "fashion-mnist", "DU"): (78.04, 0.15, 49.33, 3.95),
    ("dirichlet", "class", "ring", "cifar10", "RT"): (48.07, 2.84, 51.83, 2.18),
    ("dirichlet", "class", "ring", "cifar10", "DU"): (43.15, 2.72, 51.25, 1.87),
    ("dirichlet", "class", "ring", "mnist", "RT"): (78.10, 0.14, 54.08, 1.10),
    ("dirichlet", "class", "ring", "mnist", "DU"): (86.31, 0.43, 54.34, 0.36),
    ("dirichlet", "class", "ring", "fashion-mnist", "RT"): (76.26, 1.09, 50.42, 0.92),
    ("dirichlet", "class", "ring", "fashion-mnist", "DU"): (76.22, 0.90, 50.92, 2.29),
    ("dirichlet", "class", "ER", "cifar10", "RT"): (50.92, 1.54, 49.67, 0.96),
    ("dirichlet", "class", "ER", "cifar10", "DU"): (46.16, 2.99, 54.58, 0.42),
    ("dirichlet", "class", "ER", "mnist", "RT"): (81.34, 3.83, 53.59, 1.89),
    ("dirichlet", "class", "ER", "mnist", "DU"): (86.79, 0.15, 53.02, 1.54),
    ("dirichlet", "class", "ER", "fashion-mnist", "RT"): (76.00, 1.16, 51.25, 0.00),
    ("dirichlet", "class", "ER", "fashion-mnist", "DU"): (76.16, 0.88, 51.00, 2.47),
}
