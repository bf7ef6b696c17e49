"""Calls in the forms of PyAgenity's page on session memory, with only their imports changed."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from typing import Any, List  # noqa: UP035  (the recipe's)

import asyncpg
import pytest
from injectq import Inject, InjectQ, inject
from session_storage import Storage
from tiers import first_of

from locus_store import MemoryBackend
from locus_store.session import (
    AgentState,
    BaseCheckpointer,
    InMemoryCheckpointer,
    LocalCache,
    Message,
    PgCheckpointer,
    RedisCache,
    SessionCheckpointer,
    ThreadInfo,
)

pytestmark = pytest.mark.anyio
logger = logging.getLogger("recipes")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("DATABASE_URL", "CACHE_URL", "CACHE_TTL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["memory", *first_of("sqlite", "postgresql")])
def place(request):
    made = Storage(request.param, request)
    made.url = request.getfixturevalue("redis_url") if request.param == "postgresql" else None
    return made


@pytest.fixture
async def checkpointer(place):
    yield place.open(RedisCache(place.url) if place.url else LocalCache())
    await place.close()


def say(*texts: str) -> AgentState:
    return AgentState(context=[Message.text_message(it) for it in texts])


# --- persistence granularity


async def test_states(checkpointer) -> None:
    config, state = {"thread_id": "conv_123", "user_id": "alice"}, say("hello")

    await checkpointer.aput_state(config, state)

    recovered_state = await checkpointer.aget_state(config)

    assert recovered_state == state


async def test_messages(checkpointer) -> None:
    config = {"thread_id": "conv_123", "user_id": "alice"}
    tool_call_message = Message.text_message("calling the tool", role="assistant")
    tool_result_message = Message.text_message("the Weather Query says: sun", role="tool")

    await checkpointer.aput_messages(
        config,
        messages=[tool_call_message, tool_result_message],
        metadata={"execution_step": 3, "node": "tool_executor"},
    )

    messages = await checkpointer.alist_messages(config, limit=50, search="weather query")

    assert [it.message_id for it in messages] == [tool_result_message.message_id]
    assert messages[0].metadata == {"execution_step": 3, "node": "tool_executor"}


async def test_threads(checkpointer) -> None:
    config = {"thread_id": "conv_123", "user_id": "alice"}

    thread_info = ThreadInfo(
        thread_id="conv_123",
        user_id="alice",
        thread_name="Weather Inquiry",
        metadata={
            "tags": ["weather", "location_services"],
            "created_at": "2024-10-01T12:00:00Z",
        },
        updated_at="2024-10-01T12:30:00Z",
        run_id="run_456",
    )
    await checkpointer.aput_thread(config, thread_info)

    assert await checkpointer.aget_thread(config) == thread_info


# --- the cache


async def test_the_hot_path(checkpointer) -> None:
    config = {"thread_id": "active_conv", "user_id": "alice"}
    await checkpointer.aput_state(config, say("hello"))

    cached_state = await checkpointer.aget_state_cache(config)

    if cached_state:
        state = cached_state
    else:
        state = await checkpointer.aget_state(config)

    assert state.context[0].text() == "hello"
    assert cached_state is not None


async def test_write_through(checkpointer, place) -> None:
    config, updated_state = {"thread_id": "t"}, say("updated")

    await checkpointer.aput_state(config, updated_state)

    assert await place.open().aget_state(config) == updated_state
    assert await checkpointer.cache.get("0::t" if place.kind == "memory" else "7:default:t")


def test_expiration() -> None:
    checkpointer = PgCheckpointer(
        cache_ttl=86400,
        max_cached_threads=1000,
    )

    assert isinstance(checkpointer, BaseCheckpointer)


# --- construction


async def test_implementations() -> None:
    checkpointer = InMemoryCheckpointer()
    assert await checkpointer.aget_state({"thread_id": "t"}) is None

    checkpointer = PgCheckpointer(
        postgres_dsn="postgresql://user:pass@localhost/db",
        redis_url="redis://localhost:6379",
        cache_ttl=86400,
    )
    checkpointer = PgCheckpointer(
        postgres_dsn="postgresql://user:pass@host:5432/db",
        redis_url="redis://cache-host:6379",
        user_id_type="string",
        cache_ttl=3600,
        release_resources=True,
    )
    await checkpointer.arelease()


async def test_database_integration(migrated_database) -> None:
    dsn = migrated_database

    checkpointer = PgCheckpointer(
        postgres_dsn="postgresql://agent:pass@agent-db:5432/agent_state",
        redis_url="redis://agent-cache:6379/1",
    )

    checkpointer = PgCheckpointer(
        postgres_dsn="postgresql://app:pass@main-db:5432/app_db",
        schema="agent",
    )

    existing_pool = await asyncpg.create_pool(dsn)
    checkpointer = PgCheckpointer(pg_pool=existing_pool)

    await checkpointer.asetup()
    await checkpointer.aput_state({"thread_id": "t"}, say("a"))
    await checkpointer.arelease()
    assert await existing_pool.fetchval("SELECT 1") == 1
    await existing_pool.close()


def test_types_of_ids() -> None:
    string_ids = PgCheckpointer(user_id_type="string")
    int_ids = PgCheckpointer(user_id_type="int")
    bigint_ids = PgCheckpointer(user_id_type="bigint")

    assert len({it.user_id_type for it in (string_ids, int_ids, bigint_ids)}) == 3


async def test_configuration_by_the_environment(migrated_database, redis_url, monkeypatch) -> None:
    monkeypatch.setenv("DATABASE_URL", migrated_database)
    monkeypatch.setenv("CACHE_URL", redis_url)

    checkpointer = PgCheckpointer(
        postgres_dsn=os.environ["DATABASE_URL"],
        redis_url=os.environ.get("CACHE_URL"),
        cache_ttl=int(os.environ.get("CACHE_TTL", "3600")),
    )

    await checkpointer.asetup()

    async def shutdown():
        await checkpointer.arelease()

    await checkpointer.aput_state({"thread_id": "t"}, say("a"))
    assert await checkpointer.aget_state_cache({"thread_id": "t"}) is not None
    await shutdown()


# --- injection


async def test_injection_into_a_node(checkpointer) -> None:
    container = InjectQ()
    container.bind_instance(BaseCheckpointer, checkpointer)

    @inject(container=container)
    def audit_node(
        state: AgentState,
        config: dict,
        checkpointer: BaseCheckpointer = Inject[BaseCheckpointer],
    ) -> AgentState:
        audit_message = Message.text_message(
            f"Decision made at step {state.execution_meta.step}", role="system"
        )

        asyncio.create_task(  # noqa: RUF006
            checkpointer.aput_messages(config, [audit_message])
        )

        return state

    state, config = AgentState(), {"thread_id": "t", "user_id": "alice"}
    state.execution_meta.step = 7
    assert audit_node(state, config) is state
    await checkpointer.arelease()
    found = await checkpointer.alist_messages(config)
    assert [it.text() for it in found] == ["Decision made at step 7"]


async def test_debugging(checkpointer, capsys) -> None:
    container = InjectQ()
    container.bind_instance(BaseCheckpointer, checkpointer)

    @inject(container=container)
    async def debug_conversation(
        thread_id: str, checkpointer: BaseCheckpointer = Inject[BaseCheckpointer]
    ):
        config = {"thread_id": thread_id}

        messages = await checkpointer.alist_messages(config, limit=1000)

        tool_calls = [msg for msg in messages if msg.tools_calls]
        errors = [msg for msg in messages if "error" in msg.text().lower()]

        print(f"Conversation analysis for {thread_id}:")
        print(f"- Total messages: {len(messages)}")
        print(f"- Tool calls: {len(tool_calls)}")
        print(f"- Potential errors: {len(errors)}")

    call = Message.text_message("", role="assistant", tools_calls=[{"id": "c"}])
    error = Message.text_message("Error: no such city", role="tool")
    config = {"thread_id": "t", "user_id": "alice"}
    await checkpointer.aput_messages(config, [Message.text_message("hi"), call, error])
    await debug_conversation("t")
    assert capsys.readouterr().out == (
        "Conversation analysis for t:\n- Total messages: 3\n- Tool calls: 1\n"
        "- Potential errors: 1\n"
    )


# --- patterns


async def test_branching(checkpointer) -> None:
    await checkpointer.aput_state({"thread_id": "main_conversation"}, say("a"))

    original_config = {"thread_id": "main_conversation"}
    branch_config = {"thread_id": "branch_experiment"}

    current_state = await checkpointer.aget_state(original_config)
    await checkpointer.aput_state(branch_config, current_state)

    branch = await checkpointer.aget_state_cache(branch_config)
    branch.context.append(Message.text_message("b"))
    await checkpointer.aput_state(branch_config, branch)
    assert len((await checkpointer.aget_state_cache(original_config)).context) == 1
    assert len((await checkpointer.aget_state(branch_config)).context) == 2


def extract_topics(text: str) -> list[str]:
    return text.split()


async def test_analytics(checkpointer) -> None:
    async def analyze_user_patterns(user_id: str):
        user_threads = await checkpointer.alist_threads({"user_id": user_id}, limit=100)

        total_messages = 0
        common_topics = {}

        for thread_info in user_threads:
            thread_config = {"thread_id": thread_info.thread_id, "user_id": user_id}
            messages = await checkpointer.alist_messages(thread_config)
            total_messages += len(messages)

            for msg in messages:
                topics = extract_topics(msg.text())
                for topic in topics:
                    common_topics[topic] = common_topics.get(topic, 0) + 1

        return {
            "total_conversations": len(user_threads),
            "total_messages": total_messages,
            "common_topics": common_topics,
        }

    said = {"alice": ["sun rain", "rain"], "bob": ["wind"]}
    for user, texts in said.items():
        for n, text in enumerate(texts):
            config = {"thread_id": f"{user} {n}", "user_id": user}
            await checkpointer.aput_messages(config, [Message.text_message(text)])
    assert await analyze_user_patterns("alice") == {
        "total_conversations": 2,
        "total_messages": 2,
        "common_topics": Counter(sun=1, rain=2),
    }


async def test_resuming(checkpointer, capsys) -> None:
    async def resume_conversation(thread_id: str, user_id: str):
        config = {"thread_id": thread_id, "user_id": user_id}

        previous_state = await checkpointer.aget_state(config)

        if previous_state:
            print(f"Resuming conversation with {len(previous_state.context)} messages")
            return previous_state
        else:  # noqa: RET505
            return AgentState()

    assert (await resume_conversation("t", "alice")).context == []
    await checkpointer.aput_state({"thread_id": "t", "user_id": "alice"}, say("a", "b"))
    assert len((await resume_conversation("t", "alice")).context) == 2
    assert (await resume_conversation("t", "bob")).context == []
    assert capsys.readouterr().out == "Resuming conversation with 2 messages\n"


async def test_cache_warming(checkpointer, place) -> None:
    async def warm_cache_for_users(user_ids: List[str]):  # noqa: UP006
        for user_id in user_ids:
            recent_threads = await checkpointer.alist_threads(
                {"user_id": user_id},
                limit=3,
            )

            for thread_info in recent_threads:
                config = {"thread_id": thread_info.thread_id, "user_id": user_id}
                await checkpointer.aget_state_cache(config)

    cold = place.open()
    for n in range(5):
        await cold.aput_state({"thread_id": f"t{n}", "user_id": "alice"}, say(str(n)))
    await warm_cache_for_users(["alice", "bob"])
    tenant = "0:" if place.kind == "memory" else "7:default"
    warm = [n for n in range(5) if await checkpointer.cache.get(f"{tenant}:t{n}")]
    assert warm == [2, 3, 4]


async def test_batches(checkpointer) -> None:
    async def log_conversation_batch(config: dict, messages: List[Message]):  # noqa: UP006
        await checkpointer.aput_messages(config, messages)

    config = {"thread_id": "t", "user_id": "alice"}
    await log_conversation_batch(config, [Message.text_message(str(n)) for n in range(200)])
    found = await checkpointer.alist_messages(config)
    assert [it.text() for it in found] == [str(n) for n in range(200)]


async def test_degradation(caplog) -> None:
    checkpointer: Any = None

    async def resilient_state_retrieval(config: dict):
        try:
            state = await checkpointer.aget_state_cache(config)
            if state:
                return state

            return await checkpointer.aget_state(config)

        except ConnectionError:
            logger.warning(f"Checkpointer unavailable for {config}, starting fresh")  # noqa: G004
            return AgentState()

    config = {"thread_id": "t", "user_id": "alice"}
    checkpointer = PgCheckpointer(
        postgres_dsn="postgresql://u:p@127.0.0.1:1/db", redis_url="redis://127.0.0.1:1"
    )
    assert await resilient_state_retrieval(config) == AgentState()
    assert "Checkpointer unavailable" in caplog.text
    await checkpointer.arelease()
    checkpointer = SessionCheckpointer(MemoryBackend(), RedisCache("redis://127.0.0.1:1"))
    await checkpointer.aput_state(config, say("a"))
    assert (await resilient_state_retrieval(config)).context[0].text() == "a"


async def test_repair(checkpointer, capsys) -> None:
    async def repair_conversation_integrity(thread_id: str):
        config = {"thread_id": thread_id}

        messages = await checkpointer.alist_messages(config, limit=10000)

        reconstructed_state = AgentState()
        reconstructed_state.context = messages

        await checkpointer.aput_state(config, reconstructed_state)

        print(f"Repaired state for {thread_id} with {len(messages)} messages")

    config = {"thread_id": "t", "user_id": "alice"}
    await checkpointer.aput_messages(config, say("a", "b").context)
    await checkpointer.aput_state(config, say("broken"))
    await repair_conversation_integrity("t")
    for read in (checkpointer.aget_state, checkpointer.aget_state_cache):
        assert [it.text() for it in (await read(config)).context] == ["a", "b"]
    assert capsys.readouterr().out == "Repaired state for t with 2 messages\n"


class Metrics:
    def __init__(self) -> None:
        self.told: list[str] = []

    def histogram(self, name: str, seconds: float) -> None:
        assert seconds >= 0
        self.told.append(name)

    def counter(self, name: str) -> Metrics:
        self.told.append(name)
        return self

    def inc(self) -> None:
        self.told.append("inc")


metrics = Metrics()


class MonitoredCheckpointer(PgCheckpointer):
    async def aput_state(self, config, state):
        start_time = time.time()
        result = await super().aput_state(config, state)

        metrics.histogram("checkpointer.put_state.duration", time.time() - start_time)
        metrics.counter("checkpointer.put_state.calls").inc()

        return result


async def test_a_monitored_subclass(migrated_database) -> None:
    checkpointer = MonitoredCheckpointer(postgres_dsn=migrated_database)
    told = ["checkpointer.put_state.duration", "checkpointer.put_state.calls", "inc"]
    await checkpointer.aput_state({"thread_id": "t"}, say("a"))
    assert metrics.told == told
    await asyncio.to_thread(checkpointer.put_state, {"thread_id": "t"}, say("b"))
    assert metrics.told == told + told
    await asyncio.to_thread(checkpointer.release)
    await checkpointer.arelease()
