"""An image file: what an image is made of, as TOML, and where the ones that ship are. Knows no engine."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sandbox.errors import ImageNotFound, InvalidArgument

# Raise it when the builder makes something else of the same file: it is part of every image's hash.
BUILDER_VERSION = 1
DEBIAN = "debian:bookworm"

# None of these can be taken for an option of apt-get, pip or npm.
AptPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.:-]+(=[A-Za-z0-9.+~:-]+)?$")]
PipRequirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][^\s\x00]*( ?[^\s\x00-][^\s\x00]*)*$")]
NpmPackage = Annotated[str, StringConstraints(pattern=r"^[@a-z0-9][^\s\x00]*$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]


class ImageFile(BaseModel):
    """The content of an image file.

    `base` is `debian:bookworm`, the name or the relative path of another image file, or any image the engine has.
    The steps run in the order apt, pip, npm, script, as root. `user` and `workdir` are the base's where not given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=64)]
    base: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\s\x00-]\S*$")]
    apt: list[AptPackage] = Field(default_factory=list)
    pip: list[PipRequirement] = Field(default_factory=list)
    npm: list[NpmPackage] = Field(default_factory=list)
    script: str = ""
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    user: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_:-]*$")] | None = None
    workdir: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")] | None = None


def parse(text: str, source: str) -> ImageFile:
    """Read an image file's content; `source` names it in errors.

    Raises: InvalidArgument that names the file and each wrong key.
    """
    try:
        return ImageFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{source} is not TOML: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{_key(problem['loc'])}: {problem['msg']}" for problem in error.errors())
        raise InvalidArgument(f"{source} is not an image file: {wrong}") from None


def _key(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def load(path: Path) -> ImageFile:
    """Read an image file.

    Raises: ImageNotFound if it cannot be read; InvalidArgument as `parse`.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ImageNotFound(f"the image file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not TOML: it is not UTF-8") from error
    return parse(text, str(path))


def shipped_dir() -> Path:
    """Where the image files that come with Boatyard are: `images/` of a clone, or a copy of it in the package."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "image_files"
    return installed if installed.is_dir() else package.parent / "images"


def find(reference: str, *, beside: Path | None = None, shipped: Path | None = None) -> Path | None:
    """The image file that `reference` names: a path that ends in .toml, or the name of a shipped one.

    `beside` is the file whose `base` it is: relative paths start there. None if it names no image file.
    """
    if reference.endswith(".toml"):
        return (beside.parent / reference) if beside is not None else Path(reference)
    directory = shipped_dir() if shipped is None else shipped
    candidate = directory / f"{reference}.toml"
    return candidate if "/" not in reference and candidate.is_file() else None


def digest(content: Mapping[str, object]) -> str:
    """The hash of what an image is made of, the same for the same content in any order of keys."""
    canonical = json.dumps({"builder": BUILDER_VERSION, **content}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def recipe(file: ImageFile) -> dict[str, object]:
    """What of the file goes into the hash: all but `base`, whose own hash does."""
    return file.model_dump(mode="json", exclude={"base"})
