"""Promises of a message log, each with a double that breaks it and is caught by it."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import InMemoryMessageLog, LocusStoreError
from locus_store.testing import MessageLogContract
from locus_store.types.messages import LogChange, LogRead, LogWanted

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("own_heartbeats")

DOUBLES: dict[type[InMemoryMessageLog], str] = {}


def caught_by(test: str) -> Callable[[type[InMemoryMessageLog]], type[InMemoryMessageLog]]:
    def noted(double: type[InMemoryMessageLog]) -> type[InMemoryMessageLog]:
        DOUBLES[double] = test
        return double

    return noted


@caught_by("test_a_known_id_replaces_the_message_in_its_place")
class MovesWhatIsPutAgain(InMemoryMessageLog):
    async def change(self, change):
        if change.puts and change.cut is None:
            await self.remove(
                change.thread_id,
                [it.message_id for it in change.puts],
                namespace=change.namespace,
            )
        return await super().change(change)


@caught_by("test_an_absent_log_is_not_an_empty_one")
class TakesEmptyForAbsent(InMemoryMessageLog):
    async def look(self, wanted):
        found = await super().look(wanted)
        return found if found and found.messages else None


@caught_by("test_a_cleared_log_exists_and_is_empty")
class DeletesWhatIsCleared(InMemoryMessageLog):
    async def change(self, change):
        changed = await super().change(change)
        if change.cut is not None and change.cut.kind == "all":
            await self.drop(change.thread_id, change.namespace, None)
        return changed


@caught_by("test_a_change_that_expects_another_revision_is_a_conflict")
class TrustsEveryone(InMemoryMessageLog):
    async def change(self, change):
        return await super().change(replace(change, expected_revision=None))


@caught_by("test_a_log_that_is_created_again_has_new_revisions")
class CountsFromOne(InMemoryMessageLog):
    async def change(self, change):
        return await super().change(replace(change, first_revision=1))


@caught_by("test_a_restored_log_has_no_revision_twice")
class CountsChanges(InMemoryMessageLog):
    async def change(self, change):
        found = await self.info(change.thread_id, namespace=change.namespace)
        first = found.revision + 1 if found else change.first_revision
        return await super().change(replace(change, first_revision=first))


@caught_by("test_the_newest_come_oldest_first")
class GivesTheNewestFirst(InMemoryMessageLog):
    async def look(self, wanted):
        found = await super().look(wanted)
        if found is None or not wanted.newest:
            return found
        return LogRead(found.info, found.messages[::-1])


@caught_by("test_contents_are_those_of_a_load")
class GivesContentsOfTheOldest(InMemoryMessageLog):
    async def look_at_contents(self, request):
        return await super().look_at_contents(replace(request, newest=False))


@caught_by("test_delete_of_a_namespace_removes_its_log_only")
class DeletesEveryNamespace(InMemoryMessageLog):
    async def drop(self, thread_id, namespace, expected_revision):
        return await super().drop(thread_id, None, expected_revision)


@caught_by("test_pages_by_cursor_give_each_message_once_during_appends")
class SkipsOneBehindTheCursor(InMemoryMessageLog):
    async def look(self, wanted):
        at = None
        if wanted.after is not None:
            found = await super().look(replace(wanted, after=None, limit=None))
            ids = [it.message_id for it in found.messages]
            at = ids.index(wanted.after) + 2
        return await super().look(replace(wanted, after=None, offset=at or wanted.offset))


@caught_by("test_a_search_finds_any_case_accents_quotes_and_newlines")
class SearchesExactly(InMemoryMessageLog):
    async def look(self, wanted):
        found = await super().look(replace(wanted, needle=None))
        if wanted.needle is None or found is None:
            return found
        some = [it for it in found.messages if wanted.needle.encode() in (it.payload or b"")]
        return LogRead(found.info, some)


@caught_by("test_pages_are_filtered_by_role_metadata_and_time")
class FiltersEachPageByItself(InMemoryMessageLog):
    async def look(self, wanted):
        names = ("role", "since", "until", "metadata_filter", "needle")
        found = await super().look(replace(wanted, **dict.fromkeys(names)))
        if found is None:
            return None
        return LogRead(found.info, [it for it in found.messages if wanted.takes(it, 10**6)])


@caught_by("test_pages_of_the_newest_first_are_those_from_the_end")
class GivesTheLastPageEachTime(InMemoryMessageLog):
    async def look(self, wanted):
        return await super().look(replace(wanted, offset=0) if wanted.newest else wanted)


@caught_by("test_an_append_to_several_logs_is_one_change")
class ChangesOneLogAfterTheOther(InMemoryMessageLog):
    async def change(self, change):
        for it in change.also:
            other = {name: getattr(it, name) for name in ("thread_id", "namespace", "puts")}
            await super().change(LogChange(**other, expected_revision=None))
        return await super().change(replace(change, also=[]))


@caught_by("test_heads_give_the_newest_message_of_each_log")
class GivesTheOldestAsHead(InMemoryMessageLog):
    async def find_heads(self, wanted):
        found = await self.find_logs(wanted)
        names = [LogWanted(thread_id=it.thread_id, namespace=it.namespace) for it in found]
        return [await self.look(replace(it, limit=1)) for it in names]


@caught_by("test_a_change_of_a_log_is_activity")
class LeavesTheActivity(InMemoryMessageLog):
    async def change(self, change):
        edits = self.backend._threads
        before = edits.read(change.thread_id)
        changed = await super().change(change)
        if before is not None:
            edits.read(change.thread_id).active_at = before.active_at
        return changed


@caught_by("test_results_are_the_callers_own")
class SharesMetadata(InMemoryMessageLog):
    kept: dict[str, Any]

    async def look(self, wanted):
        found = await super().look(wanted)
        self.__dict__.setdefault("kept", {it.message_id: it for it in found.messages})
        return LogRead(found.info, [*self.kept.values()])


@caught_by("test_logs_are_listed_by_prefix_thread_and_namespace_in_pages")
class TakesAPrefixForAPattern(InMemoryMessageLog):
    async def find_logs(self, wanted):
        return await super().find_logs(replace(wanted, prefix=wanted.prefix.rstrip("%_/")))


@caught_by("test_only_the_holder_changes_the_logs")
class ForgetsTheTurn(InMemoryMessageLog):
    async def change(self, change):
        held = await self.busy(change.thread_id)
        return await super().change(replace(change, turn=held.number if held else None))


@pytest.mark.parametrize("double", DOUBLES, ids=lambda it: it.__name__)
def test_a_broken_log_is_caught(double: type[InMemoryMessageLog]) -> None:
    with pytest.raises((AssertionError, LocusStoreError, pytest.fail.Exception, ValueError)):
        asyncio.run(run(double, DOUBLES[double]))


@pytest.mark.parametrize("promise", sorted(set(DOUBLES.values())))
def test_a_whole_log_passes(promise: str) -> None:
    asyncio.run(run(InMemoryMessageLog, promise))


async def run(kind: type[InMemoryMessageLog], promise: str) -> None:
    log = kind()
    test = getattr(MessageLogContract(), promise)
    given = {"log": log, "backend": log.backend, "several": [log] * 20, "reopen": kind}
    names = inspect.signature(test).parameters
    await test(**{name: given[name] for name in names})
