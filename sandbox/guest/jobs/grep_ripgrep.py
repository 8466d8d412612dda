"""Grep with ripgrep: it finds, we filter and count.

Its binary detection and its globs are not used, so that both engines answer alike: `--text` makes it report every
file with a match, and the sink looks at each once. The output is `path NUL number (: or -) line`, with long lines
cut by ripgrep itself: its JSON would list every match in a line of 100 MB.
"""

import os
import re
import subprocess
from typing import Iterator, List, Tuple

from sandbox import search
from sandbox.guest.jobs.grep_sink import Query, Sink
from sandbox.guest.refusal import Refusal

# 2000 characters of UTF-8 always fit, so a line that ripgrep cut is one that we cut too.
MAX_COLUMNS = 4 * search.MAX_LINE_CHARS + 4
_SAFE_GLOB = re.compile(r"(?!.*\*\*)[A-Za-z0-9_.*-]+")
_MODE_OPTIONS = {
    "files": ["--files-with-matches"],
    "count": ["--count", "--with-filename"],
    "content": [
        "--line-number",
        "--with-filename",
        "--no-heading",
        "--no-context-separator",
        "--max-columns=%d" % MAX_COLUMNS,
        "--max-columns-preview",
    ],
}


def search_with(ripgrep: str, query: Query, sink: Sink) -> bool:
    """False where ripgrep does not take the pattern but Python might; nothing was reported then."""
    if not query.pattern or "\n" in query.pattern:
        return False
    process = subprocess.Popen(
        _command(ripgrep, query), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    anything = False
    try:
        for path, hit in _parse(query.mode, _chunks(process.stdout.fileno())):
            anything = True
            if sink.takes(path):
                sink.put(path, hit)
            if sink.exceeded:
                return True
    finally:
        process.kill()
        process.stdout.close()
        code = process.wait()
    if code == 2 and not anything:
        return _accepts(ripgrep, query)
    if code < 0:
        raise Refusal("io_failed", "ripgrep was killed by signal %d: search in fewer files" % -code)
    return True


def _command(ripgrep: str, query: Query) -> List[str]:
    command = [ripgrep, "--no-config", "--hidden", "--no-ignore", "--no-messages", "--text", "--encoding=none"]
    command += ["--sort=path", "--color=never", "--crlf", "--null", *_MODE_OPTIONS[query.mode], *_pattern(query)]
    if query.context and query.mode == "content":
        command.append("--context=%d" % query.context)
    if query.glob and _SAFE_GLOB.fullmatch(query.glob) and os.path.isdir(query.path):
        command.append("--glob=" + query.glob)
    return [*command, "--", query.path]


def _pattern(query: Query) -> List[str]:
    options = ["--fixed-strings"] if query.literal else []
    options.append("--ignore-case" if query.ignore_case else "--case-sensitive")
    return [*options, "--regexp=" + query.pattern]


def _accepts(ripgrep: str, query: Query) -> bool:
    """Whether ripgrep takes the pattern at all: it says 2 for a bad one and for an unreadable file alike."""
    command = [ripgrep, "--no-config", *_pattern(query), "--", "-"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 2:
        return True
    try:
        search.line_test(query.pattern, query.literal, query.ignore_case)
    except search.BadPattern as error:
        raise Refusal("invalid_argument", str(error)) from None
    return False


def _chunks(fd: int) -> Iterator[bytes]:
    while True:
        data = os.read(fd, 1 << 16)
        if not data:
            return
        yield data


def _parse(mode: str, chunks: Iterator[bytes]) -> Iterator[Tuple[str, search.Hit]]:
    """The records in ripgrep's output. A path may hold line breaks and a line may hold NULs: the first NUL ends the
    path, and the first line break after it the record."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        begin = 0
        while True:
            nul = rest.find(b"\0", begin)
            if nul < 0:
                break
            end = nul if mode == "files" else rest.find(b"\n", nul)
            if end < 0:
                break
            yield os.fsdecode(rest[begin:nul]), _hit(mode, rest[nul + 1 : end])
            begin = end + 1
        rest = rest[begin:]


def _hit(mode: str, record: bytes) -> search.Hit:
    if mode == "files":
        return search.Hit(1, "", True)
    if mode == "count":
        return search.Hit(int(record), "", True)
    separator = next(at for at, char in enumerate(record) if char in b":-")
    text = search.decode_line(record[separator + 1 :] + b"\n")
    return search.Hit(int(record[:separator]), search.cut_line(text), record[separator : separator + 1] == b":")
