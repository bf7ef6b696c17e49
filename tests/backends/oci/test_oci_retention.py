"""Lifecycle rules, ``doctor``, and the import of the Locus SDK's objects."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from lazily import TESTS_RUN
from oci_double import NAMESPACE

from locus_store import (
    BackendError,
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    MemoryBackend,
)
from locus_store.adapters.locus.import_threads import import_locus
from locus_store.backends.documents import segmented
from locus_store.backends.oci import lifecycle
from locus_store.backends.oci.client import make_factory
from locus_store.backends.oci.options import DEFAULT_PREFIX
from locus_store.transfer.counts import Counts

if TESTS_RUN:
    import oci
    from locus.core.messages import Message
    from locus.core.state import AgentState
    from locus.memory.backends.oci_bucket import OCIBucketBackend as BucketOfTheirs

if TYPE_CHECKING:
    from buckets import DoubleBucket

pytestmark = pytest.mark.anyio
run = test_cli.run


def rule(name: str, *, action: str = "DELETE", is_enabled: bool = True, **names: Any) -> Any:
    models = oci.object_storage.models
    told = models.ObjectNameFilter(**names) if names else None
    return models.ObjectLifecycleRule(
        name=name,
        action=action,
        time_amount=9,
        time_unit="DAYS",
        is_enabled=is_enabled,
        object_name_filter=told,
    )


def put_rules(bucket: DoubleBucket, *rules: Any) -> None:
    details = oci.object_storage.models.PutObjectLifecyclePolicyDetails(items=list(rules))
    make_factory(bucket.access())().put_object_lifecycle_policy(NAMESPACE, bucket.name, details)


# --- lifecycle


async def test_the_rule_removes_idle_threads_and_no_segment_of_a_live_one(
    bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    backend = bucket.backend()
    for name in ("idle", "live"):
        await backend.write_state(name, {"n": 0})
    lifecycle.write(backend.bucket, lifecycle.make_rule(DEFAULT_PREFIX, 90))
    bucket.double.age(91 * 86_400)
    await backend.write_state("live", {"n": 1})
    assert bucket.double.expire() == 1
    assert await backend.list_threads() == ["live"]
    states = [await backend.load("live", it.checkpoint_id) for it in await backend.history("live")]
    assert states == [{"n": 1}, {"n": 0}]
    await backend.close()


async def test_other_rules_of_the_policy_stay(bucket: DoubleBucket) -> None:
    put_rules(bucket, rule("theirs", inclusion_prefixes=["logs/"]))
    objects = bucket.objects()
    assert lifecycle.write(objects, lifecycle.make_rule("a/", 90)) == 1
    assert lifecycle.write(objects, lifecycle.make_rule("b/", 90)) == 2
    assert lifecycle.write(objects, lifecycle.make_rule("a/", 30)) == 2
    found = {it["name"]: it["timeAmount"] for it in lifecycle.read(objects).rules}
    assert found["theirs"] == 9
    assert sorted(found.values()) == [9, 30, 90]


async def test_rules_that_the_sdk_does_not_know_stay_as_they_are(bucket: DoubleBucket) -> None:
    later = {"name": "later", "timeUnit": "WEEKS", "timeAmount": 2, "isEnabled": True, "more": [1]}
    put_rules(bucket, rule("theirs"))
    bucket.stored.policy[1]["items"].append(later)
    before = list(bucket.stored.policy[1]["items"])
    assert lifecycle.write(bucket.objects(), lifecycle.make_rule("a/", 90)) == 2
    assert bucket.stored.policy[1]["items"][:2] == before


async def test_a_policy_with_as_many_rules_as_the_service_allows_stays(
    bucket: DoubleBucket,
) -> None:
    put_rules(bucket, *(rule(f"rule {n}") for n in range(1000)))
    before, objects = bucket.stored.policy, bucket.objects()
    with pytest.raises(BackendError, match="1000"):
        lifecycle.write(objects, lifecycle.make_rule("a/", 90))
    assert bucket.stored.policy == before


async def test_a_policy_that_changes_meanwhile_is_not_overwritten(
    bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, read = bucket.objects(), lifecycle.read

    def late(objects: Any) -> Any:
        found = read(objects)
        put_rules(bucket, rule("theirs"))
        return found

    monkeypatch.setattr(lifecycle, "read", late)
    with pytest.raises(ConflictError, match="changed meanwhile"):
        lifecycle.write(objects, lifecycle.make_rule("a/", 90))
    assert [it["name"] for it in read(objects).rules] == ["theirs"]


@pytest.mark.parametrize(
    ("theirs", "reaches"),
    [
        (partial(rule, "all"), True),
        (partial(rule, "ours", inclusion_prefixes=["p/"]), True),
        (partial(rule, "segments", inclusion_prefixes=["p/v1/segments/0"]), True),
        (partial(rule, "archive", action="ARCHIVE", inclusion_prefixes=["p"]), True),
        (partial(rule, "pattern", inclusion_patterns=["p/*"]), True),
        (partial(rule, "identity", inclusion_prefixes=["p/v1/st"]), True),
        (partial(rule, "heads", inclusion_prefixes=["p/v1/heads/"]), False),
        (partial(rule, "logs", inclusion_prefixes=["logs/"]), False),
        (partial(rule, "off", is_enabled=False), False),
        (partial(rule, "cheaper", action="INFREQUENT_ACCESS"), False),
        (partial(rule, "excluded", exclusion_patterns=["p/v1/*"]), False),
    ],
    ids=lambda it: getattr(it, "args", [None])[0],
)
async def test_doctor_reports_rules_that_reach_segments(
    theirs: Any, reaches: bool, bucket: DoubleBucket
) -> None:
    put_rules(bucket, theirs())
    backend = bucket.backend("p/")
    (found,) = [it for it in await backend.facts() if it.name == "lifecycle"]
    assert (found.verdict == "fail") == reaches
    await backend.close()


async def test_doctor_reports_numbers_and_the_clock(bucket: DoubleBucket) -> None:
    backend = bucket.backend()
    await backend.write_state("t", {})
    found = {it.name: it for it in await backend.facts()}
    assert found["threads"].value == "1 (a head each; 0 segments)"
    assert found["clock"].verdict == "ok"
    bucket.double.offset = timedelta(minutes=3)
    await backend.load("t")
    assert {it.name: it for it in await backend.facts()}["clock"].verdict == "warn"
    await backend.close()


@pytest.mark.parametrize("days", [0, -1, 10**6])
async def test_days_are_checked(days: int) -> None:
    with pytest.raises(InvalidArgumentError, match="days="):
        lifecycle.make_rule("", days)


def test_the_command_prints_and_writes_the_rule(bucket: DoubleBucket, run: test_cli.Run) -> None:
    url = bucket.url("agents")
    code, printed, errors = run("oci", "lifecycle", "--days", "7", "--url", url)
    assert code == 0, errors
    wanted = lifecycle.make_rule("agents/", 7)
    assert json.loads(printed) == wanted
    assert bucket.stored.policy is None
    _, written, errors = run("oci", "lifecycle", "--days", "7", "--write", "--url", url)
    assert json.loads(written) == wanted
    assert "0 other rules stayed" in errors
    assert [it["name"] for it in bucket.stored.policy[1]["items"]] == [wanted["name"]]
    code, told, errors = run("doctor", "--url", url)
    assert code == 0, told + errors
    assert "after 7 days" in told
    code, _, errors = run("oci", "lifecycle", "--url", "memory://")
    assert (code, "oci://" in errors) == (1, True)


# --- the Locus SDK's objects


def theirs(bucket: DoubleBucket, prefix: str) -> BucketOfTheirs:
    made = BucketOfTheirs(bucket.name, NAMESPACE, prefix)
    made._client = make_factory(bucket.access())()
    return made


async def test_checkpoints_of_the_locus_sdk_are_imported(bucket: DoubleBucket) -> None:
    source = theirs(bucket, "sdk/")
    for thread in ("t", "t/u"):
        state = AgentState(agent_id="a")
        for n in range(3):
            state = state.with_message(Message.user(f"{thread} {n}"))
            await source.save(state, thread, f"v{n}", {"n": n})
    ours = bucket.backend("ours/")
    assert await import_locus(ours, bucket.url("sdk")) == Counts(2, 0)
    assert await import_locus(ours, bucket.url("sdk")) == Counts(0, 2)
    for thread in ("t", "t/u"):
        versions = await ours.history(thread)
        assert [it.checkpoint_id for it in versions] == ["v2", "v1", "v0"]
        assert [it.metadata for it in versions] == [{"n": 2}, {"n": 1}, {"n": 0}]
        found = await ours.load(thread)
        assert [it["content"] for it in found["messages"]] == [f"{thread} {n}" for n in range(3)]
    await ours.close()


async def test_the_pointer_of_the_locus_sdk_names_the_head(bucket: DoubleBucket) -> None:
    source = theirs(bucket, "sdk/")
    for n in range(2):
        await source.save(AgentState(agent_id=f"a{n}"), "t", f"v{n}")
    bucket.objects().store("sdk/t/_latest", b"v0")
    ours = MemoryBackend()
    await import_locus(ours, bucket.url("sdk"))
    assert (await ours.load("t"))["agent_id"] == "a0"


async def test_a_damaged_object_of_the_locus_sdk_is_named(bucket: DoubleBucket) -> None:
    source = theirs(bucket, "sdk/")
    for thread in ("bad", "good", "foreign"):
        await source.save(AgentState(agent_id="a"), thread, "v")
    bucket.objects().store("sdk/bad/v.json", b"{")
    bucket.objects().store("sdk/foreign/w.json", b"{}")
    ours = MemoryBackend()
    with pytest.raises(IntegrityError, match="sdk/"):
        await import_locus(ours, bucket.url("sdk"))
    assert await ours.scan() == ["good"]
