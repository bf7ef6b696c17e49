"""The values and writes that LangGraph's delta channels are rebuilt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langgraph.checkpoint.base import DeltaChannelHistory

from locus_store.adapters.langgraph.listing import iterate_ancestors
from locus_store.adapters.langgraph.values import ChannelValues
from locus_store.backend import FullBackend
from locus_store.saver import make_line_name
from locus_store.types import PendingWrite
from locus_store.versions import CHANNELS, REBUILT, expand_write, select_current

Path: TypeAlias = "list[str]"


@dataclass(frozen=True, slots=True)
class DeltaHistories:
    """Reads what delta channels are rebuilt from: an ancestor's value, and the later writes."""

    backend: FullBackend
    values: ChannelValues
    write_of: Callable[[PendingWrite, Mapping[str, Any]], tuple[str, str, Any]]
    """Returns task, channel and value of a pending write."""

    async def read(
        self, place: tuple[str, str, str | None], channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return the history of each channel at a checkpoint (thread, namespace, id)."""
        thread_id, checkpoint_ns, checkpoint_id = place
        backend, namespace = self.backend, make_line_name(checkpoint_ns)
        target = await backend.version(thread_id, checkpoint_id, namespace=namespace)
        seeds: dict[str, Any] = {}
        path: Path = []
        ends: dict[str, int] = {}
        async for version in iterate_ancestors(backend, target):
            missing = [it for it in channels if it not in seeds]
            if not missing:
                break
            path.append(version.checkpoint_id)
            if any(it not in version.labels.get(REBUILT, ()) for it in missing):
                found = await backend.read_kept(
                    thread_id, version.checkpoint_id, namespace=namespace
                )
                state: Mapping[str, Any] = found.snapshot.to_state() if found else {}
                values = state.get(CHANNELS, {})
                seeds |= {it: self.values.read(values[it]) for it in missing if it in values}
            ends |= dict.fromkeys(missing, len(path))
        on_path = {it: path[: ends.get(it, 0)][::-1] for it in channels}
        return await self._read_histories(thread_id, namespace, on_path, seeds)

    async def _read_histories(
        self, thread_id: str, namespace: str, path: Mapping[str, Path], seeds: Mapping[str, Any]
    ) -> dict[str, DeltaChannelHistory]:
        ids: Path = max(path.values(), key=len, default=[])
        writes = await self.backend.writes_of(thread_id, ids, namespace=namespace)
        histories: dict[str, DeltaChannelHistory] = {}
        for name, on_path in path.items():
            found = [
                self.write_of(whole, {})
                for of in on_path
                for write in writes.get(of, [])
                if write.channel == name
                and (whole := await self._expand(thread_id, namespace, of, write)) is not None
            ]
            histories[name] = {"writes": found}
            if name in seeds:
                histories[name]["seed"] = seeds[name]
        return histories

    async def _expand(
        self, thread_id: str, namespace: str, checkpoint_id: str, write: PendingWrite
    ) -> PendingWrite | None:
        """Return the write without frames; ``None`` for a write left behind by another version."""
        if write.basis is None:
            return write
        found = await self.backend.read_kept(thread_id, checkpoint_id, namespace=namespace)
        if found is None or not select_current([write], found.version.mark.sequence):
            return None
        return expand_write(write, found.snapshot.to_state(), self.backend.max_state_bytes)
