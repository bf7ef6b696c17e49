"""One request for a page: its parameters, the caller, and what it may read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from locus_store.backend import StorageBackend
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.inspector.access import Viewer
from locus_store.inspector.bounds import INLINE
from locus_store.inspector.escapes import decode_typed
from locus_store.inspector.work import Blames, Descriptions, Jobs, Seen, States
from locus_store.messages import BaseMessageLog
from locus_store.open import Storage
from locus_store.service.application import Parts
from locus_store.service.exchange import DIGITS
from locus_store.timeline.bisect import parse_json_or_text
from locus_store.timeline.graph import find_newer
from locus_store.timeline.paths import Step
from locus_store.types import Version

if TYPE_CHECKING:
    Found: TypeAlias = list[Version] | None

T = TypeVar("T")

Method: TypeAlias = Literal["GET", "POST"]
MOST_PARAMETERS = 100
ENCODED = "encoded-"
ESCAPED = "escaped-"


class Query:
    """The parameters of a request.

    Those of the field ``at`` count where they are not given. ``encoded-x`` is the parameter ``x``,
    percent-encoded once more, so that a form leaves its line ends. ``escaped-x`` is ``x`` with
    escapes for characters that cannot be seen.
    """

    def __init__(self, text: str) -> None:
        given = _parse_pairs(text)
        self._values = _parse_pairs(given.pop("at", ""))
        for name, value in given.items():
            form = next(it for it in _DECODERS if name.startswith(it))
            self._values[name.removeprefix(form)] = _DECODERS[form](value)

    def get_text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def get_optional(self, name: str) -> str | None:
        """Return a parameter; ``None`` if it is missing or empty."""
        return self._values.get(name) or None

    def require(self, name: str) -> str:
        """Return a parameter.

        Raises:
            InvalidArgumentError: It is missing or empty.
        """
        if found := self.get_optional(name):
            return found
        raise InvalidArgumentError(f"the address of this page needs the parameter {name!r}")

    def get_number(self, name: str, default: int = 0) -> int:
        """Return a whole number from 0 on; refuse anything else."""
        text = self.get_text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS):
            raise InvalidArgumentError(f"{name}={text[:40]!r} must be a whole number")
        return int(text)

    def get_pair(self, name: str) -> tuple[str, Any] | None:
        """Return a key and a value, written as ``key=value``; ``None`` if missing or empty.

        Raises:
            InvalidArgumentError: It has no equals sign.
        """
        key, equals, value = self.get_text(name).strip().partition("=")
        if not key and not equals:
            return None
        if not equals:
            raise InvalidArgumentError(f"write {name} as key=value; the value is JSON or a string")
        return key.strip(), parse_json_or_text(value)

    def get_time(self, name: str) -> datetime | None:
        """Return a time, in UTC unless it says otherwise; ``None`` if it is missing or empty."""
        text = self.get_text(name)
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        except (ValueError, OverflowError) as exc:
            raise InvalidArgumentError(
                f"{name}={text[:40]!r} is not a time; write it as 2026-01-31T12:00"
            ) from exc


_Decoder: TypeAlias = Callable[[str], str]
_DECODERS: Final[dict[str, _Decoder]] = {ENCODED: unquote, ESCAPED: decode_typed, "": str}


def _parse_pairs(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS))
    except ValueError as exc:
        raise InvalidArgumentError("the address has too many parameters") from exc


@dataclass(frozen=True)
class PageRequest:
    """A request for a page."""

    method: Method
    query: Query
    viewer: Viewer
    tenant: str | None
    """The tenant that is looked at; ``None``: that of the storage."""

    parts: Parts
    links: Links
    jobs: Jobs
    states: States
    blames: Blames
    descriptions: Descriptions
    poller: Poller
    may_write: bool

    @property
    def may_choose_tenant(self) -> bool:
        """The viewer may read other tenants."""
        return self.viewer.is_operator and self.parts.threads.capabilities.tenants

    @cached_property
    def thread(self) -> str:
        return self.query.require("thread")

    @cached_property
    def namespace(self) -> str:
        return self.query.get_text("namespace")

    def to(self, page: str, **query: str | int | None) -> str:
        """Return the address of a page of the same thread and namespace."""
        return self.links.to(page, thread=self.thread, namespace=self.namespace, **query)

    def require(self, value: T | None, version: str | None = None) -> T:
        """Return the value that belongs to the thread, or to a version of it.

        Raises:
            NotFoundError: It is ``None``.
        """
        if value is not None:
            return value
        if version is not None:
            raise NotFoundError(f"there is no version {version!r} in thread {self.thread!r}")
        raise NotFoundError(
            f"there is no thread {self.thread!r}, or it has no version in this namespace; it may"
            " have a message log"
        )

    async def read_version(self, version: str | None) -> Seen:
        """Return a version of the thread with its state; ``None``: the head.

        Raises:
            NotFoundError: It does not exist.
        """
        seen = await self.states.read(self.parts.threads, self.thread, version, self.namespace)
        return self.require(seen, version)

    async def find_version(self, version: str | None = None) -> Version:
        """Return a version of the thread without its state, or the head; ``NotFoundError``."""
        found = await self.parts.threads.version(self.thread, version, namespace=self.namespace)
        return self.require(found, version)

    async def run_heavy(self, size: int, work: Callable[[Step], T]) -> T:
        """Return the result of work on so many bytes, which leaves the event loop if many."""
        return work(lambda: None) if size <= INLINE else await self.jobs.run(work)

    @property
    def log(self) -> BaseMessageLog:
        """The message log of all threads."""
        return Storage(self.parts.threads).messages()

    async def has_log(self) -> bool:
        """Return whether the thread has a message log, and its root namespace was asked for."""
        if self.namespace or not self.parts.threads.capabilities.messages:
            return False
        return bool(await self.log.logs(self.thread, limit=1))

    def make_page(self, template: str, title: str, values: dict[str, Any]) -> Page:
        """Return a page of the thread, with the names of the thread and of the namespace."""
        place = {"thread_id": self.thread, "namespace": self.namespace}
        return Page(template, title, place | values)

    def encode_place(self, **query: str | int | None) -> str:
        """Return the place of this page for the field ``at`` of a form."""
        return self.links.encode_place(thread=self.thread, namespace=self.namespace, **query)


@dataclass(frozen=True)
class Page:
    """The answer of a page: a template and its values, which are also its JSON."""

    template: str
    title: str
    values: dict[str, Any]
    status: int = 200


@dataclass(frozen=True)
class Download:
    """The answer of a download."""

    name: str
    content: bytes
    media_type: str = "application/json"
    is_inline: bool = False


@dataclass(frozen=True)
class Redirect:
    """The answer that sends the browser to another page."""

    address: str


Answer: TypeAlias = "Page | Download | Redirect"
Handler: TypeAlias = "Callable[[PageRequest], Awaitable[Answer]]"


HOME = "threads"


class Links:
    """The addresses that a page links to.

    Args:
        tenant: The tenant that the operator chose; every link keeps it.
    """

    def __init__(self, tenant: str | None = None) -> None:
        self._kept = {} if tenant is None else {"tenant": tenant}

    def to(self, page: str, **query: str | int | None) -> str:
        """Return the address of a page; a parameter that is ``None`` or empty is left out."""
        given = {name: it for name, it in query.items() if it is not None and it != ""}
        text = urlencode(self._kept | given, quote_via=quote)
        return f"{page}?{text}" if text else page

    def encode_place(self, **query: str | int | None) -> str:
        """Return parameters as the value of a form's field ``at``.

        A form changes line ends in a value, and ids may have them; here they are encoded.
        """
        return self.to("", **query).removeprefix("?")


SECONDS: Final = 0.5
"""Between the beginnings of two polls of one line."""


class Poller:
    """The polls of one process: at most one each half second for each line.

    A poll begins after all of the requests that it answers, so that no viewer gets an older head
    than before. The first one begins at once; later requests wait for the next one.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str | None, str, str], _Line] = {}

    async def find_newer(
        self, backend: StorageBackend, thread_id: str, sequence: int, *, namespace: str
    ) -> Found:
        key = backend.tenant, thread_id, namespace
        if key not in self._lines:
            self._lines = {name: it for name, it in self._lines.items() if not it.is_idle()}
            self._lines[key] = _Line(backend, thread_id, namespace)
        found = await self._lines[key].find_after(sequence)
        return found and [it for it in found if it.mark.sequence > sequence]


@dataclass
class _Line:
    backend: StorageBackend
    thread_id: str
    namespace: str
    next: asyncio.Task[Found] | None = None
    """The poll that has not begun to read."""

    least: int = 0
    """The lowest sequence above which versions were asked for."""

    begun: float = -SECONDS

    def is_idle(self) -> bool:
        return self.next is None and monotonic() > self.begun + SECONDS

    async def find_after(self, sequence: int) -> Found:
        """Return the versions above a sequence, and maybe some before it."""
        if self.next is None:
            self.least = sequence
            self.next = asyncio.create_task(self._poll())
            self.next.add_done_callback(_read)
        self.least = min(self.least, sequence)
        return await asyncio.shield(self.next)

    async def _poll(self) -> Found:
        await asyncio.sleep(self.begun + SECONDS - monotonic())
        self.next, self.begun = None, monotonic()
        return await find_newer(self.backend, self.thread_id, self.least, namespace=self.namespace)


def _read(poll: asyncio.Task[Found]) -> None:
    """Read the error of a poll whose viewers have all left."""
    if not poll.cancelled():
        poll.exception()
