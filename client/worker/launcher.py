"""The program that Flower starts as `flwr-clientapp`: hands a message's process to the warm worker, or starts cold.

`WorkerPaths.prepare` writes this file's text into a directory of its own, behind a first line that starts Python
without its site packages and before a last line that calls `main`. It imports as little as can be: this is all that a
message waits for before its process exists.

    launcher                          worker
    ── frame, three streams ────────►
    ◄──────────── "A" or "R" reason ──  can serve, or not
    ── "G" ─────────────────────────►   a launcher that has timed out never sends it: no process without one
    ◄──────────── "F" or "R" reason ──  forked, or could not
    ◄──────────────── "X" four bytes ──  its exit status
"""

import _socket
import os
import sys

ANSWER_TIMEOUT_S = 10.0


def main(socket_path: str, program: str, record: str) -> None:
    """Let the worker run `program` with this process's arguments, environment and streams; else run it cold.

    record: a file that gets a line for each cold start.
    """
    has_gone = False  # from then on there may be a process, so only a refusal lets another one start
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    line.settimeout(ANSWER_TIMEOUT_S)
    try:
        line.connect(socket_path)
        body = _frame()
        # SCM_RIGHTS: the worker gets this process's own streams.
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
        sent = line.sendmsg([body], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        if sent < len(body):
            line.sendall(body[sent:])
        answer = line.recv(1)
        if answer == b"A":
            has_gone = True
            line.sendall(b"G")
            line.settimeout(None)
            answer = line.recv(1)
        reason = _rest(line).decode("utf-8", "replace") if answer == b"R" else "the worker ended"
    except OSError as exc:
        answer, reason = b"", f"the worker does not answer: {exc}"
    if answer == b"F" or (has_gone and answer != b"R"):
        _wait(line)
    line.close()
    _cold(program, record, reason)


def _frame() -> bytes:
    fields = [os.getcwdb(), str(_umask()).encode(), str(len(sys.argv)).encode()]  # noqa: PTH109 - pathlib takes 10 ms
    fields += [os.fsencode(argument) for argument in sys.argv]
    fields += [name + b"=" + value for name, value in os.environb.items()]
    body = b"\0".join(fields)
    return len(body).to_bytes(4, "big") + body


def _umask() -> int:
    present = os.umask(0o077)
    os.umask(present)
    return present


def _rest(line: _socket.socket) -> bytes:
    parts = []
    while part := line.recv(4096):
        parts.append(part)
    return b"".join(parts)


def _wait(line: _socket.socket) -> None:
    """Wait for the exit status and end with it; a worker that dies lets its child finish its message."""
    try:
        answer = _rest(line)
    except OSError:
        answer = b""
    if answer[:1] != b"X":
        os.write(2, b"The warm worker ended; the message's process goes on by itself.\n")
        os._exit(1)
    status = int.from_bytes(answer[1:5], "big", signed=True)
    os._exit(status if status >= 0 else 128 - status)


def _cold(program: str, record: str, reason: str) -> None:
    """Start Flower's own program; the reason goes into the record, and is said when it is a new one."""
    text = reason.replace("\n", " ")[:500]
    try:
        number = os.open(record, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        known = os.pread(number, 65536, max(0, os.fstat(number).st_size - 65536))
        os.write(number, text.encode() + b"\n")
        os.close(number)
    except OSError:
        known = b""
    if text.encode() + b"\n" not in known:
        os.write(2, f"No warm worker ({text}); starting {program}.\n".encode())
    os.execv(program, [program, *sys.argv[1:]])
