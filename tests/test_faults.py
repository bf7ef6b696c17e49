"""Each promise of the contract is worth what it catches: deliberate faults, each caught by name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from storages.memory import MemoryProbe
from storages.sqlite import FileProbe

from locus_store import (
    MemoryBackend,
    StorageBackendAdapter,
    backend,
    checkpointer,
    effects,
    sqlite_checkpointer,
    versions,
)
from locus_store.backends.documents import backend as documents
from locus_store.backends.sqlite.dialect import SQLiteRepository
from locus_store.errors import IntegrityError, LocusStoreError
from locus_store.sql import quotas as sql_quotas
from locus_store.sql.backend import SqlBackend
from locus_store.testing import CheckpointerContract
from locus_store.types import CheckpointerCapabilities
from locus_store.values import frames, text
from locus_store.values.encoding import unpack_frames
from locus_store.versions import lines as lines_, quotas, reading, removing, saving, sizes, turns
from locus_store.versions.erasing import Swept
from locus_store.versions.saving import Placement
from locus_store.versions.threads import Thread, ThreadTransaction

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_heartbeats")]

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]
FAULTS: dict[str, tuple[Fault, str]] = {}


def caught_by(test: str) -> Callable[[Fault], Fault]:
    def noted(fault: Fault) -> Fault:
        FAULTS[fault.__name__] = fault, test
        return fault

    return noted


def patched(patch: Patch, name: str, value: Any) -> None:
    """A rule of ``versions``, wherever it is known by this name."""
    known = [it for it in (versions, lines_, reading, removing, saving) if hasattr(it, name)]
    assert known, f"there is no rule {name}"
    for module in known:
        patch.setattr(module, name, value)


def read_every_time(patch: Patch) -> None:
    """Fetch the payloads of a head that the caller knows."""
    patch.setattr(MemoryBackend, "fetch_head", backend.StorageBackend.fetch_head)


# --- versions and conflicts


@caught_by("test_a_second_writer_is_told")
def no_conflict_check(patch: Patch) -> None:
    def won(lines, line, request, parent, **_):
        return Placement(line.head if line else None, moves_head=True)

    patched(patch, "_resolve_conflict", won)


@caught_by("test_versions_are_listed_newest_first")
def order_by_id(patch: Patch) -> None:
    async def by_id(self, *args, **kwargs):
        found = await listed(self, *args, **kwargs)
        return sorted(found, key=lambda it: it.checkpoint_id, reverse=True)

    listed = MemoryBackend.history
    patch.setattr(MemoryBackend, "history", by_id)


@caught_by("test_every_version_is_kept_below_the_newest_one")
def head_by_a_clock_that_runs_backwards(patch: Patch) -> None:
    def target(records, line, checkpoint_id):
        oldest = versions.Line(line=line.line, head=min(records.rows), floor=line.floor)
        return found(records, oldest if checkpoint_id is None else line, checkpoint_id)

    found = versions.target
    patched(patch, "target", target)


@caught_by("test_a_save_made_from_a_version_that_is_gone_is_a_conflict")
def a_mark_is_a_sequence_only(patch: Patch) -> None:
    def exists(lines, line, mark):
        return mark is None or (line is not None and lines.record(line, 1) is not None)

    def holds(lines, line, mark):
        return mark is not None and line is not None and line.head == mark.sequence

    patched(patch, "_exists", exists)
    patched(patch, "_is_head", holds)


@caught_by("test_a_replaced_version_leaves_the_others_exact")
def a_repeat_by_id_alone(patch: Patch) -> None:
    patched(patch, "_is_repeat", lambda *_: True)


@caught_by("test_a_save_that_was_hidden_before_its_repeat_is_known")
def a_hidden_repeat_is_not_known(patch: Patch) -> None:
    def is_repeat(lines, line, same, request):
        return versions.is_visible(line, same.sequence) and known(lines, line, same, request)

    known = saving._is_repeat
    patched(patch, "_is_repeat", is_repeat)


@caught_by("test_one_load_may_be_saved_repeatedly")
def own_work_is_not_known(patch: Patch) -> None:
    patched(patch, "is_own", lambda *_: False)


@caught_by("test_a_poller_moves_no_callers_mark")
def the_last_load_wins(patch: Patch) -> None:
    def last(self, thread_id, carried, run):
        loads = self._loads.get(thread_id)
        return loads[-1].origin if loads else None

    patch.setattr(StorageBackendAdapter, "_find_origin", last)


@caught_by("test_a_named_parent_makes_a_fork_the_head")
def a_named_parent_is_forgotten(patch: Patch) -> None:
    def forgetful(lines, line, request):
        return place(lines, line, replace(request, parent_id=None))

    place = saving._choose_placement
    patched(patch, "_choose_placement", forgetful)


@caught_by("test_a_losing_save_is_kept_beside_the_head_and_replaces_nothing")
def a_losing_save_replaces(patch: Patch) -> None:
    patched(patch, "generate_checkpoint_id", lambda: "the head's")

    async def commit(self, save):
        written = await committed(self, save)
        if written.outcome == "side":
            await self.remove(save.thread_id, [save.checkpoint_id])
        return written

    committed = MemoryBackend.commit
    patch.setattr(MemoryBackend, "commit", commit)


# --- deleting and keeping


@caught_by("test_whatever_is_deleted_the_others_stay_exact")
def deleted_without_rewriting(patch: Patch) -> None:
    patched(patch, "_make_payloads", lambda *_: [])


@caught_by("test_no_byte_of_a_deletion_remains")
def deleted_by_joining_bytes(patch: Patch) -> None:
    def joined(rows, gone, max_bytes):
        held = b""
        for sequence, payload in rows:
            if sequence in gone:
                held += payload
            elif held:
                yield sequence, held + payload
                held = b""

    patched(patch, "compute_payloads_of_chain", joined)


@caught_by("test_deleting_the_head_shows_its_parent")
def a_deleted_head_is_still_loaded(patch: Patch) -> None:
    def forgotten(lines, line, sequences, **_):
        lines.remove(line, [it for it in sequences if it != line.head])

    patched(patch, "forget", forgotten)


@caught_by("test_a_head_falls_back_to_an_ancestor")
def the_newest_becomes_the_head(patch: Patch) -> None:
    def newest(lines, line, gone):
        return lines.newest(line)

    patched(patch, "_find_new_head", newest)


@caught_by("test_deleting_a_thread_touches_no_other")
def a_thread_is_deleted_by_prefix(patch: Patch) -> None:
    async def remove_thread(self, thread_id):
        for name in [it for it in self._documents.keys(after="") if it.startswith(thread_id + "/")]:
            await removed(self, name)
        return await removed(self, thread_id)

    removed = MemoryBackend.remove_thread
    patch.setattr(MemoryBackend, "remove_thread", remove_thread)


@caught_by("test_keep_last_keeps_the_newest_versions_and_bounds_what_is_stored")
def the_floor_is_ignored(patch: Patch) -> None:
    patched(patch, "is_visible", lambda *_: True)


@caught_by("test_keep_last_never_hides_the_head")
def keep_last_hides_the_head(patch: Patch) -> None:
    patched(patch, "is_visible", lambda line, sequence: sequence >= line.floor)


@caught_by("test_vacuum_keeps_an_old_head_under_a_young_side_branch")
def vacuum_takes_an_old_head(patch: Patch) -> None:
    def vacuumed(edit, limit, sweep):
        line, rows = edit.find(edit.thread_id, ""), edit.thread.histories[""].rows
        old = [it for it, row in rows.items() if row.created_at < limit]
        removing.forget(edit, line, old)
        return Swept(len(old))

    patch.setattr(documents, "_vacuum", vacuumed)


@caught_by("test_an_expired_thread_is_in_no_list")
def lists_ignore_expiry(patch: Patch) -> None:
    def recent(self, size=0):
        names = self._documents.keys(after="")
        threads = [self._threads.read_parsed(self._documents, it).thread for it in names]
        return sorted(threads, key=lambda it: it.active_at, reverse=True)

    patch.setattr(MemoryBackend, "_iterate_recent", recent)


# --- values


@caught_by("test_changing_what_was_loaded_changes_nothing_stored")
def loaded_values_are_shared(patch: Patch) -> None:
    async def read(self, thread_id, checkpoint_id=None, **options):
        key = thread_id, checkpoint_id
        if key not in cache:
            cache[key] = await read_state(self, thread_id, checkpoint_id, **options)
        return cache[key]

    cache: dict[Any, Any] = {}
    read_state = backend.StorageBackend.read_state
    patch.setattr(backend.StorageBackend, "read_state", read)


@caught_by("test_another_versions_bytes_are_told")
def the_digest_is_not_checked(patch: Patch) -> None:
    def believed(stored, limit, basis=None, _=None):
        if basis is None:
            state = frames.fold(stored.payloads, limit)
        else:
            state, _ = frames.fold_onto(basis[0], stored.payloads, limit)
        return state, frames.build_digest_tree(state)

    def rewrite(self, change):
        def put(row):
            row.payload = change(row.payload)

        self.change_rows(put)

    patch.setattr(backend, "decode_state", believed)
    patch.setattr(MemoryProbe, "damage", rewrite)  # with right checksums
    read_every_time(patch)


@caught_by("test_damage_is_told")
def damage_looks_like_absence(patch: Patch) -> None:
    async def load(self, *args, **kwargs):
        try:
            return await loaded(self, *args, **kwargs)
        except IntegrityError:
            return None

    loaded = StorageBackendAdapter.load
    patch.setattr(StorageBackendAdapter, "load", load)


@caught_by("test_a_value_comes_back_exactly")
def minus_zero_is_zero(patch: Patch) -> None:
    def unsigned(value):
        if isinstance(value, dict):
            return {key: unsigned(it) for key, it in value.items()}
        if isinstance(value, list):
            return [unsigned(it) for it in value]
        return 0.0 if isinstance(value, float) and value == 0 else value

    def believed(stored, limit, basis=None, matches=None):
        state, shape = checked(stored, limit, basis, matches)
        return unsigned(state), shape

    checked = versions.decode_state
    patch.setattr(backend, "decode_state", believed)
    read_every_time(patch)


# --- search, metadata, copies, capabilities


@caught_by("test_names_of_fields_never_match")
def field_names_are_searched(patch: Patch) -> None:
    def everything(line, records, limit, hidden=None):
        for sequence, _, payload in records:
            yield sequence, b" ".join(unpack_frames(payload, limit)).decode(errors="replace")

    patched(patch, "iterate_visible_texts", everything)


@caught_by("test_neither_case_nor_accents_matter")
def case_matters(patch: Patch) -> None:
    patch.setattr(text, "fold", lambda it: it)


@caught_by("test_all_words_must_be_there")
def a_list_shows_what_lacks_the_text(patch: Patch) -> None:
    def takes(self, status):
        return took(replace(self, text=None), status)

    took = sizes.StatusesWanted.takes
    patch.setattr(sizes.StatusesWanted, "takes", takes)


@caught_by("test_a_copys_text_is_its_own")
def a_copy_is_its_source(patch: Patch) -> None:
    async def copy(self, source, destination):
        stored, kept = self._documents._stored, self._threads.cache._kept
        stored[destination], kept[None, destination] = stored[source], kept[None, source]
        return True

    patch.setattr(MemoryBackend, "copy_thread", copy)


@caught_by("test_deleting_either_leaves_the_other_whole")
def a_copy_shares_its_rows(patch: Patch) -> None:
    async def copy(self, source, destination):
        others.update({source: destination, destination: source})
        return await copied(self, source, destination)

    async def remove(self, thread_id, checkpoint_ids=None, **options):
        if thread_id in others:
            await removed(self, others[thread_id], checkpoint_ids, **options)
        return await removed(self, thread_id, checkpoint_ids, **options)

    others: dict[str, str] = {}
    copied, removed = MemoryBackend.copy_thread, MemoryBackend.remove
    patch.setattr(MemoryBackend, "copy_thread", copy)
    patch.setattr(MemoryBackend, "remove", remove)


@caught_by("test_what_is_not_declared_is_refused")
def a_capability_works_without_being_declared(patch: Patch) -> None:
    declared = CheckpointerCapabilities(list_threads=True)
    patch.setattr(MemoryBackend, "capabilities", declared)
    patch.setattr(checkpointer, "needs", lambda backend, power: backend)


@caught_by("test_a_key_is_a_path_and_never_a_statement")
def a_key_is_interpolated(patch: Patch) -> None:
    def may_have(self, column, key, value):
        return sa.text(f"json_extract({column.table.name}.metadata, '$.{key}') IS NOT NULL")

    patch.setattr(SQLiteRepository, "may_have", may_have)


@caught_by("test_there_are_no_operators")
def stars_are_operators(patch: Patch) -> None:
    def words(query):
        return [it.strip("*") for it in query.split() if it.isidentifier() or "*" in it]

    def add(self, position, added):
        here = {it: 1 for it in self.wanted if it in added}
        self.counts.update(here)
        self.best, self.text = (1, position), added

    patch.setattr(documents, "query_words", words)
    patch.setattr(text.Match, "add", add)


# --- turns


@caught_by("test_only_the_holder_saves")
def turns_guard_nothing(patch: Patch) -> None:
    patch.setattr(turns, "require_turn", lambda *_: None)


@caught_by("test_saves_of_every_kind_carry_the_turn")
def saves_forget_their_turn(patch: Patch) -> None:
    patch.setattr(backend, "get_number", lambda *_: None)


@caught_by("test_a_turn_that_was_not_renewed_is_over")
def an_ended_turn_still_saves(patch: Patch) -> None:
    patch.setattr(turns, "get_held", lambda tickets, now: tickets[0] if tickets else None)


@caught_by("test_a_turn_that_was_replaced_is_over")
def any_turn_saves(patch: Patch) -> None:
    def require_turn(guard, number):
        if number is None:
            required(guard, number)

    required = turns.require_turn
    patch.setattr(turns, "require_turn", require_turn)


@caught_by("test_turns_come_in_the_order_of_their_requests")
def the_last_is_served_first(patch: Patch) -> None:
    def take_step(tickets, step, now):
        found = taken(tickets, step, now)
        return [*found[:1], *sorted(found[1:], key=lambda it: -it.number)]

    taken = turns.take_step
    patch.setattr(turns, "take_step", take_step)


@caught_by("test_a_turn_has_one_holder")
def a_number_is_used_again(patch: Patch) -> None:
    def take_step(tickets, step, now):
        return [it._replace(number=7) for it in taken(tickets, step, now)]

    taken = turns.take_step
    patch.setattr(turns, "take_step", take_step)


@caught_by("test_a_turn_is_no_part_of_a_thread")
def a_turn_is_deleted_with_its_thread(patch: Patch) -> None:
    def finish(self):
        if self.thread is None:
            self.tickets = ()
        finished(self)

    finished = ThreadTransaction.finish
    patch.setattr(ThreadTransaction, "finish", finish)


@caught_by("test_an_expired_turn_is_removed")
def the_place_of_a_turn_is_a_thread(patch: Patch) -> None:
    patch.setattr(Thread, "is_live", lambda *_: True)


# --- effects


@caught_by("test_a_finished_effect_is_not_called_again")
def a_result_is_not_kept(patch: Patch) -> None:
    patch.setattr(effects, "_STATUS", {**effects._STATUS, "finished": "open"})


@caught_by("test_a_call_that_failed_is_not_repeated")
def a_call_that_failed_is_open(patch: Patch) -> None:
    patch.setattr(effects, "_STATUS", {**effects._STATUS, "failed": "open"})


@caught_by("test_a_copy_made_during_a_call_does_not_know_its_outcome")
def an_intent_is_no_call(patch: Patch) -> None:
    patch.setattr(effects, "_STATUS", {**effects._STATUS, "begun": "open"})


@caught_by("test_a_repeated_call_has_the_same_idempotency_key")
def each_call_has_a_key_of_its_own(patch: Patch) -> None:
    invoke = effects._invoke
    patch.setattr(effects, "_invoke", lambda call, _: invoke(call, uuid4().hex))


@caught_by("test_of_many_callers_at_once_one_calls")
def an_intent_is_stored_beside_another(patch: Patch) -> None:
    async def list_writes(self, *args):
        found = await listed(self, *args)
        await asyncio.sleep(0)
        return found

    listed = MemoryBackend.list_writes
    patch.setattr(MemoryBackend, "list_writes", list_writes)
    patch.setattr(lines_, "_require_own", lambda *_: None)


@caught_by("test_a_thread_that_is_deleted_during_a_call_stays_deleted")
def a_result_needs_no_intent(patch: Patch) -> None:
    async def put(self, thread_id, key, writes, *, must_exist=None, **options):
        return await put_writes(self, thread_id, key, writes, **options)

    put_writes = MemoryBackend.put_writes
    patch.setattr(MemoryBackend, "put_writes", put)


@caught_by("test_other_arguments_are_refused")
def arguments_are_not_compared(patch: Patch) -> None:
    patch.setattr(effects, "_hash", lambda _: None)


@caught_by("test_an_error_that_did_nothing_is_no_unknown_outcome")
def every_error_is_an_unknown_outcome(patch: Patch) -> None:
    patch.setattr(effects, "_STATUS", {**effects._STATUS, "open": "unknown"})


@caught_by("test_versions_that_go_leave_the_effects")
def effects_go_with_versions(patch: Patch) -> None:
    async def remove(self, thread_id, checkpoint_ids=None, **options):
        return await removed(self, thread_id, None, **options)

    removed = MemoryBackend.remove
    patch.setattr(MemoryBackend, "remove", remove)


@caught_by("test_effects_are_deleted_with_their_thread")
def effects_outlive_their_thread(patch: Patch) -> None:
    async def remove(self, thread_id, *args, **options):
        kept = await self.list_writes(thread_id, effects.NAMESPACE)
        found = await removed(self, thread_id, *args, **options)
        for it in kept:
            await self.put_writes(
                thread_id, it.checkpoint_id, [it.write], namespace=effects.NAMESPACE
            )
        return found

    removed = MemoryBackend.remove_thread
    patch.setattr(MemoryBackend, "remove_thread", remove)


# --- quotas

ON_SQLITE = {"a_key_is_interpolated"}


def of_quotas(fault: Fault) -> Fault:
    ON_SQLITE.add(fault.__name__)
    return fault


@of_quotas
@caught_by("test_a_thread_above_the_quota_is_refused")
def quotas_refuse_nothing(patch: Patch) -> None:
    patch.setattr(sql_quotas.SqlQuotas, "run_limited", lambda _, charge, call: call())


@of_quotas
@caught_by("test_existing_threads_grow_when_there_may_be_no_more")
def quotas_take_known_threads_for_new_ones(patch: Patch) -> None:
    async def has_thread(self, thread_id):
        return False

    patch.setattr(SqlBackend, "has_thread", has_thread)


@of_quotas
@caught_by("test_a_deletion_makes_room")
def quotas_are_never_counted_again(patch: Patch) -> None:
    patch.setattr(quotas.Usage, "needs_count", lambda *_: False)


@of_quotas
@caught_by("test_objects_at_once_keep_to_one_quota")
def leases_are_given_twice(patch: Patch) -> None:
    patch.setattr(quotas.StoredLease, "compute_left", lambda *_: 0)


@of_quotas
@caught_by("test_a_copy_counts")
def copies_are_not_measured(patch: Patch) -> None:
    patch.setattr(sql_quotas, "count_stored", lambda *_: {"threads": 0, "bytes": 0})


@of_quotas
@caught_by("test_the_saves_of_a_minute_are_limited")
def a_lease_has_saves_for_ever(patch: Patch) -> None:
    patch.setattr(sql_quotas._Lease, "add", lambda *_: None)


@of_quotas
@caught_by("test_a_call_that_fails_uses_nothing")
def a_refused_call_is_charged(patch: Patch) -> None:
    patch.setattr(sql_quotas, "UNANSWERED", LocusStoreError)


# --- what runs them


async def kept(test: str, path: Path | None) -> None:
    """Run one contract test as pytest would, on objects of our own; raises where it fails."""
    contract = CheckpointerContract()
    if path is None:
        checkpointer = StorageBackendAdapter(MemoryBackend())
        probe = MemoryProbe(checkpointer.backend)
    else:
        checkpointer = sqlite_checkpointer(path)
        probe = FileProbe(path)

    def reopen(**options: Any) -> StorageBackendAdapter:
        return StorageBackendAdapter(checkpointer.backend, **options)

    fixtures = {"checkpointer": checkpointer, "backend": checkpointer.backend}
    fixtures |= {"reopen": reopen, "another": reopen, "other": reopen()}
    fixtures |= {"storage": probe, "below": probe}
    method = getattr(contract, test)
    names = [it for it in inspect.signature(method).parameters if it not in fixtures]
    fixtures |= {name: _first_case(method, name) for name in names}
    try:
        await method(**{it: fixtures[it] for it in inspect.signature(method).parameters})
    finally:
        await checkpointer.close()


def _first_case(method: Any, name: str) -> Any:
    """The first value of a parametrized argument."""
    for mark in method.pytestmark:
        names = mark.args[0] if isinstance(mark.args[0], tuple) else (mark.args[0],)
        if name in names:
            case = mark.args[1][0]
            return case[names.index(name)] if len(names) > 1 else case
    raise LookupError(name)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_caught_by_the_test_of_its_promise(
    name: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    fault, test = FAULTS[name]
    path = tmp_path / "checkpoints.db" if name in ON_SQLITE else None
    await kept(test, path)
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception, LocusStoreError, KeyError)):
            await kept(test, path and path.with_name("faulty.db"))


def test_there_are_at_least_twelve_faults_and_each_has_a_promise_of_its_own() -> None:
    tests = [test for _, test in FAULTS.values()]
    assert len(set(tests)) == len(tests) >= 12
