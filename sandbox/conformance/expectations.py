"""What cannot be had, by backend: the name of the check and the reason."""

from sandbox.conformance.check import Ability
from sandbox.conformance.runner import CHECKS

_NO_LINKS = "files in memory have no symbolic links"

MEMORY: dict[str, str] = {
    **{
        check.name: "files in memory have no commands"
        for check in CHECKS
        if check.needs in (Ability.PROCESSES, Ability.WATCH)
    },
    "symlinks_in_an_upload_are_kept_and_not_followed": _NO_LINKS,
    "a_link_is_deleted_and_moved_not_its_target": _NO_LINKS,
    "reading_through_a_link": _NO_LINKS,
}

SCRIPTED: dict[str, str] = {
    **MEMORY,
    **{check.name: "its commands are scripted" for check in CHECKS if check.needs is Ability.PROCESSES},
}
del SCRIPTED["commands_that_mean_nothing_are_refused"]

DOCKER: dict[str, str] = {}
