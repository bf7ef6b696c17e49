"""``locus-store bench``."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import sqlalchemy as sa
import test_cli
import test_cli_threads
from lazily import TESTS_RUN
from test_cli_threads import CHAT, save

if TESTS_RUN:
    from locus_store.cli import benchmark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run
sql_url = test_cli_threads.sql_url

QUICK = ("--seconds", "1", "--state-bytes", "2000", "--writers", "2")


def tables(url: str) -> set[str]:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_every_operation_is_measured_in_tables_that_are_dropped(run: Run, sql_url: str) -> None:
    save(sql_url, "t", *CHAT)
    before, listed = tables(sql_url), run("threads", "history", "t", "--json")
    mark = "&" if "?" in sql_url else "?"
    code, out, errors = run("bench", *QUICK, "--json", "--url", f"{sql_url}{mark}prefix=locus_")
    assert (code, errors.count("\n")) == (0, 1), errors
    told = json.loads(out)
    found = {it["operation"]: it for it in told["results"]}
    assert found.keys() == {*benchmark.OPERATIONS, benchmark.COLD}
    assert told["database"] in sql_url
    for it in found.values():
        assert (it["state_bytes"], it["writers"]) == (2000, 2)
        assert it["calls"] >= 2
        assert 0 < it["p50_ms"] <= it["p99_ms"]
        assert it["per_second"] > 0
    assert tables(sql_url) == before
    assert run("threads", "history", "t", "--json") == listed


def end_by_sigterm() -> None:
    handler: Any = signal.getsignal(signal.SIGTERM)
    handler(signal.SIGTERM, None)  # the default one would end the tests


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, None])
def test_the_tables_are_dropped_when_it_ends_early(
    run: Run, sql_url: str, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None
) -> None:
    save(sql_url, "t", *CHAT)
    before, during, kept = tables(sql_url), set[str](), signal.getsignal(signal.SIGTERM)

    async def ended(*_: Any) -> float:
        during.update(tables(sql_url))
        if error is None:
            end_by_sigterm()
        raise error or AssertionError

    monkeypatch.setitem(benchmark.OPERATIONS, "save", ended)
    code, out, _ = run("bench", *QUICK)
    assert (code, out) == (1 if error is OSError else 130, "")
    assert during > before
    assert signal.getsignal(signal.SIGTERM) is kept
    assert tables(sql_url) == before


def test_the_table_can_be_written_as_a_picture(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("bench", *QUICK, "--svg", "bench.svg")
    assert code == 0
    assert out.splitlines()[0].split()[:3] == ["operation", "state", "writers"]
    picture = (tmp_path / "bench.svg").read_text(encoding="utf-8")
    shown = "".join(ET.fromstring(picture).itertext()).replace("\xa0", " ")  # noqa: S314 (ours)
    assert "load, cold" in shown
    assert "font-face" not in picture


@pytest.mark.parametrize("url", ["memory://", "file:///tmp/x", "redis://127.0.0.1:1"])
def test_a_url_without_tables_is_refused(run: Run, url: str) -> None:
    code, out, errors = run("bench", "--url", url)
    assert (code, out) == (1, "")
    assert "bench needs a SQL database" in errors


@pytest.mark.parametrize("wrong", [("--seconds", "0"), ("--writers", "0"), ("--state-bytes", "-1")])
def test_wrong_numbers_are_refused(run: Run, wrong: tuple[str, str]) -> None:
    assert run("bench", *wrong)[0] == 2
