"""What a build borrows from this machine: package sources and their keys, pip's and npm's settings, the CA bundle.

Everything is put into one directory that a build container sees read-only below /run, and into the environment of the
build's steps. Nothing of it becomes part of an image, so an image holds no name of an index and no private CA.
"""

import configparser
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sandbox.backends.docker.engine import Bind

MOUNT = "/run/boatyard"
CACHE = "/run/boatyard-cache"
_LOCAL = "/run/boatyard-local"

Stanza = dict[str, str]

_PIP_KEYS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "no-index",
    "timeout",
    "default-timeout",
    "retries",
    "proxy",
)
_NPM_DROPPED = ("cafile", "ca", "prefix", "nodedir", "cache", "tmp", "logs-dir", "userconfig", "globalconfig")
_PROXY = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<parts>[^#]+)")
_APT_OPTION = re.compile(r'^Acquire::(https?|Check-|Retries|ForceIPv|Languages|Max-)[^ ]* ".*";$')


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """What a build container is given for the time of the build.

    `links` are symbolic links to make before the steps and to remove after them: pip's configuration may name local
    directories, and a bind at their own path would leave an empty directory in the image. `directory` is what the
    container sees at `MOUNT`.
    """

    directory: Path
    env: Mapping[str, str]
    binds: tuple[Bind, ...]
    links: Mapping[str, str]


def debian_sources(texts: Iterable[str], suite: str) -> list[Stanza]:
    """The entries of apt's source files that are Debian's own for `suite`: third parties are left out."""
    wanted = {suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates"}
    found: list[Stanza] = []
    for text in texts:
        for stanza in [*_deb822(text), *_one_line(text)]:
            suites = [name for name in stanza.get("suites", "").split() if name in wanted]
            is_binary = "deb" in stanza.get("types", "").split()
            is_enabled = stanza.get("enabled", "yes").lower() not in ("no", "false", "0")
            if suites and is_binary and is_enabled and "main" in stanza.get("components", "").split():
                found.append({**stanza, "types": "deb", "suites": " ".join(suites)})
    return found


def render_sources(stanzas: Iterable[Stanza]) -> str:
    """The entries as a deb822 file."""
    return "\n".join("".join(f"{key}: {value}\n" for key, value in stanza.items()) for stanza in stanzas)


def _deb822(text: str) -> list[Stanza]:
    stanzas: list[Stanza] = []
    for block in re.split(r"\n\s*\n", text):
        stanza: Stanza = {}
        key = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and key:
                stanza[key] += f"\n{line}"
            elif ":" in line and not line.startswith(("deb ", "deb-src ", "deb [")):
                key, _, value = line.partition(":")
                key = key.strip().lower()
                stanza[key] = value.strip()
        if "uris" in stanza:
            stanzas.append(stanza)
    return stanzas


def _one_line(text: str) -> list[Stanza]:
    stanzas: list[Stanza] = []
    for line in text.splitlines():
        match = re.match(
            r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<parts>[^#]+)", line
        )
        if match is None:
            continue
        options = dict(option.split("=", 1) for option in (match["options"] or "").split() if "=" in option)
        stanza = {"types": "deb", "uris": match["uri"], "suites": match["suite"], "components": match["parts"].strip()}
        names = {"arch": "architectures", "signed-by": "signed-by", "trusted": "trusted"}
        stanza.update({names[key]: value for key, value in options.items() if key in names})
        stanzas.append(stanza)
    return stanzas


def read_sources(suite: str, root: Path = Path("/")) -> list[Stanza]:
    """This machine's Debian sources for `suite`; empty where it has none (another release, another system)."""
    apt = root / "etc/apt"
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    files += sorted((apt / "sources.list.d").glob("*.sources"))
    return debian_sources([file.read_text(errors="replace") for file in files if file.is_file()], suite)


def apt_options(apt_config_dump: str) -> list[str]:
    """Of `apt-config dump`, what decides how packages are fetched: proxies, certificates, validity."""
    return [line for line in apt_config_dump.splitlines() if _APT_OPTION.match(line) and not line.endswith('"";')]


def ca_bundle(environ: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """The certificates this machine trusts, as one file."""
    for candidate in (environ.get("SSL_CERT_FILE", ""), str(root / "etc/ssl/certs/ca-certificates.crt")):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def pip_settings(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """pip's settings on where to get packages, from its files and its environment, by option name."""
    home = Path(environ.get("HOME", "/root"))
    chosen = environ.get("PIP_CONFIG_FILE")
    files = [root / "etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    settings: dict[str, str] = {}
    for file in [*files, *([Path(chosen)] if chosen else [])]:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update({key: " ".join(value.split()) for key, value in parser.items(section)})
    for key in _PIP_KEYS:
        value = environ.get(f"PIP_{key.upper().replace('-', '_')}")
        if value:
            settings[key] = value
    return {key: value for key, value in settings.items() if key in _PIP_KEYS}


def npm_settings(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """npm's settings less the ones that name this machine's own paths, as an npmrc."""
    home = Path(environ.get("HOME", "/root"))
    files = [root / "etc/npmrc", root / "usr/etc/npmrc", root / "usr/local/etc/npmrc", home / ".npmrc"]
    kept: list[str] = []
    for file in files:
        if file.is_file():
            lines = file.read_text(errors="replace").splitlines()
            kept += [line for line in lines if line.partition("=")[0].strip().partition("[")[0] not in _NPM_DROPPED]
    return "\n".join([*kept, ""])


def local_directories(settings: Mapping[str, str]) -> list[Path]:
    """The directories of this machine that pip's settings name. Of a local index, the one above `simple`, because
    its pages link to their files by relative paths."""
    found: list[Path] = []
    for token in " ".join(settings.get(key, "") for key in ("index-url", "extra-index-url", "find-links")).split():
        if token.startswith("file:"):
            path = Path(unquote(urlsplit(token).path))
        elif token.startswith("/"):
            path = Path(token)
        else:
            continue
        path = path.parent if path.name == "simple" else path
        if path.is_dir() and path not in found and len(path.parts) > 1:
            found.append(path)
    return found


def gather(
    directory: Path, *, environ: Mapping[str, str], suite: str | None, apt_config_dump: str, root: Path = Path("/")
) -> HostConfig:
    """Write what a build needs into `directory` and say how to hand it over.

    `suite` is the Debian release of the image; None for one that is not ours, whose own package sources are used.
    """
    shared = directory / "config"
    cache = directory / "cache"
    scratch = directory / "tmp"
    for path in (shared, cache, scratch):
        path.mkdir()
    directory.chmod(0o755)
    scratch.chmod(0o1777)
    env = {"DEBIAN_FRONTEND": "noninteractive", "HOME": "/root", "PIP_CACHE_DIR": f"{CACHE}/pip"}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    env |= {"APT_CONFIG": f"{MOUNT}/apt.conf", "LC_ALL": "C.UTF-8"}
    env |= {key: value for key, value in environ.items() if key.lower() in _PROXY}

    has_ca = (bundle := ca_bundle(environ, root)) is not None
    if bundle is not None:
        shutil.copyfile(bundle, shared / "ca.crt")
        names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
        env |= dict.fromkeys((*names, "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE"), f"{MOUNT}/ca.crt")
    _write_apt(shared, suite=suite, options=apt_options(apt_config_dump), has_ca=has_ca, root=root)

    settings = pip_settings(environ, root)
    env |= {f"PIP_{key.upper().replace('-', '_')}": value for key, value in settings.items()}
    locals_ = {path: f"{_LOCAL}/{n}" for n, path in enumerate(local_directories(settings))}

    (shared / "npmrc").write_text(npm_settings(environ, root))
    env |= {"NPM_CONFIG_USERCONFIG": f"{MOUNT}/npmrc", "NPM_CONFIG_CACHE": f"{CACHE}/npm", "NPM_CONFIG_LOGS_MAX": "0"}
    # npm would otherwise write the registry's address into the tree that it installs.
    env |= {"NPM_CONFIG_OMIT_LOCKFILE_REGISTRY_RESOLVED": "true", "NPM_CONFIG_UPDATE_NOTIFIER": "false"}
    return HostConfig(
        directory=shared,
        env=env,
        binds=(
            Bind(source=shared, target=MOUNT),
            Bind(source=cache, target=CACHE, read_only=False),
            Bind(source=scratch, target="/tmp", read_only=False),
            *(Bind(source=path, target=target) for path, target in locals_.items()),
        ),
        links={str(path): target for path, target in locals_.items()},
    )


def _write_apt(shared: Path, *, suite: str | None, options: list[str], has_ca: bool, root: Path) -> None:
    lines = [line for line in options if "::CAInfo" not in line]
    if has_ca:
        lines.append(f'Acquire::https::CAInfo "{MOUNT}/ca.crt";')
    # Lists and archives stay out of the image; apt's own download user cannot write where they go.
    lines += [f'Dir::State::Lists "{CACHE}/lists";', f'Dir::Cache "{CACHE}/apt";', 'APT::Sandbox::User "root";']
    lines += ['Dir::Log::Terminal "";', 'Dir::Log::History "";', 'Dpkg::Use-Pty "0";', 'APT::Color "0";']
    if suite is not None:
        keys = shared / "keys"
        keys.mkdir()
        stanzas = [_with_copied_key(stanza, keys, n, root) for n, stanza in enumerate(read_sources(suite, root))]
        (shared / "apt").mkdir()
        (shared / "apt/host.sources").write_text(render_sources(stanzas))
        for name in ("auth.conf", "auth.conf.d"):
            source = root / "etc/apt" / name
            if source.is_dir():
                shutil.copytree(source, shared / "apt" / name)
            elif source.is_file():
                shutil.copyfile(source, shared / "apt" / name)
        lines += ['Dir::Etc::SourceList "/dev/null";', f'Dir::Etc::SourceParts "{MOUNT}/apt";']
        lines += [f'Dir::Etc::netrc "{MOUNT}/apt/auth.conf";', f'Dir::Etc::netrcparts "{MOUNT}/apt/auth.conf.d";']
    (shared / "apt.conf").write_text("\n".join([*lines, ""]))


def _with_copied_key(stanza: Stanza, keys: Path, n: int, root: Path) -> Stanza:
    """The entry with its key file copied to where the build container sees it; a key given inline stays."""
    signed_by = stanza.get("signed-by", "")
    if not signed_by.startswith("/"):
        return stanza
    copied: list[str] = []
    for m, name in enumerate(re.split(r"[,\s]+", signed_by)):
        source = root / name.lstrip("/")
        if source.is_file():
            target = f"{n}-{m}{source.suffix}"
            shutil.copyfile(source, keys / target)
            copied.append(f"{MOUNT}/keys/{target}")
    return {**stanza, "signed-by": ", ".join(copied)} if copied else stanza
