"""The Datasink of ``actors.shards``. A module of its own: importing it imports Ray Data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from actors.shards import write_part
from rayeval.schemas import JsonObject
from rayeval.shard_rows import Part


class ShardSink(Datasink[list[JsonObject]]):
    """Rows say which bytes make a file; a write task makes the files of its rows."""

    def __init__(self, address: str, components: frozenset[str]) -> None:
        self._address, self._components = address, components
        self.outcomes: list[JsonObject] = []

    def write(self, blocks: Iterable[Any], ctx: Any) -> list[JsonObject]:
        outcomes = []
        for block in blocks:
            rows: Iterable[Any] = BlockAccessor.for_block(block).iter_rows(public_row_format=True)
            outcomes += [write_part(Part.from_bytes(row["part"]), self._address, self._components) for row in rows]
        return outcomes

    def on_write_complete(self, write_result: Any) -> None:
        self.outcomes = [outcome for outcomes in write_result.write_returns for outcome in outcomes]

    def get_name(self) -> str:
        return "traces to shards"
