"""Access to the pages: hosts, origins, login, sessions, tokens, tenants and rights."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from lazily import TESTS_RUN
from pages_reader import BASE, Seen, Site

from locus_store import InvalidArgumentError, MemoryBackend, Quota, open_checkpointer

if TESTS_RUN:
    import httpx

    from locus_store.inspector import Caller, access, app
    from locus_store.inspector.access import Codes, Sessions
    from locus_store.inspector.application import WRITING, Inspector
    from locus_store.inspector.page_requests import Redirect
    from locus_store.server.options import ServeOptions
    from locus_store.server.serving import log_to_stderr, mount_pages, serve, start_page
    from locus_store.service import app as service_app
    from locus_store.service.access import LOOPBACK, TokenFile
    from locus_store.service.application import Parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from locus_store.inspector.page_requests import PageRequest

pytestmark = pytest.mark.anyio

READ = frozenset({"read"})
SAME = {"sec-fetch-site": "same-origin"}


class Served:
    """The pages beside a service with two tokens."""

    def __init__(self, folder: Path, **options: Any) -> None:
        tokens = TokenFile(folder / "tokens.json")
        self.tokens = tokens
        self.secrets = {
            name: tokens.add(name, name, ["read", *more])
            for name, more in (("acme", []), ("globex", ["write"]))
        }
        self.backend = open_checkpointer(f"sqlite:///{folder}/a.db").backend
        self.settings = ServeOptions(
            token_file=str(folder / "tokens.json"), inspector=True, **options
        )
        self.app = mount_pages(service_app(self.backend), self.backend, None, self.settings)

    def client(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url=f"{BASE}/inspector/", **options)

    async def entered(self, name: str) -> httpx.AsyncClient:
        """A browser that the token of a name logged in."""
        client = self.client()
        await client.post("login", data={"token": self.secrets[name]}, headers=SAME)
        return client


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    async with made.backend:
        yield made


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A writing route, and the threads that it was called for."""
    called: list[str] = []

    async def handler(visit: PageRequest) -> Redirect:
        called.append(visit.thread)
        return Redirect("threads")

    monkeypatch.setitem(WRITING, "change", handler)
    return called


# --- the machine itself


