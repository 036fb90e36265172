"""Where a set of shards lies: a directory, or a prefix of an object store.

In a directory every file is written under another name (``.part.tmp``), and all are renamed by whoever commits, just before the manifest:
a reader that globs sees none of a set that was not finished. An object store has no such rename: whole objects are put under their last
names, and only the manifest, put last, makes them count.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa
import pyarrow.fs as pafs

from rayeval.exceptions import InputError, RefusedError, StoreWriteError
from rayeval.store._files import fsync_directory, replace_file, write_all, write_error

MANIFEST_NAME = "_manifest.json"
TEMPORARY = ".part.tmp"
_LOCK = ".shards.lock"
_OURS = re.compile(rf"traces-\d{{5,}}\.parquet(\.\w+{re.escape(TEMPORARY)})?")


class ShardPlace:
    """One directory or prefix. ``address`` makes the same place in another process."""

    def __init__(self, address: str, filesystem: pafs.FileSystem, root: str, *, local: bool) -> None:
        self.address, self._filesystem, self._root, self.local = address, filesystem, root.rstrip("/") or "/", local

    @property
    def words(self) -> str:
        """The address without a user and a password."""
        return self._root if self.local else _without_user(self.address)

    def full_name(self, name: str) -> str:
        """A path, or a URI with all that was given."""
        if self.local:
            return self._path(name)
        head, mark, query = self.address.partition("?")
        return f"{head.rstrip('/')}/{name}{mark}{query}"

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes | None:
        """-> the whole file; None when there is none. Raises InputError."""
        try:
            with self._filesystem.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, pa.ArrowException) as cause:
            raise InputError("shards", self.words, f"{name} cannot be read ({_said(cause)})") from None

    def size(self, name: str) -> int | None:
        """-> bytes of a file; None when there is none. Raises InputError."""
        try:
            info = self._filesystem.get_file_info(self._path(name))
        except (OSError, pa.ArrowException) as cause:
            raise InputError("shards", self.words, f"{name} cannot be looked at ({_said(cause)})") from None
        return int(info.size) if info.type is pafs.FileType.File else None

    def names(self) -> list[str]:
        """Names in the place, sorted. Raises InputError."""
        try:
            found = self._filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        except (OSError, pa.ArrowException) as cause:
            raise InputError("shards", self.words, f"cannot be listed ({_said(cause)})") from None
        return sorted(info.base_name for info in found)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the place; for a directory, be its only writer. Raises RefusedError, InputError, StoreWriteError."""
        if not self.local:
            with contextlib.suppress(OSError, pa.ArrowException):  # a bucket needs none, and writing tells what is wrong
                self._filesystem.create_dir(self._root, recursive=True)
            yield
            return
        path = Path(self._root)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InputError("shards", self._root, "is or lies below a file; give a directory") from None
        except OSError as cause:
            raise write_error(path, "making the directory", cause) from cause
        lock = filelock.FileLock(str(path / _LOCK), timeout=0, thread_local=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise RefusedError(f"{self._root}: another process is writing shards there; wait for it") from None
        except OSError as cause:
            raise write_error(path / _LOCK, "locking", cause) from cause
        try:
            yield
        finally:
            lock.release()

    def clear(self) -> None:
        """Remove a set, finished or not: the manifest first. Raises InputError when there are files that are not ours, StoreWriteError."""
        names = self.names()
        others = [n for n in names if n != MANIFEST_NAME and not n.startswith(".") and not _OURS.fullmatch(n)]
        if others:
            raise InputError("--output", self.words, f"holds other files ({', '.join(others[:3])}); give a directory of its own")
        if MANIFEST_NAME in names:
            self._remove(MANIFEST_NAME)
            if self.local:
                fsync_directory(Path(self._root))
        for name in names:
            if _OURS.fullmatch(name):
                self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self._filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            pass
        except (OSError, pa.ArrowException) as cause:
            raise self._failed(name, "removing", cause) from cause

    def put(self, name: str, data: Any, *, unfinished: bool = False) -> str:
        """Write a whole file, durably. -> the name it has. ``unfinished``: in a directory it has another one until ``finish``.

        Raises StoreWriteError.
        """
        if not self.local:
            try:
                with self._filesystem.open_output_stream(self._path(name)) as stream:
                    stream.write(data)
            except (OSError, pa.ArrowException) as cause:
                raise self._failed(name, "writing", cause) from cause
            return name
        if not unfinished:
            replace_file(Path(self._path(name)), bytes(data), durable=True)
            return name
        # the pid keeps a second try of a task away from the first one's file
        name = f"{name}.{os.getpid()}{TEMPORARY}"
        path = Path(self._path(name))
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as cause:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise write_error(path, "writing", cause) from cause
        return name

    def finish(self, name: str, last: str) -> None:
        """Give an unfinished file its last name. Raises StoreWriteError."""
        if name == last:
            return
        path = Path(self._path(last))
        try:
            os.replace(self._path(name), path)
        except OSError as cause:
            raise write_error(path, "renaming", cause) from cause

    def _failed(self, name: str, doing: str, cause: BaseException) -> StoreWriteError:
        if self.local and isinstance(cause, OSError):
            return write_error(Path(self._path(name)), doing, cause)
        return StoreWriteError(
            f"{self.words}: {doing} {name} failed ({_said(cause)}): check the store and its credentials, then run it again"
        )


def open_place(output: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None) -> ShardPlace:
    """A path, ``file://``, a URI that pyarrow knows (``s3://``, ``gs://``, ``hdfs://`` ...) or one of fsspec. Touches nothing.

    ``filesystem``: for ``output`` as a path in it, taken for an object store. Raises InputError.
    """
    text = os.fspath(output)
    if filesystem is not None:
        return ShardPlace(text, filesystem, text, local=False)
    if not text:
        raise InputError("--output", text, "give a directory or a URI")
    if "://" not in text or text.startswith("file://"):
        path = text.removeprefix("file://")
        if not path:
            raise InputError("--output", text, "give a directory or a URI")
        return ShardPlace(os.path.abspath(path), pafs.LocalFileSystem(), os.path.abspath(path), local=True)
    shown = _without_user(text)
    try:
        found, root = pafs.FileSystem.from_uri(text)
        return ShardPlace(text, found, root, local=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, NotImplementedError, OSError):
        pass  # not one of pyarrow's
    import fsspec

    try:
        other, root = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError, OSError) as cause:
        raise InputError("--output", shown, f"cannot be opened ({_said(cause)}); give a path, or a URI of pyarrow or fsspec") from None
    return ShardPlace(text, pafs.PyFileSystem(pafs.FSSpecHandler(other)), root, local=False)


def _without_user(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    return scheme + mark + rest.partition("?")[0].rpartition("@")[2]  # a key may hold a slash, so the host is no bound


def _said(cause: BaseException) -> str:
    return (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).splitlines()[0]


def digest(data: Any) -> str:
    """Hex SHA-256 of bytes or a buffer."""
    return hashlib.sha256(data).hexdigest()
