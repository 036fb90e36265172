"""Shards written in this process, as the Ray job writes them."""

from collections.abc import Sequence

from rayeval.schemas import JsonObject
from rayeval.shard_places import MANIFEST_NAME, ShardPlace, digest
from rayeval.shard_rows import encode_part
from rayeval.shards import ShardFile, manifest_bytes, plan_shards, shards_manifest
from rayeval.store import RunDirectory


def write_here(runs: Sequence[RunDirectory], place: ShardPlace, **sizes: int) -> JsonObject:
    """-> the manifest. ``sizes``: of ``plan_shards``."""
    with place.lock():
        plan = plan_shards(runs, **sizes)
        place.clear()
        files = []
        for part in plan.parts:
            encoded = encode_part(part, plan.components)
            temporary = place.put(part.name, encoded.data, unfinished=True)
            files.append((temporary, ShardFile(part.name, encoded.rows, encoded.data.size, digest(encoded.data))))
        for temporary, file in files:
            place.finish(temporary, file.name)
        manifest = shards_manifest(plan, plan.components, [file for _, file in files])
        place.put(MANIFEST_NAME, manifest_bytes(manifest))
    return manifest
