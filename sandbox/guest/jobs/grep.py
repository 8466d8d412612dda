"""Lines that match, in the files below a directory or in one file.

`{path, pattern, mode, literal, ignore_case, glob, context, limit}` -> lines `{"path"}` (files), `{"path","n","text",
"m"}` (content) or `{"path","count"}`; a single file's path is ".". ripgrep finds the lines where the image has it, and
Python's `re` where not, or where ripgrep's syntax lacks what the pattern uses. Regular files only; symlinks are not
followed; nothing is ignored. Binary files are left out, and those with a match are counted.
"""

import os
import stat
from typing import Any, Dict, Optional

from sandbox import search
from sandbox.guest.jobs import grep_python, grep_ripgrep
from sandbox.guest.jobs.grep_sink import CountSink, FileSink, LineSink, Query, Sink
from sandbox.guest.jobs.stream import Lines
from sandbox.guest.refusal import Refusal, from_os_error

RIPGREP = ("/usr/local/bin/rg", "/usr/bin/rg")


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    return grep(Query.of(request), _ripgrep())


def grep(query: Query, ripgrep: Optional[str]) -> Dict[str, Any]:
    try:
        is_directory = stat.S_ISDIR(os.stat(query.path).st_mode)
        admits = search.file_filter(query.glob)
    except OSError as error:
        raise from_os_error(error, query.path) from None
    except search.BadPattern as error:
        raise Refusal("invalid_argument", str(error)) from None
    with Lines() as lines:
        sinks = {"files": FileSink, "content": LineSink, "count": CountSink}
        sink: Sink = sinks[query.mode](query, lines, is_directory, admits)
        if ripgrep is None or not grep_ripgrep.search_with(ripgrep, query, sink):
            grep_python.search_with(query, sink)
    return {"truncated": sink.exceeded, "n_skipped_binary": sink.n_skipped_binary}


def _ripgrep() -> Optional[str]:
    return next((path for path in RIPGREP if os.access(path, os.X_OK)), None)
