"""What was asked of a grep, and what becomes of a match: the part both engines share."""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from sandbox import search
from sandbox.guest.jobs.stream import Lines


class Query(NamedTuple):
    path: str
    pattern: str
    mode: str
    literal: bool
    ignore_case: bool
    glob: Optional[str]
    context: int
    limit: int

    @classmethod
    def of(cls, request: Dict[str, Any]) -> "Query":
        return cls(
            path=request["path"],
            pattern=request["pattern"],
            mode=request["mode"],
            literal=request.get("literal", False),
            ignore_case=request.get("ignore_case", False),
            glob=request.get("glob"),
            context=request.get("context", 0),
            limit=request["limit"],
        )


class Sink:
    """Takes what an engine found, file by file; `exceeded` tells it to stop."""

    def __init__(self, query: Query, lines: Lines, is_directory: bool, admits: Callable[[Sequence[str]], bool]) -> None:
        self._lines = lines
        self._root = query.path
        self._is_directory = is_directory
        self._admits = admits
        self._seen: Tuple[str, bool] = ("", False)
        self._quota = search.Quota(query.limit, query.context)
        self.n_skipped_binary = 0

    @property
    def exceeded(self) -> bool:
        return self._quota.exceeded

    def wants(self, path: str) -> bool:
        """Whether the glob admits a file."""
        return not self._is_directory or self._admits(self._relative(path).split("/"))

    def takes(self, path: str) -> bool:
        """Whether a file in which something was found is one to report: admitted, and text. Asked once a file."""
        if path != self._seen[0]:
            taken = self.wants(path)
            if taken and _is_binary(path):
                self.n_skipped_binary += 1
                taken = False
            self._seen = (path, taken)
        return self._seen[1]

    def put(self, path: str, hit: search.Hit) -> None:
        """A line of a file that the sink takes; for files and counts the number is that of the matching lines."""
        if self._quota.admits(path, hit):
            self._lines.put(self._record(self._relative(path), hit))

    def _record(self, path: str, hit: search.Hit) -> Dict[str, Any]:
        raise NotImplementedError

    def _relative(self, path: str) -> str:
        if not self._is_directory:
            return "."
        return path[len(self._root.rstrip("/")) + 1 :]


class FileSink(Sink):
    def _record(self, path: str, hit: search.Hit) -> Dict[str, Any]:
        return {"path": path}


class CountSink(Sink):
    def _record(self, path: str, hit: search.Hit) -> Dict[str, Any]:
        return {"path": path, "count": hit.number}


class LineSink(Sink):
    def _record(self, path: str, hit: search.Hit) -> Dict[str, Any]:
        return {"path": path, "n": hit.number, "text": hit.text, "m": hit.is_match}


def _is_binary(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return search.is_binary(file.read(search.BINARY_PROBE_BYTES) or b"")
    except OSError:
        return False
