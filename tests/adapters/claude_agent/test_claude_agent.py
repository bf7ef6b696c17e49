"""The Claude Agent SDK's session store: its conformance suite, its helpers, and two writers."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from lazily import TESTS_RUN
from log_urls import EACH, url_of
from storages.memory import BareBackend

from locus_store import (
    FileMessageLog,
    InMemoryMessageLog,
    InvalidArgumentError,
    OCIBucketMessageLog,
    OpenSearchMessageLog,
    UnsupportedError,
    open_checkpointer,
    open_message_log,
)
from locus_store.adapters.logs import make_thread_id, split_thread_id
from locus_store.testing.kit import HOSTILE_IDS

if TESTS_RUN:
    import claude_agent_sdk as sdk
    from claude_agent_sdk._internal.session_resume import (
        build_mirror_batcher,
        materialize_resume_session,
    )
    from claude_agent_sdk.testing import run_session_store_conformance
    from claude_agent_sdk.testing.session_store_conformance import _OPTIONAL_METHODS, _has_optional

    from locus_store import HTTPMessageLog
    from locus_store.adapters.claude_agent import SUMMARY, LocusSessionStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
if TESTS_RUN:
    PROJECT = sdk.project_key_for_directory(None)


@pytest.fixture(params=EACH)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[LocusSessionStore]:
    url = url_of(request.param, request, tmp_path)
    async with LocusSessionStore.from_url(url) as made:
        yield made


@pytest.fixture(params=("ours", "theirs"))
def either(request: Any, tmp_path: Path) -> Any:
    """Our store, and the one that the SDK ships."""
    if request.param == "theirs":
        return sdk.InMemorySessionStore()
    return LocusSessionStore(InMemoryMessageLog())


def said(text: str, uuid: str | None = None, **fields: Any) -> Any:
    """Return an entry as the CLI writes it."""
    given = {"timestamp": "2026-01-01T00:00:00.000Z", "sessionId": "s", **fields}
    message = {"role": "user", "content": text}
    return {"type": "user", "message": message, "uuid": uuid or str(uuid4()), **given}


def chain(*texts: str) -> list[Any]:
    """Return entries, each the child of the one before."""
    entries, parent = [], None
    for text in texts:
        entries.append(said(text, parentUuid=parent))
        parent = entries[-1]["uuid"]
    return entries


async def test_the_sdks_conformance_suite_passes_whole(
    store: LocusSessionStore, service_over: Any, request: Any, tmp_path: Path
) -> None:
    if isinstance(store.log, OpenSearchMessageLog):
        pytest.skip("each of its 15 stores would need an index of its own")
    made = []

    def empty() -> LocusSessionStore:
        fresh: Any = InMemoryMessageLog()
        if isinstance(store.log, HTTPMessageLog):
            fresh = HTTPMessageLog(service_over("http"))
        elif isinstance(store.log, FileMessageLog):
            fresh = FileMessageLog(tmp_path / uuid4().hex)
        elif isinstance(store.log, OCIBucketMessageLog):
            prefix = f"{uuid4().hex}/"
            fresh = OCIBucketMessageLog(**request.getfixturevalue("bucket").options(prefix=prefix))
        elif type(store.log).__name__ == "RedisMessageLog":
            fresh = open_message_log(request.getfixturevalue("redis_url"), prefix=f"{uuid4().hex}:")
        elif not isinstance(store.log, InMemoryMessageLog):
            fresh = store.for_tenant(uuid4().hex).log
        made.append(LocusSessionStore(fresh))
        return made[-1]

    await run_session_store_conformance(empty)
    for each in made:
        if each.log.backend is not store.log.backend:
            await each.log.close()
    assert len(made) == 15, "14 contracts, and one store that is only examined"
    assert all(_has_optional(made[0], it, frozenset()) for it in _OPTIONAL_METHODS)


async def test_entries_come_back_equal_and_in_order(either: Any) -> None:
    key = {"project_key": PROJECT, "session_id": "s"}
    odd = {"type": "x", "n": [1.0, 2**53 + 1, -0.0, None, True, {"": "\x00ß%_'"}], "uuid": "u"}
    title = {"type": "custom-title", "customTitle": "T"}
    await either.append(key, [odd, title, title])
    await either.append(key, [title])
    loaded = json.dumps(await either.load(key), sort_keys=True)
    assert loaded == json.dumps([odd, title, title, title], sort_keys=True)


async def test_an_entry_with_an_odd_id_comes_back(either: Any) -> None:
    key = {"project_key": PROJECT, "session_id": "s"}
    entries = [{"type": "x", "uuid": it} for it in ("", "\0", "\ud83d", "u" * 300, None, 7, ["u"])]
    await either.append(key, entries)
    assert await either.load(key) == entries


async def test_an_entry_that_is_sent_again_is_stored_once(store: LocusSessionStore) -> None:
    key = {"project_key": PROJECT, "session_id": "s"}
    first, second = chain("a", "b")
    await store.append(key, [first])
    await store.append(key, [first, second])
    assert await store.load(key) == [first, second]
    await store.append({**key, "subpath": "x"}, [first])
    await store.append({**key, "subpath": "x"}, [first])
    assert await store.load({**key, "subpath": "x"}) == [first]


async def test_names_are_kept_apart(either: Any) -> None:
    names = [it for it in HOSTILE_IDS if len(it) < 60 and "/" not in it]
    for project in names[:6]:
        for session in names:
            await either.append({"project_key": project, "session_id": session}, [said(session)])
        found = await either.list_sessions(project)
        assert sorted(it["session_id"] for it in found) == sorted(set(names))


async def test_a_slash_in_a_name_separates_nothing(store: LocusSessionStore) -> None:
    pairs = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "b%2Fc")]
    for project, session in pairs:
        await store.append({"project_key": project, "session_id": session}, [said(session)])
    for project, session in pairs:
        key = {"project_key": project, "session_id": session}
        assert [it["message"]["content"] for it in await store.load(key) or ()] == [session]
        listed = {it["session_id"] for it in await store.list_sessions(project)}
        assert listed == {it for of, it in pairs if of == project}


@pytest.mark.parametrize("name", HOSTILE_IDS)
def test_a_thread_gives_its_names(name: str) -> None:
    assert split_thread_id(make_thread_id(name, "x", name)) == [name, "x", name]


async def test_a_name_that_is_too_long_is_refused(store: LocusSessionStore) -> None:
    with pytest.raises(InvalidArgumentError):
        await store.append({"project_key": "p" * 300, "session_id": "s"}, [said("a")])


async def test_the_sdks_helpers_read_and_write_sessions(store: LocusSessionStore) -> None:
    session = str(uuid4())
    key = {"project_key": PROJECT, "session_id": session}
    entries = chain("Two tickets to Porto.", "For Friday.")
    await store.append(key, entries)
    await store.append({**key, "subpath": "subagents/agent-1"}, chain("Searching."))
    messages = await sdk.get_session_messages_from_store(store, session)
    assert [it.uuid for it in messages] == [it["uuid"] for it in entries]
    assert await sdk.list_subagents_from_store(store, session) == ["1"]
    assert len(await sdk.get_subagent_messages_from_store(store, session, "1")) == 1
    await sdk.rename_session_via_store(store, session, "Porto")
    await sdk.tag_session_via_store(store, session, "travel")
    forked = await sdk.fork_session_via_store(store, session)
    info = await sdk.get_session_info_from_store(store, session)
    assert info is not None
    assert (info.custom_title, info.tag) == ("Porto", "travel")
    listed = {it.session_id: it for it in await sdk.list_sessions_from_store(store)}
    assert listed.keys() == {session, forked.session_id}
    assert listed[session].first_prompt == "Two tickets to Porto."
    assert (listed[session].custom_title, listed[session].tag) == ("Porto", "travel")
    await sdk.delete_session_via_store(store, session)
    assert await sdk.get_session_info_from_store(store, session) is None
    assert [it.session_id for it in await sdk.list_sessions_from_store(store)] == [
        forked.session_id
    ]


async def test_the_sdk_mirrors_a_session_and_resumes_it(
    store: LocusSessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    session, errors = str(uuid4()), []

    async def failed(key: Any, message: str) -> None:
        errors.append((key, message))

    folder = tmp_path / "projects" / PROJECT
    mirror = build_mirror_batcher(store, None, None, failed)
    written, mine = chain("a", "b", "c"), chain("sub")
    mirror.enqueue(str(folder / f"{session}.jsonl"), written[:2])
    mirror.enqueue(str(folder / f"{session}.jsonl"), written[2:])
    mirror.enqueue(str(folder / session / "subagents" / "agent-1.jsonl"), mine)
    await mirror.close()
    assert errors == []
    options = sdk.ClaudeAgentOptions(session_store=store, continue_conversation=True)
    resumed = await materialize_resume_session(options)
    assert resumed is not None
    assert resumed.resume_session_id == session
    lines = (resumed.config_dir / "projects" / PROJECT / f"{session}.jsonl").read_text()
    assert [json.loads(it) for it in lines.splitlines()] == written
    agents = resumed.config_dir / "projects" / PROJECT / session / "subagents"
    assert json.loads((agents / "agent-1.jsonl").read_text()) == mine[0]
    await resumed.cleanup()


async def test_racing_appends_lose_no_entry_and_no_field_of_the_summary(
    store: LocusSessionStore,
) -> None:
    key = {"project_key": PROJECT, "session_id": "s"}

    async def write(n: int) -> None:
        for turn in range(5):
            await store.append(key, [{"type": "note", "n": [n, turn]}] * 2)
        field = ("customTitle", "aiTitle", "gitBranch", "lastPrompt")[n]
        await store.append(key, [{"type": "x", field: str(n)}])

    await asyncio.gather(*map(write, range(4)))
    found = [it["n"] for it in await store.load(key) or () if "n" in it]
    for n in range(4):
        assert [it for it in found if it[0] == n] == [[n, it] for it in range(5) for _ in (1, 2)]
    (summary,) = await store.list_session_summaries(PROJECT)
    expected = {"custom_title": "0", "ai_title": "1", "git_branch": "2", "last_prompt": "3"}
    assert expected.items() <= summary["data"].items()
    assert summary["mtime"] == (await store.list_sessions(PROJECT))[0]["mtime"]


async def test_a_cancelled_append_is_whole_or_nothing(store: LocusSessionStore) -> None:
    for n in range(12):
        key = {"project_key": PROJECT, "session_id": f"s{n}"}
        task = asyncio.create_task(store.append(key, [{"type": "x", "lastPrompt": str(n)}] * 3))
        for _ in range(n):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await store.append({"project_key": PROJECT, "session_id": "end"}, [{"type": "x"}])
    for n in range(12):  # an append may go on after the caller was cancelled
        before = {it["session_id"] for it in await store.list_sessions(PROJECT)}
        loaded = await store.load({"project_key": PROJECT, "session_id": f"s{n}"}) or []
        after = {it["session_id"] for it in await store.list_sessions(PROJECT)}
        assert len(loaded) in ({3} if f"s{n}" in before else {0, 3})
        assert not loaded or f"s{n}" in after


async def test_many_sessions_are_listed_in_pages(
    store: LocusSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locus_store.adapters.logs.PAGE", 7)
    ids = {f"s{n}" for n in range(21)}
    for it in ids:
        await store.append({"project_key": "p", "session_id": it}, [said(it)])
        await store.append({"project_key": "p", "session_id": "s0", "subpath": it}, [said(it)])
    assert {it["session_id"] for it in await store.list_sessions("p")} == ids
    summaries = await store.list_session_summaries("p")
    assert {it["data"]["first_prompt"] for it in summaries} == ids
    key: Any = {"project_key": "p", "session_id": "s0"}
    assert set(await store.list_subkeys(key)) == ids


async def test_an_opened_backend_or_log_stays_open(tmp_path: Path) -> None:
    key: Any = {"project_key": "p", "session_id": "s"}
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        async with LocusSessionStore(checkpointer.backend) as over:
            await over.append(key, [said("a")])
        await checkpointer.save({"n": 1}, "t")
        assert await checkpointer.exists("p/s")
        async with open_message_log(url) as log, LocusSessionStore(log) as beside:
            assert len(await beside.load(key) or ()) == 1
            await beside.close()
            assert (await log.info("p/s", namespace=SUMMARY)) is not None
            tenant = beside.for_tenant("acme")
            assert await tenant.load(key) is None
    with pytest.raises(UnsupportedError, match="BareBackend keeps no message logs"):
        LocusSessionStore(BareBackend())


async def test_a_search_finds_what_a_person_reads(store: LocusSessionStore) -> None:
    def entry(role: str, content: Any) -> Any:
        message = {"role": role, "content": content, "model": "a-model", "id": "msg_1"}
        return {"type": role, "uuid": str(uuid4()), "cwd": "/home", "message": message}

    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    entries: list[Any] = [
        entry("user", "Hello"),
        entry("user", [{"type": "text", "text": "Look at this"}, png]),
        entry(
            "assistant",
            [
                {"type": "thinking", "thinking": "Porto is far", "signature": "c2lnbmVk"},
                {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
                {"type": "tool_use", "id": "toolu_1", "name": "Flights", "input": {"to": ["Rome"]}},
            ],
        ),
        {
            **entry(
                "user",
                [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Not on Mondays"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": [{"type": "text", "text": "A map"}, png],
                    },
                ],
            ),
            "toolUseResult": {"stdout": "repeated"},
        },
        {"type": "summary", "summary": "A flight", "leafUuid": "leaf"},
    ]
    await store.append({"project_key": "p", "session_id": "s"}, entries)
    for text in ("Hello", "look", "porto", "Flights", "Rome", "Mondays", "A map", "A flight"):
        assert len(await store.log.page("p/s", search=text)) == 1, text
    hidden = ["user", "assistant", "iVBO", "c2ln", "ZW5j", "toolu", "msg_1", "a-model", "repeated"]
    for text in (*hidden, "tool_use", "leaf", "/home", entries[0]["uuid"]):
        assert await store.log.page("p/s", search=text) == [], text


async def test_transcripts_belong_to_the_user_of_the_store(store: LocusSessionStore) -> None:
    mine: Any = LocusSessionStore(store.log, user_id="u")
    key: Any = {"project_key": "p", "session_id": "s"}
    await mine.append(key, chain("a", "b"))
    await mine.append({**key, "session_id": "t", "subpath": "agents/x"}, chain("c"))
    await store.append({**key, "session_id": "v"}, chain("d"))
    assert sorted(await store.log.backend.threads_of("u")) == ["p/s", "p/t"]
