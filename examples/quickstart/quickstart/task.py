"""The network, its data, and how it is trained and tested."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from flower_unlearning.unlearning.tasks import Site, Task


class Net(nn.Module):
    """Two convolutions and two layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 2 * 2)
        return self.fc2(F.relu(self.fc1(x)))


def load_data(partition_id, num_partitions):
    """Return this client's pictures: four fifths to train on, one fifth to test on."""
    pictures, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    everything = TensorDataset(inputs, torch.tensor(labels))
    mine = range(partition_id, len(everything), num_partitions)
    split = len(mine) * 4 // 5
    return (
        DataLoader(Subset(everything, mine[:split]), batch_size=32, shuffle=True),
        DataLoader(Subset(everything, mine[split:]), batch_size=32),
    )


def make_task(settings):
    return Task.classifier("quickstart", Net, num_classes=10)


def load_site(settings, node_config):
    return Site.of(*load_data(node_config["partition-id"], node_config["num-partitions"]))
