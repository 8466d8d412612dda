"""Who commands and file operations run as."""

import contextlib
import os
import pwd
from typing import Dict, Generator, List, NamedTuple, Tuple

from sandbox.guest.refusal import Refusal

MARK_BASE = 0x50000000
MARK_END = 0x60000000
"""Supplementary group ids in this range mark a command's processes; a command cannot shed them."""


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str
    groups: List[int]


_MAX_FOUND = 64
DEFAULT = Account("user", 1000, 1000, "/home/user", [1000])


_found: Dict[Tuple[str, int, int], Account] = {}


def find(name: str) -> Account:
    """Raises Refusal(unknown_user)."""
    # Asked for every operation; the files it comes from hardly ever change.
    key = (name, _changed_at("/etc/passwd"), _changed_at("/etc/group"))
    account = _found.get(key)
    if account is None:
        if len(_found) >= _MAX_FOUND:
            _found.clear()
        account = _found[key] = _look_up(name)
    return account


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _look_up(name: str) -> Account:
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError, ValueError):
        if name == DEFAULT.name:
            return DEFAULT  # an image that is not ours, with no such entry
        raise Refusal(
            "unknown_user", f"the image has no user {name!r}; leave `user` out to run as the default"
        ) from None
    groups = [gid for gid in os.getgrouplist(entry.pw_name, entry.pw_gid) if not MARK_BASE <= gid < MARK_END]
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir or "/", groups)


@contextlib.contextmanager
def acting_as(account: Account) -> "Generator[None, None, None]":
    """File operations with the user's rights and no more: real and saved ids stay root, so no command can signal us."""
    if os.getuid() != 0:
        yield
        return
    os.setgroups(account.groups)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups([])
