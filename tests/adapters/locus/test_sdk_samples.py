"""Samples in the forms of the Locus SDK's pages run with one import prefix changed.

Of PyAgenity's page only the imports are here; ``test_session_recipes.py`` has the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import UnsupportedError

if TESTS_RUN:
    from locus import Agent
    from locus.core.messages import Message
    from locus.core.protocols import CheckpointerCapabilities as TheirCapabilities
    from locus.core.state import AgentState
    from locus.testing import ScriptedModel
    from oracle_twin import TwinServer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SAMPLES = {
    "bucket": """
        from locus.memory.backends import oci_bucket_checkpointer
        made = oci_bucket_checkpointer(
            bucket_name="checkpoints", namespace="tenancy", compartment_id="ocid1.compartment",
            prefix="prod/")
    """,
    "bucket class": """
        from locus.memory.backends import OCIBucketBackend
        made = OCIBucketBackend(bucket_name="checkpoints", namespace="tenancy")
    """,
    "file": """
        from locus.memory.backends.file import FileCheckpointer
        made = FileCheckpointer(directory="./threads")
    """,
    "http": """
        from locus.memory.backends import HTTPCheckpointer
        made = HTTPCheckpointer(base_url="https://checkpoints.example.com")
    """,
    "memory": """
        from locus.memory.backends import MemoryCheckpointer
        made = MemoryCheckpointer()
    """,
    "opensearch": """
        from locus.memory.backends import opensearch_checkpointer
        made = opensearch_checkpointer(hosts=["https://localhost:9200"])
    """,
    "oracle": """
        from locus.memory.backends import oracle_checkpointer
        from locus.memory.backends.oracle import OracleBackend
        place = dict(dsn="localhost:1521/agents", user="app", password="secret")
        made = oracle_checkpointer(table_name="locus_notebook", **place)
        backend = OracleBackend(table_name="locus_notebook", **place)
        assert callable(backend.vacuum) and callable(backend.search)
    """,
    "oracle saver": """
        from locus.memory.backends import OracleCheckpointSaver
        made = OracleCheckpointSaver(
            dsn="localhost:1521/agents", user="app", password="secret", table_name="locus")
        assert callable(made.put_writes) and callable(made.list_checkpoints)
    """,
    "oracle store": """
        from locus.memory.store_backends import OracleStore
        made = OracleStore(
            dsn="localhost:1521/agents", user="app", password="secret", table_name="locus_store",
            dimension=1024)
        assert callable(made.put_with_embedding) and callable(made.search_by_embedding)
    """,
    "postgresql": """
        from locus.memory.backends import postgresql_checkpointer
        made = postgresql_checkpointer(
            dsn="postgresql://user:pass@host:5432/locus", schema="locus_threads")
    """,
    "redis": """
        from locus.memory.backends import redis_checkpointer
        made = redis_checkpointer(url="redis://host:6379/0", ttl_seconds=86_400)
    """,
    "sqlite": """
        from locus.memory.backends import sqlite_checkpointer
        made = sqlite_checkpointer("agents.db")
    """,
    "store": """
        from locus.memory.store import InMemoryStore
        made = InMemoryStore()
    """,
}
"""Of each page's samples the imports and calls that name our package."""

CUSTOM = """
    from locus.memory.checkpointer import BaseCheckpointer

    class Custom(BaseCheckpointer):
        def __init__(self):
            self.stored = {}

        @property
        def capabilities(self):
            return Capabilities(list_threads=True, persistent_checkpoint_ids=True)

        async def save(self, state, thread_id, checkpoint_id=None, metadata=None):
            name = checkpoint_id or "first"
            self.stored[thread_id, name] = state.to_checkpoint()
            self.stored[thread_id, "latest"] = name
            return name

        async def load(self, thread_id, checkpoint_id=None):
            name = checkpoint_id or self.stored.get((thread_id, "latest"))
            found = self.stored.get((thread_id, name))
            return AgentState.from_checkpoint(found) if found else None

        async def list_checkpoints(self, thread_id, limit=10):
            names = [it for thread, it in self.stored if thread == thread_id]
            return [it for it in names if it != "latest"][:limit]

    made = Custom()
"""


