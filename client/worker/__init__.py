"""A warm worker: one process that has imported everything and forks a ClientApp process for each message.

Flower starts a Python process a message; importing Flower and PyTorch costs it seconds of processor time. Here the
process that Flower starts by the name `flwr-clientapp` is a launcher of a few milliseconds that hands its arguments to
the worker, which forks. Isolation stays as Flower has it: a process a message, killed with its launcher. Nothing of
Flower's is patched. Where the worker cannot serve, the launcher starts Flower's own program, cold.

    launcher.py     the program before Flower's on PATH; imports as little as can be
    fork_server.py  the worker: accepts, forks, reports exit statuses
    message_process.py  when a process may be forked, how it becomes a message's, and ends
    paths.py        the directory that launcher and worker share
    supernode.py    a SuperNode beside which a worker is kept running

Made for Linux and other systems with fork and Unix sockets. The launcher knows the worker by its socket, which only
the worker's user may open.
"""
