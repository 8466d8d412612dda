"""Renames a staged tree into a directory: all of it, or nothing where any of it cannot be.

What is not there yet is moved as it is; directories that are there are merged; files and links are replaced.
"""

import os
import stat
from typing import List, NamedTuple, Set, Tuple

from sandbox.guest.jobs import stopping
from sandbox.guest.refusal import Refusal

Names = Tuple[str, ...]


class _Move(NamedTuple):
    names: Names
    replaces: bool


def place(staged: str, target: str, backup: str) -> Set[Names]:
    """The directories that were merged. `backup` is a directory to make, for what is replaced, until all is done.

    Raises: Refusal (is_directory, not_directory, path_escapes), OSError; the target is as before.
    """
    moves: List[_Move] = []
    merged: Set[Names] = set()
    _plan(staged, target, (), moves, merged)
    os.mkdir(backup, 0o700)
    undo: List[Tuple[str, str]] = []
    try:
        for number, move in enumerate(moves):
            new, old = os.path.join(staged, *move.names), os.path.join(target, *move.names)
            if move.replaces:
                kept = os.path.join(backup, str(number))
                _keep(old, kept)
                undo.append((kept, old))
            os.rename(new, old)
            if not move.replaces:
                undo.append((old, new))
        stopping.ignore_sigterm()  # it is in place now, and whoever asks again must be told so
    except BaseException:
        for here, there in reversed(undo):
            os.rename(here, there)
        raise
    return merged


def _plan(staged: str, target: str, parents: Names, moves: List[_Move], merged: Set[Names]) -> None:
    with os.scandir(os.path.join(staged, *parents)) as entries:
        for entry in entries:
            names = (*parents, entry.name)
            path = os.path.join(target, *names)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                moves.append(_Move(names, False))
                continue
            if not entry.is_dir(follow_symlinks=False):
                if stat.S_ISDIR(mode):
                    raise Refusal("is_directory", "%s is a directory, and a file in the tar: delete it first" % path)
                moves.append(_Move(names, True))
            elif stat.S_ISDIR(mode):
                merged.add(names)
                _plan(staged, target, names, moves, merged)
            elif stat.S_ISLNK(mode):
                raise Refusal("path_escapes", "%s is a link, and a directory in the tar: delete it first" % path)
            else:
                raise Refusal("not_directory", "%s is a file, and a directory in the tar: delete it first" % path)


def _keep(path: str, backup: str) -> None:
    """By a second name where possible, so that the path is at no moment missing."""
    try:
        os.link(path, backup, follow_symlinks=False)
    except OSError:
        os.rename(path, backup)