@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "127.0.0.2", "", "[::2]"])
async def test_a_host_that_is_not_allowed_is_refused(host: str) -> None:
    """A name of another site may lead to this machine (DNS rebinding)."""
    site = Site(MemoryBackend())
    assert (await site.client.get("/threads", headers={"host": host})).status_code == 421
    for own in ("localhost:8321", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert (await site.client.get("/threads", headers={"host": own})).status_code == 200


async def test_without_authorize_only_this_machine_is_answered() -> None:
    for client, headers, status in (
        ("127.0.0.1", {}, 200),
        ("192.0.2.1", {}, 403),
        ("127.0.0.1", {"x-forwarded-for": "192.0.2.1"}, 403),
    ):
        transport = httpx.ASGITransport(app(MemoryBackend()), client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as browser:
            assert (await browser.get("/threads", headers=headers)).status_code == status


async def test_an_application_decides_who_sees_what() -> None:
    async def authorize(request: Any) -> Caller | None:
        name = request.headers.get("x-user")
        return Caller(name, None, READ) if name else None

    site = Site(MemoryBackend(), app(MemoryBackend(), authorize=authorize), "http://any.example")
    assert (await site.get("threads")).status_code == 403
    found = await site.client.get("/threads", headers={"x-user": "alex"})
    assert "Logged in as alex" in Seen(found).text


# --- the login of the operator


class Operated:
    """The pages with login codes."""

    def __init__(self, backend: Any = None) -> None:
        self.codes = Codes(READ)
        parts = Parts(backend or MemoryBackend(), None, None)
        self.app = Inspector(parts, self.codes, allow_write=False, allowed_hosts=LOOPBACK)

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=BASE)


async def test_a_login_link_works_once() -> None:
    operated = Operated()
    code = operated.codes.generate_code()
    mine, other = operated.browser(), operated.browser()
    assert (await mine.get("/threads")).status_code == 401
    entered = await mine.get("/login", params={"code": code})
    assert entered.status_code == 200
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path" not in cookie
    assert (await mine.get("/threads")).status_code == 200
    stolen = await other.get("/login", params={"code": code})
    assert stolen.status_code == 401
    assert "set-cookie" not in stolen.headers
    assert (await other.get("/threads")).status_code == 401


async def test_a_login_link_works_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    operated = Operated()
    code = operated.codes.generate_code()
    now = access.monotonic()
    monkeypatch.setattr(access, "monotonic", lambda: now + 61)
    assert (await operated.browser().get("/login", params={"code": code})).status_code == 401


async def test_a_program_without_a_session_gets_a_message(served: Served) -> None:
    browsers = (Operated().browser(), "open a new link"), (served.client(), "Bearer TOKEN")
    for browser, advice in browsers:
        answer = await browser.get("threads", params={"format": "json"})
        found = answer.json()
        assert (answer.status_code, found["status"]) == (401, 401)
        assert advice in found["message"]


async def test_a_cookie_that_was_changed_or_is_old_is_not_a_session() -> None:
    operated = Operated()
    sessions = operated.codes.sessions
    value = sessions.begin("operator")
    wrong = [value[:-1], value.replace("operator", "Operator"), f"9{value}", "", ".", "x", "ä" * 99]
    wrong += [Sessions(b"another key").begin("operator"), sessions.begin("0" * 64)]
    for it in wrong:
        cookie = {"cookie": f"{sessions.cookie}={it}".encode()}
        answer = await operated.browser().get("/threads", headers=cookie)  # type: ignore[arg-type]
        assert answer.status_code == 401, it
    parts = value.split(".")
    assert sessions.find(value) is not None
    assert sessions.find(".".join(["1", *parts[1:]])) is None


def test_the_file_that_leads_to_a_login_link_is_its_owners() -> None:
    path = start_page("http://127.0.0.1:1/login?code=a&b")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "code=a&amp;b" in path.read_text()


# --- tokens


async def test_a_token_opens_the_pages_of_its_tenant(served: Served) -> None:
    await served.backend.for_tenant("acme").write_state("secret of acme", {"n": 1})
    for name, sees in (("acme", True), ("globex", False)):
        browser = await served.entered(name)
        found = await browser.get("threads")
        assert f"Tenant: {name}" in Seen(found).text
        assert ("secret of acme" in found.text) is sees
        other = await browser.get("threads", params={"tenant": "acme"})
        assert ("secret of acme" in other.text) is sees
        answer = await browser.get("version", params={"thread": "secret of acme"})
        assert answer.status_code == (200 if sees else 404)


async def test_only_the_operator_sees_the_tenants_and_how_much_they_have(served: Served) -> None:
    names = ("acme", "<b>")
    for name in names:
        await served.backend.for_tenant(name).write_state(f"thread of {name}", {"n": 1})
    browser = await served.entered("acme")
    assert (await browser.get("tenants")).status_code == 404
    assert "tenants" not in (await browser.get("threads")).text
    operated = Operated(served.backend)
    operator = operated.browser()
    await operator.get("/login", params={"code": operated.codes.generate_code()})
    found = (await operator.get("/tenants", params={"format": "json"})).json()["tenants"]
    assert {it["name"]: it["threads"] for it in found} == dict.fromkeys(names, 1)
    page = Seen(await operator.get("/tenants"))
    assert "Quota" not in page.text
    for name in names:
        link = next(it for it in page.links if f"tenant={quote(name)}" in it)
        assert f"thread of {name}" in Seen(await operator.get(link)).text


async def test_the_quota_of_a_tenant_stands_on_the_page_of_tenants(tmp_path: Path) -> None:
    async with open_checkpointer(f"sqlite:///{tmp_path}/q.db", state_type=dict) as checkpointer:
        acme = checkpointer.backend.for_tenant("acme")
        await acme.set_quota(Quota(threads=3, saves_per_minute=60))
        await acme.write_state("t", {"n": 1})
        operated = Operated(checkpointer.backend)
        operator = operated.browser()
        await operator.get("/login", params={"code": operated.codes.generate_code()})
        page = Seen(await operator.get("/tenants", params={"tenant": "acme"}))
        assert "Quota of acme: 1 of 3 threads" in page.text
        assert " of 60 saves per minute" in page.text
        assert "bytes" not in page.text
        assert "Quota" not in Seen(await operator.get("/tenants")).text


async def test_a_session_ends_with_its_token_and_with_logout(served: Served) -> None:
    browser, other = await served.entered("acme"), await served.entered("globex")
    served.tokens.revoke("acme")
    assert (await browser.get("threads")).status_code == 401
    form = (await other.get("threads")).text
    token = re.search('name="form_token" value="([0-9a-f]+)"', form)
    assert token is not None
    refused = await other.post("logout", data={"form_token": "0" * 64}, headers=SAME)
    assert refused.status_code == 403
    assert (await other.get("threads")).status_code == 200
    await other.post("logout", data={"form_token": token[1]}, headers=SAME)
    assert (await other.get("threads")).status_code == 401


async def test_a_token_in_an_address_is_not_a_login(served: Served) -> None:
    secret = served.secrets["acme"]
    for page in ("login", "threads"):
        answer = await served.client().get(page, params={"token": secret, "code": secret})
        assert "set-cookie" not in answer.headers
        assert secret not in answer.text
    wrong = await served.client().post("login", data={"token": "locus_no"}, headers=SAME)
    assert wrong.status_code == 401
    bearer = {"authorization": f"Bearer {secret}"}
    found = await served.client().get("threads", headers=bearer, params={"format": "json"})
    assert found.json()["threads"] == []


async def test_the_service_stands_beside_its_pages(served: Served) -> None:
    client = served.client(follow_redirects=True)
    assert (await client.get(f"{BASE}/health")).json()["status"] == "ok"
    assert (await client.get(f"{BASE}/inspector")).url.path == "/inspector/"
    assert (await client.get(f"{BASE}/inspectors")).status_code == 404


@pytest.mark.parametrize("behind_proxy", [False, True])
async def test_the_cookie_of_a_proxy_is_for_tls_only(tmp_path: Path, behind_proxy: bool) -> None:
    served = Served(tmp_path, behind_proxy=behind_proxy)
    async with served.backend:
        login = {"data": {"token": served.secrets["acme"]}, "headers": SAME}
        answer = await served.client().post("login", **login)
    assert ("Secure" in answer.headers["set-cookie"]) is behind_proxy


@pytest.mark.parametrize(
    "options",
    [
        {"host": "0.0.0.0", "token_file": "t.json", "inspector": True},  # noqa: S104
        {"host": "127.0.0.1", "inspector": True, "behind_proxy": True},
    ],
)
def test_pages_are_not_served_to_strangers(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="behind-proxy"):
        serve("memory://", ServeOptions(**options), announce=print)


# --- rates


async def test_the_rate_of_the_service_counts_for_its_pages(tmp_path: Path) -> None:
    served = Served(tmp_path, rate=3.0)
    browser = await served.entered("acme")
    bearer = {"authorization": f"Bearer {served.secrets['acme']}"}
    found = [(await browser.get("login")).status_code for _ in range(5)]
    assert found == [200] * 5
    answers = [await browser.get("store") for _ in range(3)]
    assert 429 not in [it.status_code for it in answers]
    answers = [await browser.get("store", headers=bearer) for _ in range(9)]
    refused = next(it for it in answers if it.status_code == 429)
    assert refused.headers["retry-after"]
    assert refused.headers["x-frame-options"] == "DENY"


async def test_logins_are_bounded(served: Served) -> None:
    client = served.client()
    found = [
        (await client.post("login", data={"token": "no"}, headers=SAME)).status_code
        for _ in range(40)
    ]
    assert found[:10] == [401] * 10
    assert 429 in found


# --- writes


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"origin": BASE}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": BASE}, 403),
        ({"origin": "http://example.com"}, 403),
        ({"origin": "null"}, 403),
        ({}, 403),
    ],
)
async def test_a_form_of_another_site_writes_nothing(
    writes: list[str], headers: dict[str, str], status: int
) -> None:
    site = Site(MemoryBackend(), app(MemoryBackend(), allow_write=True))
    token = app_token(site)
    answer = await site.client.post(
        "/change", data={"thread": "t", "form_token": token}, headers=headers
    )
    assert answer.status_code == status
    assert writes == (["t"] if status == 303 else [])


