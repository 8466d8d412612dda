"""Changes below a directory as they happen: `{path, recursive}` -> `{"ready": true}`, then `{"kind","path","dir"}`.

It ends when fd 0 does, or the directory is gone. What is in a directory that appears is reported as created. A reader
that is too slow makes the kernel drop events: the line `overflow` says so.
"""

import errno
import os
import select
from typing import Any, Dict, Optional, Set, Tuple

from sandbox.guest.jobs import inotify
from sandbox.guest.jobs.stream import STDIN, Lines
from sandbox.guest.refusal import Refusal, from_os_error

MAX_WATCHES = 8192

_KINDS = (
    (inotify.CREATE, "created"),
    (inotify.MODIFY, "modified"),
    (inotify.DELETE, "deleted"),
    (inotify.MOVED_FROM, "moved_from"),
    (inotify.MOVED_TO, "moved_to"),
    (inotify.ATTRIB, "attributes"),
)
_MASK = sum(bit for bit, _ in _KINDS) | inotify.DELETE_SELF | inotify.ONLYDIR | inotify.EXCL_UNLINK


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    root: str = request["path"]
    try:
        watcher = _Watcher(root, bool(request.get("recursive", True)))
        watcher.watch_root()
    except OSError as error:
        raise _refusal(error, root) from None
    with watcher.lines as lines:
        lines.put({"ready": True})
        lines.flush()
        poll = select.poll()
        poll.register(STDIN, select.POLLIN)
        poll.register(watcher.inotify.fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if STDIN in ready and not os.read(STDIN, 4096):
                return {}
            if watcher.inotify.fd in ready and not watcher.report():
                return {}


class _Watcher:
    def __init__(self, root: str, recursive: bool) -> None:
        self.inotify = inotify.Inotify()
        self.lines = Lines()
        self._root = root
        self._recursive = recursive
        self._root_watch = -1
        self._paths: Dict[int, str] = {}
        self._announced: Set[str] = set()
        self._last: Optional[Tuple[str, str]] = None

    def watch_root(self) -> None:
        self._root_watch = self.inotify.add(self._root, _MASK)
        self._paths[self._root_watch] = ""
        if self._recursive:
            self._watch_below("", announce=False)

    def report(self) -> bool:
        """Writes down what has happened; False once the root is gone."""
        for event in self.inotify.read():
            if event.mask & inotify.OVERFLOW:
                self._put("overflow", ".", True)
                if self._recursive:
                    self._watch_below("", announce=False)
            elif event.mask & (inotify.IGNORED | inotify.UNMOUNT | inotify.DELETE_SELF):
                if event.watch == self._root_watch:
                    self.lines.flush()
                    return False
                self._paths.pop(event.watch, None)
            elif event.watch in self._paths:
                self._take(event)
        # Whatever happened before a directory was listed has been read by now.
        self._announced.clear()
        self._last = None
        self.lines.flush()
        return True

    def _take(self, event: inotify.RawEvent) -> None:
        if not event.name and event.watch != self._root_watch:
            return  # the parent's watch tells it too, with the name
        path = _join(self._paths[event.watch], event.name) or "."
        is_directory = bool(event.mask & inotify.IS_DIRECTORY)
        kind = next(kind for bit, kind in _KINDS if event.mask & bit)
        if kind == "created" and path in self._announced:
            self._announced.discard(path)
            return
        if kind in ("deleted", "moved_from"):
            self._announced.discard(path)
            if is_directory:
                self._forget(path)
        self._put(kind, path, is_directory)
        if is_directory and self._recursive and kind in ("created", "moved_to") and self._add(path):
            self._watch_below(path, announce=True)

    def _put(self, kind: str, path: str, is_directory: bool) -> None:
        """A run of equal events (a write in many pieces) is told once."""
        if (kind, path) != self._last:
            self._last = (kind, path)
            self.lines.put({"kind": kind, "path": path, "dir": is_directory})

    def _add(self, path: str) -> bool:
        """Whether a directory is watched now; one that vanished or may not be read is not."""
        if len(self._paths) >= MAX_WATCHES:
            raise _too_many(self._root)
        try:
            watch = self.inotify.add(os.path.join(self._root, path), _MASK | inotify.DONT_FOLLOW)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False
        except OSError as error:
            raise _refusal(error, self._root) from None
        self._paths[watch] = path
        return True

    def _watch_below(self, path: str, announce: bool) -> None:
        todo = [path]
        while todo:
            path = todo.pop()
            try:
                with os.scandir(os.path.join(self._root, path)) as entries:
                    found = [(_join(path, entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
            except OSError:
                continue
            for below, is_directory in found:
                if announce:
                    self._announced.add(below)
                    self._put("created", below, is_directory)
                if is_directory and self._add(below):
                    todo.append(below)

    def _forget(self, path: str) -> None:
        below = path + "/"
        for watch, watched in list(self._paths.items()):
            if watched == path or watched.startswith(below):
                del self._paths[watch]
                self.inotify.remove(watch)


def _join(directory: str, name: str) -> str:
    return "%s/%s" % (directory, name) if directory and name else directory or name


def _too_many(root: str) -> Refusal:
    return Refusal("too_large", "%s: more than %d directories to watch: watch a smaller tree" % (root, MAX_WATCHES))


def _refusal(error: OSError, root: str) -> Refusal:
    if error.errno in (errno.ENOSPC, errno.EMFILE):
        return Refusal("too_large", "%s: the kernel grants no further watches: end others first" % root)
    return from_os_error(error, root)
