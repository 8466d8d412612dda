"""Grep with Python's `re`. Of a line longer than a mebibyte the first mebibyte is searched."""

import os
import stat
from typing import BinaryIO, Iterator, Optional

from sandbox import search
from sandbox.guest.jobs.grep_sink import Query, Sink
from sandbox.guest.jobs.tree import walk
from sandbox.guest.refusal import Refusal

MAX_LINE_BYTES = 1 << 20


def search_with(query: Query, sink: Sink) -> None:
    try:
        test = search.line_test(query.pattern, query.literal, query.ignore_case)
    except search.BadPattern as error:
        raise Refusal("invalid_argument", str(error)) from None
    for path in _files(query.path):
        if sink.wants(path):
            file = _open(path)
            if file is not None:
                with file:
                    _search_file(file, path, query, test, sink)
        if sink.exceeded:
            return


def _files(root: str) -> Iterator[str]:
    if not os.path.isdir(root):
        yield root
        return
    for _, entry in walk(root):
        if entry.is_file(follow_symlinks=False):
            yield entry.path


def _open(path: str) -> Optional[BinaryIO]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    file = os.fdopen(fd, "rb", buffering=1 << 17)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return file
    file.close()
    return None


def _search_file(file: BinaryIO, path: str, query: Query, test: search.LineTest, sink: Sink) -> None:
    if query.mode == "content":
        for hit in search.scan(_lines(file), test, query.context):
            if not sink.takes(path):
                return
            sink.put(path, hit)
            if sink.exceeded:
                return
        return
    n_matches = 0
    for line in _lines(file):
        if test(search.decode_line(line)):
            n_matches += 1
            if query.mode == "files" or not sink.takes(path):
                break
    if n_matches and sink.takes(path):
        sink.put(path, search.Hit(n_matches, "", True))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    try:
        while True:
            line = file.readline(MAX_LINE_BYTES)
            if not line:
                return
            yield line
            while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE_BYTES)
    except OSError:
        return
