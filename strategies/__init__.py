"""Flower strategies that can forget, and what they share with the clients.

`fedavg.FedAvg` averages among eligible clients; `unlearning_strategy.UnlearningStrategy` forgets by any method of
`unlearning.methods`. Both run under Flower's stock `start()` and under this project's live loop.

May import `unlearning` and Flower; not `server`, `client` or a database. Nothing is imported here: the command line
needs `tls_files` alone, and PyTorch takes seconds.
"""

from flower_unlearning_names import refuse_shadows

refuse_shadows()
