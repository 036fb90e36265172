"""Writing files so that they survive, and saying in one line why a write failed."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from rayeval.exceptions import StoreWriteError

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def write_error(path: Path, doing: str, cause: OSError) -> StoreWriteError:
    """One line: the path, what was being done, the system's words, what to do."""
    if cause.errno in _OUT_OF_SPACE:
        advice = "free space and run the same command again"
    elif cause.errno in _NOT_ALLOWED:
        advice = "make it writable and run the same command again"
    else:
        advice = "check the disk and run the same command again"
    return StoreWriteError(f"{path}: {doing} failed ({cause.strerror or cause}): {advice}")


def fsync_directory(path: Path) -> None:
    """Make a directory's entries durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """``os.write`` until every byte is taken. Raises OSError; part of the data may then be in the file."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: Path, data: bytes, *, durable: bool, mode: int = 0o644) -> None:
    """Put ``data`` at ``path`` so that a reader sees the old content or the new, never a part.

    ``durable``: fsync the file before the rename and the directory after it. Raises StoreWriteError; the old content
    then stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        if durable:
            fsync_directory(path.parent)
    except OSError as cause:
        with suppress(OSError):  # the first failure is the one to tell
            temporary.unlink(missing_ok=True)
        raise write_error(path, "writing", cause) from cause
