"""What jobs write to fd 1: bytes, or JSON objects one a line, in ASCII."""

import json
import os
from typing import Any, Dict, List, Union

STDIN = 0
STDOUT = 1
CHUNK_BYTES = 1 << 20


def write_all(data: Union[bytes, bytearray, memoryview], fd: int = STDOUT) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Lines:
    """A buffer of lines. `with` flushes it at the end, also where the job fails."""

    def __init__(self, flush_at_bytes: int = 32768) -> None:
        self._pieces: List[bytes] = []
        self._n_bytes = 0
        self._flush_at_bytes = flush_at_bytes

    def put(self, value: Dict[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
        self._pieces.append(line)
        self._n_bytes += len(line)
        if self._n_bytes >= self._flush_at_bytes:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self._pieces)
        self._pieces, self._n_bytes = [], 0
        write_all(data)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.flush()
