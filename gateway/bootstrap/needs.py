"""What a step needs from this machine, found out before anything is done: one sentence instead of one an attempt."""

import os
from collections.abc import Callable
from pathlib import Path

from gateway.bootstrap import docker_api, engine, packages, venv
from gateway.bootstrap.failure import Exit, SetupFailed
from gateway.bootstrap.state import locked

VENV_STEPS = frozenset({"venv", "image", "all"})
ENGINE_STEPS = frozenset({"engine", "image", "all"})
IMAGE_STEPS = frozenset({"image", "all"})

_BASE = "boatyard/base"


def ensure(step: str, *, root: Path, state: Path) -> None:
    """Installs all Debian packages that `step` will need, and checks what only a person can change.

    Raises: SetupFailed with the whole list where it may not install, or with what else has to be done first.
    """
    host = engine.engine_host(os.environ)
    answers = step in ENGINE_STEPS and engine.ensure_reachable(host)
    makes_image = step in IMAGE_STEPS and not any((state / "rootfs").glob("*.tar"))
    makes_image = makes_image and not (answers and docker_api.has_image(host, _BASE))

    def missing() -> dict[str, str]:
        return missing_packages(
            for_venv=step in VENV_STEPS and venv.needs_ensurepip(root, state),
            for_engine=step in ENGINE_STEPS and not answers,
            for_image=makes_image,
            find=packages.find_program,
        )

    if missing():
        with locked(state, "packages"):
            if wanted := missing():
                packages.apt_install("packages", list(wanted), " and ".join(dict.fromkeys(wanted.values())), logs=state)
    if os.geteuid() != 0:
        if step in ENGINE_STEPS and not answers:
            raise SetupFailed(Exit.NEEDS_ROOT, engine.only_root_can_start(host))
        if makes_image:
            raise SetupFailed(
                Exit.NEEDS_ROOT, "the base image is made from Debian's packages by root: run `sudo make setup` once"
            )


def missing_packages(
    *, for_venv: bool, for_engine: bool, for_image: bool, find: Callable[[str], str | None]
) -> dict[str, str]:
    """The packages that are needed for each of these and not there, and why."""
    missing = {"python3-venv": "this Python cannot make virtual environments"} if for_venv else {}
    if for_engine:
        lacking = packages.missing_packages(packages.ENGINE_PROGRAMS, find)
        missing |= dict.fromkeys(lacking, "no Docker engine answers and none is installed")
    if for_image:
        lacking = packages.missing_packages(packages.IMAGE_PROGRAMS, find)
        missing |= dict.fromkeys(lacking, "the base image has to be made")
    return missing
