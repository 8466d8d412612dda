"""Tars made by hand, the bad ones too."""

import tarfile

END = bytes(1024)


def tar_entry(name: str, data: bytes = b"", *, mode: int = 0o644) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), mode, 1_600_000_000
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def link_entry(name: str, target: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info.tobuf(tarfile.GNU_FORMAT)