def app_token(site: Site) -> str:
    inspector: Any = site.client._transport.app  # type: ignore[attr-defined]
    return str(inspector._entrance.sessions.make_form_token(":None"))


async def test_a_form_without_the_token_of_its_session_writes_nothing(writes: list[str]) -> None:
    site = Site(MemoryBackend(), app(MemoryBackend(), allow_write=True))
    for token in ("", "0" * 64, "ä"):
        data = {"thread": "t", "form_token": token}
        answer = await site.client.post("/change", data=data, headers=SAME)
        assert answer.status_code == 403
    assert writes == []


@pytest.mark.parametrize(("name", "allow_write"), [("acme", True), ("globex", False)])
async def test_writing_routes_exist_for_those_who_may_write_only(
    tmp_path: Path, writes: list[str], name: str, allow_write: bool
) -> None:
    served = Served(tmp_path, allow_write=allow_write)
    browser = await served.entered(name)
    for method in ("GET", "POST"):
        answer = await browser.request(method, "change", params={"thread": "t"}, headers=SAME)
        assert answer.status_code == 404
    assert writes == []


async def test_pages_are_not_changed_by_other_methods() -> None:
    site = Site(MemoryBackend())
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await site.client.request(method, "/threads", headers=SAME)
        assert answer.status_code == 405


async def test_each_change_is_printed_with_its_caller_tenant_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served(tmp_path, allow_write=True)
    for name in ("locus_store", "locus_store.inspector.changes", "uvicorn.error"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logger.level)
    log_to_stderr()
    async with served.backend:
        tenant = served.backend.for_tenant("globex")
        for name in ("v1", "v2"):
            await tenant.write_state("t\n", {"text": "content"}, checkpoint_id=name)
        browser = await served.entered("globex")
        page = Seen(await browser.get("rewind", params={"thread": "t\n", "version": "v1"}))
        form = next(it for it in page.forms if "rewind" in it.action)
        answer = await browser.post(form.action, data=form.fields, headers=SAME)
    assert answer.status_code == 303
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    place = "rewound thread 't\\n': caller 'globex', tenant 'globex', namespace '', version 'v1'"
    assert told[0].endswith(place)


async def test_logs_hold_no_token_and_no_content(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "locus_store")
    await served.backend.for_tenant("acme").write_state("t", {"text": "content of acme"})
    browser = await served.entered("acme")
    for page in ("threads", "version?thread=t", "version?thread=t&path=no", "no"):
        await browser.get(page)
    assert served.secrets["acme"] not in caplog.text
    assert "content of acme" not in caplog.text
