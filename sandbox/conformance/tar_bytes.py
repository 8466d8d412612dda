"""Tars made by hand, the bad ones too."""

import tarfile

END = bytes(2 * tarfile.BLOCKSIZE)


def tar_file(name: str, data: bytes = b"", *, mode: int = 0o644) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), mode, 1_600_000_000
    return _block(info) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def tar_link(name: str, target: str, *, hard: bool = False) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = (tarfile.LNKTYPE if hard else tarfile.SYMTYPE), target
    return _block(info)


def tar_device(name: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return _block(info)


def _block(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
