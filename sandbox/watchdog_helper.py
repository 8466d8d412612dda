"""The helper process of `sandbox/watchdog.py`. Run by path, with `-I -S`: it imports nothing of ours."""

import contextlib
import select
import socket
import struct
import sys
import time

MESSAGE = struct.Struct("!cII")


def main(fd: int) -> None:
    pipe = socket.socket(fileno=fd)
    guarded: dict[int, tuple[socket.socket, float]] = {}
    heard_at = time.monotonic()
    while True:
        wait_s = min((lease for _, lease in guarded.values()), default=3600.0) / 4
        if select.select([pipe], [], [], wait_s)[0]:
            try:
                data, fds, _, _ = socket.recv_fds(pipe, MESSAGE.size, 1)
            except ConnectionError:
                break
            if len(data) < MESSAGE.size:
                break
            heard_at = time.monotonic()
            kind, number, lease_ms = MESSAGE.unpack(data)
            if kind == b"+" and fds:
                guarded[number] = (socket.socket(fileno=fds[0]), lease_ms / 1000)
            elif kind == b"-" and number in guarded:
                guarded.pop(number)[0].close()
        silent_s = time.monotonic() - heard_at
        for number in [number for number, (_, lease_s) in guarded.items() if silent_s > lease_s]:
            _shut(guarded.pop(number)[0])
    for sock, _ in guarded.values():
        _shut(sock)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError), sock:
        sock.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(int(sys.argv[1]))