NOTEBOOK = """
    from locus.memory.backends import oracle_checkpointer
    from locus.memory.backends.oracle import OracleBackend

    place = dict(
        dsn="mydb_low", user="app", password="secret", wallet_location="wallet",
        wallet_password="", table_name="locus_notebook")

    async def made():
        checkpointer = oracle_checkpointer(**place)
        state = AgentState(agent_id="demo").with_message(Message.user("Is Porto warm in May?"))
        assert await checkpointer.save(state.with_message(Message.assistant("Mostly.")), "trip")
        assert len((await checkpointer.load("trip")).messages) == 2

        can = checkpointer.capabilities
        assert can.list_threads and can.persistent_checkpoint_ids and can.search
        assert can.metadata_query and can.vacuum

        other = AgentState(agent_id="demo").with_message(Message.user("Another thread"))
        await checkpointer.save(other, "second")
        threads = await checkpointer.list_threads()
        assert sorted(threads) == ["second", "trip"]
        assert [len(await checkpointer.list_checkpoints(it)) for it in threads] == [1, 1]

        backend = OracleBackend(**place)
        assert await backend.vacuum(older_than_days=30) == 0
        assert len(await backend.search("Porto")) == 1
        await checkpointer.close()
        await backend.close()
"""

SESSIONS = {
    "memory": """
        from pyagenity.checkpointer import BaseCheckpointer, InMemoryCheckpointer
        made = InMemoryCheckpointer()
        assert isinstance(made, BaseCheckpointer)
    """,
    "postgresql": """
        from pyagenity.checkpointer import PgCheckpointer
        made = PgCheckpointer(
            postgres_dsn="postgresql://user:pass@host/db", redis_url="redis://host:6379",
            cache_ttl=3600, max_cached_threads=100, user_id_type="bigint", schema="agent",
            release_resources=True)
        assert callable(made.aput_state) and callable(made.aget_state_cache)
    """,
}


def ran(
    sample: str, theirs: str = "locus.memory", ours: str = "locus_store", /, **names: Any
) -> Any:
    """Run a sample with our prefix in place of the other library's; return what it made."""
    lines = sample.strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    source = "\n".join(it[indent:] for it in lines)
    assert theirs in source
    exec(source.replace(theirs, ours), names)  # noqa: S102  (the samples above)
    return names["made"]


@pytest.mark.parametrize("name", SAMPLES)
async def test_a_sample_opens_what_it_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = ran(SAMPLES[name])
    if name not in {"oracle saver", "oracle store", "store"}:
        Agent(model=ScriptedModel(["Hello."]), checkpointer=made)
    if name != "store":
        await made.close()


@pytest.mark.parametrize("name", ["file", "memory", "sqlite", "custom"])
async def test_a_conversation_continues_in_another_agent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = CUSTOM if name == "custom" else SAMPLES[name]
    checkpointer = ran(sample, Capabilities=TheirCapabilities, AgentState=AgentState)
    for said in ("I'm Alex.", "Who am I?"):
        agent = Agent(model=ScriptedModel(["Hello."]), checkpointer=checkpointer)
        async for _ in agent.run(said, thread_id="t1"):
            pass
    state = await checkpointer.load("t1")
    texts = [it.content for it in state.messages if it.role.value == "user"]
    assert texts == ["I'm Alex.", "Who am I?"]
    await checkpointer.close()


async def test_the_notebook_of_checkpoints_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wallet").mkdir()
    (tmp_path / "wallet" / "ewallet.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    with TwinServer(tmp_path / "twin.db", "locus_notebook_").in_its_place():
        await ran(NOTEBOOK, AgentState=AgentState, Message=Message)()


@pytest.mark.parametrize("name", SESSIONS)
async def test_a_sample_of_session_memory_opens_what_it_names(name: str) -> None:
    made = ran(SESSIONS[name], "pyagenity.checkpointer", "locus_store.session")
    await made.arelease()


async def test_a_store_keeps_items_across_threads() -> None:
    store = ran(SAMPLES["store"])
    await store.put(("memory", "user"), "role", {"content": "Engineer"})
    assert await store.get(("memory", "user"), "role") == {"content": "Engineer"}


async def test_a_custom_checkpointer_gets_no_false_message() -> None:
    made = ran(CUSTOM, Capabilities=TheirCapabilities, AgentState=AgentState)
    state = AgentState(agent_id="a").with_message(Message.user("hi"))
    assert await made.save(state, "t") == "first"
    assert await made.exists("t")
    with pytest.raises(UnsupportedError, match="declares the capability 'list_threads' and does"):
        await made.list_threads()
    with pytest.raises(UnsupportedError, match=r"has no delete\(\) of its own; implement it"):
        await made.delete("t")
    with pytest.raises(UnsupportedError, match="does not declare the capability 'search'"):
        await made.search("hi")
