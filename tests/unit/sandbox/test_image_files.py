"""Image files, their hashes, and what a build borrows from the machine without leaving it in the image."""

from pathlib import Path

import pytest

from sandbox.backends.docker import host_config
from sandbox.backends.docker.image_file import DEBIAN, digest, find, load, parse, recipe, shipped_dir
from sandbox.backends.docker.images import steps
from sandbox.backends.docker.rootfs import Rootfs, mmdebstrap_command
from sandbox.errors import ImageNotFound, InvalidArgument

MINIMAL = 'name = "mine"\nbase = "base"\n'


class TestParse:
    def test_every_shipped_file_is_valid_and_named_as_its_file(self) -> None:
        files = sorted(shipped_dir().glob("*.toml"))
        assert [load(file).name for file in files] == [file.stem for file in files]
        assert "base" in {file.stem for file in files}

    def test_a_file_may_be_as_short_as_a_name_and_a_base(self) -> None:
        file = parse(MINIMAL, "mine.toml")
        assert (file.name, file.base, file.apt, file.script, file.user) == ("mine", "base", [], "", None)

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ('name = "mine"', "base"),
            (MINIMAL + "pips = []", "pips"),
            (MINIMAL + 'apt = ["--allow-downgrades"]', r"apt\[0\]"),
            (MINIMAL + 'apt = ["git", "a b"]', r"apt\[1\]"),
            (MINIMAL + 'pip = ["--index-url=x"]', r"pip\[0\]"),
            (MINIMAL + 'pip = ["a --pre"]', r"pip\[0\]"),
            (MINIMAL + 'npm = ["-g"]', r"npm\[0\]"),
            (MINIMAL + 'apt = "git"', "apt"),
            (MINIMAL + "script = 3", "script"),
            (MINIMAL + 'env = { "A-B" = "1" }', r"env\.A-B"),
            (MINIMAL + "env = { A = 1 }", r"env\.A"),
            (MINIMAL + 'workdir = "relative"', "workdir"),
            ('name = "Mine!"\nbase = "base"', "name"),
        ],
    )
    def test_an_error_names_the_file_and_the_key(self, text: str, key: str) -> None:
        with pytest.raises(InvalidArgument, match=rf"^some\.toml is not an image file: .*{key}"):
            parse(text, "some.toml")

    def test_what_is_not_toml_is_said_with_its_line(self) -> None:
        with pytest.raises(InvalidArgument, match=r"some\.toml is not TOML: .*line 1"):
            parse("name = \nbase = 1", "some.toml")

    def test_a_missing_file_is_not_found(self, tmp_path: Path) -> None:
        with pytest.raises(ImageNotFound, match=r"none\.toml cannot be read"):
            load(tmp_path / "none.toml")

    @pytest.mark.parametrize("requirement", ["requests", "requests>=2,<3", "uvicorn[standard] ~= 0.5", "a==1.0+cpu"])
    def test_requirements_of_the_usual_forms_are_taken(self, requirement: str) -> None:
        assert parse(MINIMAL + f'pip = ["{requirement}"]', "x").pip == [requirement]


