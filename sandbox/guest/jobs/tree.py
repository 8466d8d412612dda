"""Walking a directory tree: depth first, by name within a directory, symlinks never followed."""

import os
from typing import Callable, Iterator, List, Tuple

from sandbox.guest.refusal import from_os_error

Names = Tuple[str, ...]
Visit = Tuple[Names, "os.DirEntry[str]"]


def everywhere(names: Names) -> bool:
    return True


def walk(root: str, enter: Callable[[Names], bool] = everywhere) -> Iterator[Visit]:
    """Every entry below `root`, a directory before its content; `enter` says which directories are read.

    Directories that vanish or may not be read are passed over, but for `root`, whose error is a Refusal. Holds one
    directory's entries in memory for each level.
    """
    try:
        entries = _sorted_entries(root)
    except OSError as error:
        raise from_os_error(error, root) from None
    stack: List[Tuple[Names, "Iterator[os.DirEntry[str]]"]] = [((), entries)]
    while stack:
        parents, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        names = (*parents, entry.name)
        yield names, entry
        if entry.is_dir(follow_symlinks=False) and enter(names):
            try:
                stack.append((names, _sorted_entries(entry.path)))
            except OSError:
                continue


def _sorted_entries(path: str) -> "Iterator[os.DirEntry[str]]":
    with os.scandir(path) as entries:
        return iter(sorted(entries, key=lambda entry: os.fsencode(entry.name)))
