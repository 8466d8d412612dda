"""What is checked before a sandbox is handed out: mounts, and the disk that its guest sees."""

from pathlib import Path, PurePosixPath

import pytest

from sandbox.backends.docker.container import check_disk, checked_mounts
from sandbox.errors import CannotCreate
from sandbox.types import Mount, SandboxSpec


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "data/secret/inner").mkdir(parents=True)
    (tmp_path / "data/plain").mkdir()
    return tmp_path / "data/secret"


def sources(secret: Path, *paths: Path, is_local: bool = True) -> list[Path]:
    mounts = [Mount(source=path, target=PurePosixPath("/x")) for path in paths]
    hidden = {secret: "that is nobody's business"}
    return [mount.source for mount in checked_mounts(mounts, hidden=hidden, is_local=is_local)]


@pytest.mark.parametrize("path", [".", "inner", "..", "../plain/../secret", "/"])
@pytest.mark.parametrize("is_local", [True, False])
def test_what_shows_a_secret_is_refused_with_the_reason(secret: Path, path: str, is_local: bool) -> None:
    with pytest.raises(CannotCreate, match="cannot be mounted: it would show"):
        sources(secret, secret / path, is_local=is_local)


def test_a_link_is_followed_before_it_is_judged(secret: Path) -> None:
    (secret.parent / "plain/link").symlink_to(secret)
    with pytest.raises(CannotCreate, match="nobody's business"):
        sources(secret, secret.parent / "plain/link/inner")


def test_a_secret_is_found_by_every_name(secret: Path) -> None:
    alias = secret.parent / "alias"
    alias.symlink_to(secret)
    for path in (secret, alias):
        with pytest.raises(CannotCreate):
            sources(alias, path)


def test_a_secret_that_is_not_there_yet_is_refused_too(secret: Path) -> None:
    with pytest.raises(CannotCreate):
        sources(secret / "later", secret)


def test_the_rest_leads_where_its_links_lead(secret: Path) -> None:
    plain = secret.parent / "plain"
    (secret.parent / "link").symlink_to(plain)
    assert sources(secret, plain, secret.parent / "link") == [plain.resolve()] * 2


def test_links_of_another_machine_are_not_ours_to_follow(secret: Path) -> None:
    (secret.parent / "link").symlink_to(secret.parent / "plain")
    there = [secret.parent / "link", Path("/no/such/path/here")]
    assert sources(secret, *there, is_local=False) == there


def test_a_source_that_cannot_be_followed_is_refused_by_name(secret: Path) -> None:
    loop = secret.parent / "loop"
    loop.symlink_to(loop)
    for path, reason in ((loop, "symbolic links"), (secret.parent / "none", "No such file")):
        with pytest.raises(CannotCreate, match=f"{path.name} cannot be mounted: .*{reason}"):
            sources(secret, path)


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/docker/plugins",
        "/run/containerd/containerd.sock",
        "/var/run/containerd",
        "/var/lib/docker/containers",
        "/var/lib/containerd",
        "/proc/1/root",
        "/run",
        "/var",
    ],
)
def test_an_engine_in_its_usual_places_is_never_shown(secret: Path, path: str) -> None:
    with pytest.raises(CannotCreate, match="it would show"):
        sources(secret, Path(path), is_local=False)


@pytest.mark.parametrize("size", [0, 4 << 30, 250 << 30])
def test_a_disk_of_another_size_than_was_made_is_not_believed_in(size: int) -> None:
    spec = SandboxSpec()
    check_disk({"/workspace": 2 << 30, "/home/user": 2 << 30}, spec)
    with pytest.raises(CannotCreate, match="/home/user"):
        check_disk({"/workspace": 2 << 30, "/home/user": size}, spec)
    with pytest.raises(CannotCreate, match="/workspace"):
        check_disk({"/home/user": 2 << 30}, spec)


def test_what_the_caller_mounted_there_is_the_callers_business() -> None:
    mount = Mount(source=Path("/srv"), target=PurePosixPath("/workspace"))
    check_disk({"/workspace": 250 << 30, "/home/user": 2 << 30}, SandboxSpec(mounts=(mount,)))
