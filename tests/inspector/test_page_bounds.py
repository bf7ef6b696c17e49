"""Heavy work leaves the event loop, ends with the caller, and makes pages within their bounds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from lazily import TESTS_RUN
from pages_reader import Site
from services import parts
from test_changes import client

from locus_store import MemoryBackend
from locus_store.timeline.readable import find_differences
from locus_store.timeline.report import report
from locus_store.types import PendingWrite
from locus_store.values.frames import encode_value
from locus_store.versions import JSON_WRITE

if TESTS_RUN:
    from locus_store.inspector import app, work, work as states_of_pages
    from locus_store.inspector.bounds import render_line
    from locus_store.inspector.pages import store as store_pages, versions
    from locus_store.inspector.work import Jobs, States
    from locus_store.service.exchange import RefusalError

pytestmark = pytest.mark.anyio


def write(value: Any, at: int = 0) -> PendingWrite:
    return PendingWrite("task", at, f"c{at}", JSON_WRITE, encode_value(value, 10**9), "")


def in_threads(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[bool]:
    """Return a list that grows with each call of a function: was it in the main thread?"""
    real, found = getattr(module, name), []

    def called(*args: Any, **kwargs: Any) -> Any:
        found.append(threading.current_thread() is threading.main_thread())
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, called)
    return found


async def test_a_large_pending_write_of_a_small_state_is_read_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = MemoryBackend()
    await backend.write_state("t", {"a": 1}, checkpoint_id="v1")
    await backend.put_writes("t", "v1", [write(["abcd<"] * 100_000)])
    found = in_threads(monkeypatch, versions, "decode_written_value")
    page = await Site(backend).page("writes", thread="t", version="v1")
    assert found == [False]
    assert len(page.response.content) < 20_000


async def test_the_writes_of_a_page_are_bounded_in_bytes_and_the_next_page_has_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "MOST_BYTES", 2_500)
    backend = MemoryBackend()
    await backend.write_state("t", {"a": 1}, checkpoint_id="v1")
    await backend.put_writes("t", "v1", [write("x" * 1_000, at) for at in range(5)])
    site, seen, start = Site(backend), [], 0
    while start is not None:
        page = await site.json("writes", thread="t", version="v1", start=start)
        seen.append([it["channel"] for it in page["writes"]])
        start = page["next"]
    assert seen == [["c0", "c1"], ["c2", "c3"], ["c4"]]


async def test_items_are_encoded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, store, _ = parts(dimension=2)
    for key in ("one", "two"):
        await store.put_with_embedding(("n",), key, ["v"] * 10, [1.0, 0.0])
    found = in_threads(monkeypatch, store_pages, "_make_row")
    encoded = in_threads(monkeypatch, store_pages, "encode")
    async with client(app(backend, store)) as asking:
        for page in ("items", "item", "value"):
            answer = await asking.get(page, params={"segments": '["n"]', "key": "one"})
            assert answer.status_code == 200
    assert (len(found), len(encoded)) == (4, 2)
    assert not any(found + encoded)


def test_json_is_written_no_further_than_the_bound() -> None:
    class Refused(list[Any]):
        def __iter__(self) -> Any:
            yield "x" * 50
            raise AssertionError("read on")

    told = render_line({"a": Refused([1])}, 40)
    assert (told.text, told.is_cut) == ('{"a": ["' + "x" * 32, True)
    assert render_line({"a": 1}, 8) == render_line({"a": 1})


async def test_pages_as_json_are_bounded_as_html() -> None:
    backend = MemoryBackend()
    long = "x" * 1_000_000
    said = [{"role": "user", "content": [{"type": "blob", "data": [long]}, long]}]
    about = {"a": long, "many": [1] * 100_000} | {f"k{at}": "v" * 200 for at in range(100)}
    await backend.write_state("t", {"messages": said, "text": long}, metadata=about)
    site = Site(backend)
    for page in ("version", "timeline", "diff", "writes", "threads"):
        answer = await site.get(page, thread="t", format="json")
        assert (answer.status_code, len(answer.content) < 30_000) == (200, True), page
    told = (await site.json("version", thread="t"))["version"]["about"]
    assert told["a"] == "x" * 240 + "…"
    assert told["…"].endswith(" more")


# --- jobs


async def test_a_state_is_read_once_for_all_that_wait_and_when_a_job_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, jobs, calls = MemoryBackend(), Jobs(), []
    for name in ("v1", "v2"):
        await backend.write_state("t", {"n": name}, checkpoint_id=name)
    real = states_of_pages.decode_state_alone

    def counted(stored: Any, *rest: Any) -> Any:
        calls.append(stored.version.checkpoint_id)
        return real(stored, *rest)

    monkeypatch.setattr(states_of_pages, "decode_state_alone", counted)
    states = States(jobs)
    async with jobs.wait_for_turn(), jobs.wait_for_turn():
        asked = [asyncio.ensure_future(states.read(backend, "t", None, "")) for _ in range(5)]
        left = [asyncio.ensure_future(states.read(backend, "t", "v1", "")) for _ in range(2)]
        await asyncio.sleep(0.02)
        for it in (*left, asked[0]):
            it.cancel()
        await asyncio.sleep(0.02)
        assert calls == []
    found = await asyncio.gather(*asked[1:])
    assert [it.state for it in found if it] == [{"n": "v2"}] * 4
    assert calls == ["v2"]


@pytest.mark.full
async def test_the_origins_of_a_large_state_are_computed_once_beside_one_copy_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, jobs, calls = MemoryBackend(), Jobs(), []
    await backend.write_state("t", {"text": "x" * 80_000_000, "n": 1})
    real = work.blame

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(work, "blame", counted)
    kept, states = work.Blames(jobs), States(jobs)
    for path in ("text", "n"):
        seen = await states.read(backend, "t", None, "")
        assert seen is not None
        assert await kept.find(backend, seen, (path,)) is not None
    assert len(calls) == 1


async def test_a_step_ends_a_report_in_its_thread() -> None:
    backend = MemoryBackend()
    await backend.write_state("t", {"many": list(range(50))})
    calls: list[bool] = []

    def step() -> None:
        calls.append(threading.current_thread() is threading.main_thread())
        if len(calls) == 20:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await report(backend, "t", step=step)
    assert calls[-1] is False


async def test_a_job_that_its_caller_left_keeps_its_place_until_its_thread_ends() -> None:
    jobs, begun, ends = Jobs(), threading.Semaphore(0), threading.Event()

    def work(step: Any) -> None:
        begun.release()
        ends.wait(10)
        step()

    left = [asyncio.ensure_future(jobs.run(work)) for _ in range(2)]
    while begun._value < 2:  # noqa: ASYNC110  (a semaphore of threads)
        await asyncio.sleep(0.001)
    for it in left:
        it.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    third = asyncio.ensure_future(jobs.run(lambda _: "done"))
    await asyncio.sleep(0.02)
    assert not third.done()
    ends.set()
    assert await asyncio.wait_for(third, 10) == "done"


async def test_a_job_in_a_thread_ends_at_its_next_step_once_its_time_is_over() -> None:
    def work(step: Any) -> None:
        while True:
            step()

    with pytest.raises(RefusalError):
        await asyncio.wait_for(Jobs(0.05).run(work), 10)


def test_a_step_ends_a_comparison() -> None:
    calls: list[None] = []

    def step() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise TimeoutError

    old = {str(at): [at] for at in range(100)}
    with pytest.raises(TimeoutError):
        list(find_differences(old, {name: [*it, 1] for name, it in old.items()}, step=step))