class TestFind:
    def test_a_name_is_a_shipped_file_and_a_path_is_taken_from_where_it_stands(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text("")
        assert find("base", shipped=tmp_path) == tmp_path / "base.toml"
        assert find("../a.toml", beside=tmp_path / "x/b.toml") == tmp_path / "x/../a.toml"
        assert find("a.toml") == Path("a.toml")

    @pytest.mark.parametrize("reference", ["python:3.12", "other", "../base", "sha256:0123"])
    def test_anything_else_is_an_image_of_the_engine(self, tmp_path: Path, reference: str) -> None:
        (tmp_path / "base.toml").write_text("")
        assert find(reference, shipped=tmp_path / "x") is None


class TestDigest:
    def test_comments_and_the_order_of_keys_do_not_matter(self) -> None:
        one = parse('name = "a"\nbase = "b"\nenv = { A = "1", B = "2" }', "x")
        two = parse('# why\nbase = "b"\nname = "a"\nenv = { B = "2", A = "1" }', "x")
        assert digest({"recipe": recipe(one)}) == digest({"recipe": recipe(two)})

    def test_every_key_and_the_base_matter(self) -> None:
        more = ['apt = ["git"]', 'pip = ["git"]', 'npm = ["git"]', 'script = "git"', 'user = "git"', 'workdir = "/git"']
        texts = [MINIMAL, *(MINIMAL + line for line in more)]
        digests = {digest({"recipe": recipe(parse(text, "x")), "base": base}) for text in texts for base in ("1", "2")}
        assert len(digests) == 2 * len(texts)

    def test_a_root_filesystem_is_known_by_its_packages_in_any_order(self) -> None:
        one = Rootfs(suite="bookworm", packages=("a", "b"))
        assert one.digest == Rootfs(suite="bookworm", packages=("b", "a")).digest
        assert one.digest != Rootfs(suite="bookworm", packages=("a",)).digest


class TestSteps:
    def test_they_run_in_the_order_apt_pip_npm_script(self) -> None:
        text = MINIMAL + 'apt = ["git", "npm"]\npip = ["a[b]>1"]\nnpm = ["left-pad"]\nscript = "true"'
        found = steps(parse(text, "x"))
        assert [name for name, _ in found] == ["apt", "pip", "npm", "script"]
        assert "'a[b]>1'" in found[1][1]

    def test_npm_brings_nodejs_where_the_base_has_none(self) -> None:
        found = dict(steps(parse(MINIMAL + 'npm = ["left-pad"]', "x")))
        assert "apt-get install" in found["npm (nodejs)"]

    def test_the_packages_of_a_debian_root_filesystem_are_not_installed_twice(self) -> None:
        assert steps(parse(f'name = "a"\nbase = "{DEBIAN}"\napt = ["git"]', "x")) == []


HOST_SOURCES = """\
# a comment
Types: deb deb-src
URIs: scheme://mirror.invalid/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: scheme://vendor.invalid/apt
Suites: bookworm
Components: stable

Types: deb
URIs: scheme://off.invalid/debian
Suites: bookworm
Components: main
Enabled: no
"""
HOST_LIST = """\
deb [arch=amd64 signed-by=/usr/share/keyrings/debian.gpg] scheme://old.invalid/security bookworm-security main # why
deb-src scheme://old.invalid/debian bookworm main
deb scheme://db.invalid/apt bookworm-pgdg main
"""
APT_DUMP = """\
APT "";
Acquire::http::Proxy "scheme://proxy.invalid:1";
Acquire::https::CAInfo "/etc/private.crt";
Acquire::http::User-Agent "";
Acquire::Check-Valid-Until "false";
DPkg::Post-Invoke:: "rm -rf /";
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A machine's /etc and home, with settings of every kind."""
    root = tmp_path / "host"
    for name in (
        "etc/apt/sources.list.d",
        "etc/ssl/certs",
        "usr/share/keyrings",
        "root",
        "opt/pypi/simple",
        "opt/wheels",
    ):
        (root / name).mkdir(parents=True)
    (root / "etc/apt/sources.list").write_text(HOST_LIST)
    (root / "etc/apt/sources.list.d/debian.sources").write_text(HOST_SOURCES)
    (root / "usr/share/keyrings/debian.gpg").write_text("key")
    (root / "etc/ssl/certs/ca-certificates.crt").write_text("ca")
    index = f"extra-index-url = file://{root}/opt/pypi/simple"
    (root / "etc/pip.conf").write_text(f"[global]\nfind-links = {root}/opt/wheels\n{index}\ncert = /etc/private.crt\n")
    (root / "root/.npmrc").write_text("registry=scheme://npm.invalid\ncafile=/etc/private.crt\nprefix=/usr\n")
    return root


class TestHostConfig:
    def test_only_debians_own_sources_of_the_release_are_taken(self) -> None:
        found = host_config.debian_sources([HOST_SOURCES, HOST_LIST], "bookworm")
        uris = [(stanza["uris"], stanza["suites"]) for stanza in found]
        assert uris == [
            ("scheme://mirror.invalid/debian", "bookworm bookworm-updates"),
            ("scheme://old.invalid/security", "bookworm-security"),
        ]
        assert {stanza["types"] for stanza in found} == {"deb"}

    def test_sources_survive_being_written_and_read(self) -> None:
        found = host_config.debian_sources([HOST_SOURCES, HOST_LIST], "bookworm")
        assert host_config.debian_sources([host_config.render_sources(found)], "bookworm") == found

    def test_of_apts_settings_only_those_about_fetching_are_taken(self) -> None:
        assert host_config.apt_options(APT_DUMP) == [
            'Acquire::http::Proxy "scheme://proxy.invalid:1";',
            'Acquire::https::CAInfo "/etc/private.crt";',
            'Acquire::Check-Valid-Until "false";',
        ]

    def test_the_build_sees_copies_below_run_and_no_path_of_the_host(self, host: Path, tmp_path: Path) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        environ = {"HOME": f"{host}/root", "HTTPS_PROXY": "p", "SECRET": "s", "PIP_TIMEOUT": "9"}
        config = host_config.gather(scratch, environ=environ, suite="bookworm", apt_config_dump=APT_DUMP, root=host)
        assert config.env["PIP_TIMEOUT"] == "9"
        assert config.env["HTTPS_PROXY"] == "p"
        assert config.env["PIP_CERT"] == "/run/boatyard/ca.crt"
        assert "SECRET" not in config.env
        assert (config.directory / "ca.crt").read_text() == "ca"
        assert (config.directory / "npmrc").read_text().strip() == "registry=scheme://npm.invalid"
        sources = (config.directory / "apt/host.sources").read_text()
        assert "signed-by: /run/boatyard/keys/0-0.gpg" in sources
        assert (config.directory / "keys/0-0.gpg").read_text() == "key"
        assert "/etc/private.crt" not in (config.directory / "apt.conf").read_text()

    def test_pips_local_directories_are_bound_and_linked(self, host: Path, tmp_path: Path) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        config = host_config.gather(scratch, environ={"HOME": "/x"}, suite=None, apt_config_dump="", root=host)
        assert set(config.links) == {f"{host}/opt/wheels", f"{host}/opt/pypi"}
        bound = {str(bind.source): bind for bind in config.binds}
        assert all(bound[path].target == target and bound[path].read_only for path, target in config.links.items())

    def test_every_bind_is_below_a_directory_that_is_not_part_of_the_image(self, host: Path, tmp_path: Path) -> None:
        config = host_config.gather(tmp_path, environ={"HOME": "/x"}, suite=None, apt_config_dump="", root=host)
        assert all(bind.target.startswith("/run/") or bind.target == "/tmp" for bind in config.binds)

    def test_a_machine_with_nothing_configured_is_fine(self, tmp_path: Path) -> None:
        (tmp_path / "scratch").mkdir()
        config = host_config.gather(
            tmp_path / "scratch", environ={"HOME": "/x"}, suite="bookworm", apt_config_dump="", root=tmp_path / "none"
        )
        assert "PIP_CERT" not in config.env
        assert not config.links


def test_mmdebstrap_gets_the_hosts_settings_and_removes_them_again() -> None:
    rootfs = Rootfs(suite="bookworm", packages=("git", "curl"))
    command = mmdebstrap_command(rootfs, Path("/s/x.tar"), Path("/t/host.sources"), APT_DUMP)
    assert "--include=git,curl" in command
    assert '--aptopt=Acquire::http::Proxy "scheme://proxy.invalid:1"' in command
    assert command[-3:] == ["bookworm", "/s/x.tar", "/t/host.sources"]
    hooks = " ".join(part for part in command if part.startswith("--customize-hook"))
    assert "/etc/apt/sources.list.d/*" in hooks
    assert "99mmdebstrap" in hooks
    assert mmdebstrap_command(rootfs, Path("/s/x.tar"), None, "")[-2:] == ["bookworm", "/s/x.tar"]
