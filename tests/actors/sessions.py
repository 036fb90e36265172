"""One Ray for a whole test session."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import ray

from actors.cluster import prepare_environment

CPUS = 12
"""Logical: more than any test has actors, on a machine of two cores."""


@contextlib.contextmanager
def shared_ray() -> Iterator[None]:
    """A local Ray that the engine finds and leaves alone; ends with the block that started it."""
    if ray.is_initialized():
        yield
        return
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as place:  # short: a socket path ends at 107 bytes
        ray.init(
            address="local",
            num_cpus=CPUS,
            include_dashboard=False,
            object_store_memory=128 << 20,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _temp_dir=place,
        )
        try:
            yield
        finally:
            ray.shutdown()
