"""The base of the adapters over a message log: opening, tenants, closing, names of threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from locus_store.backend import StorageBackend, TakesTurns
from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError, TurnError
from locus_store.messages import BaseMessageLog
from locus_store.open import Storage, open_message_log
from locus_store.turns import HasTurns
from locus_store.types.arguments import check_text
from locus_store.types.messages import LogInfo, LogSnapshot
from locus_store.types.tenants import Closing, ForTenants
from locus_store.values.encoding import encode_canonical, require_json
from locus_store.values.msgpack import FORM, freeze, has_no_tag, thaw

PAGE: Final = 1000
"""Logs that a list reads at a time."""

MAX_PLACES: Final = 4096
"""Ids of which an adapter remembers the thread."""

T = TypeVar("T")
Listed = TypeVar("Listed", "LogInfo", "LogSnapshot")


class OpenedByUrl(ForTenants):
    """An adapter over one object of this package, which a URL can open."""

    part: ClassVar[str] = "log"
    """The name of the attribute that has the object."""

    open_part: ClassVar[Callable[..., Any]] = staticmethod(open_message_log)
    """Opens the object."""

    own_options: ClassVar[frozenset[str]] = frozenset()
    """Options of the adapter among those of ``from_url``."""

    _owns = False
    """The adapter has opened the object."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return an adapter for a URL.

        Args:
            url: See ``open_message_log``, or the function that opens what the adapter is over.
            options: Of the adapter, and of that function.
        """
        own = {name: options.pop(name) for name in cls.own_options & options.keys()}
        opened: Self = cast("Any", cls)(cls.open_part(url, **options), **own)
        opened._owns = True
        return opened

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, self.part)!r})"

    def _enter(self, tenant: str) -> None:
        setattr(self, self.part, getattr(self, self.part).for_tenant(tenant))
        self._owns = False


class Adapter(OpenedByUrl, Closing):
    """An adapter that ``async with`` closes."""

    async def close(self) -> None:
        """Close what the adapter has opened; idempotent, and usable again afterwards."""
        if self._owns:
            await getattr(self, self.part).close()


class LogAdapter(HasTurns, Adapter):
    """An adapter over a message log; ``busy`` and ``release_turn`` take the id of a thread.

    Args:
        log: A message log, or a backend that has message logs; ``close`` leaves it open.
        user_id: The user of the threads, so that ``locus-store forget --user`` finds them.

    Raises:
        InvalidArgumentError: ``user_id`` is not valid.
        UnsupportedError: The backend has no message logs.
    """

    def __init__(self, log: BaseMessageLog | StorageBackend, *, user_id: str | None = None) -> None:
        self.log = log if isinstance(log, BaseMessageLog) else Storage(log).messages()
        self.user_id = check_text("user_id", user_id, optional=True)

    def _find_backend(self) -> TakesTurns:
        return self.log._find_backend()  # noqa: SLF001  (of the same base)


def choose_text(text: object, other: T) -> str | T:
    """Return the role or id that an item names, or else another if no log keeps such a text."""
    try:
        return str(check_text("text", text))
    except InvalidArgumentError:
        return other


def make_thread_id(*names: str) -> str:
    """Return the id of the thread that several names identify; ``/`` separates them."""
    return "/".join(it.replace("%", "%25").replace("/", "%2F") for it in names)


def split_thread_id(thread_id: str) -> list[str]:
    """Return the names of ``make_thread_id``."""
    return [it.replace("%2F", "/").replace("%25", "%") for it in thread_id.split("/")]


@contextmanager
def replace_conflict(error: ConflictError) -> Iterator[None]:
    """Raise a framework's error in place of a conflict, unless a turn refused the write."""
    try:
        yield
    except TurnError:
        raise
    except ConflictError as exc:
        raise error from exc


async def list_all(
    call: Callable[..., Awaitable[list[Listed]]], *args: Any, **options: Any
) -> AsyncIterator[Listed]:
    """Give all that ``BaseMessageLog.logs`` or ``heads`` lists, a page at a time."""
    after = None
    while page := await call(*args, limit=PAGE, after=after, **options):
        for item in page:
            yield item
        if len(page) < PAGE:
            return
        last = page[-1]
        info = last if isinstance(last, LogInfo) else last.info
        after = info.thread_id, info.namespace


LEVELS: Final = 1000
"""More than a stored value may have."""


def tag_numbers(value: Any) -> Any:
    """Return a JSON value with integers beyond 64 bits, NaN and infinities in a form that JSON has.

    ``untag_numbers`` gives them back. A value that JSON does not have stays what it is.
    """
    try:
        encoded = encode_canonical(value)
        require_json(encoded, 0)
        if has_no_tag(encoded):
            return value
    except (TypeError, ValueError):
        pass
    try:
        return freeze(value, LEVELS)
    except (TypeError, ValueError):
        return value  # it is refused later


def untag_numbers(value: Any) -> Any:
    """Return the value of ``tag_numbers``.

    Raises:
        IntegrityError: It is damaged.
    """
    try:
        if has_no_tag(encode_canonical(value)):
            return value
    except TypeError:
        pass  # it has lone surrogates
    try:
        return thaw(value, _parse_long_integer)
    except (LookupError, TypeError, ValueError) as exc:
        raise IntegrityError(f"a stored number is damaged: {exc}") from exc


def _parse_long_integer(node: Mapping[str, Any]) -> int:
    kind, text = node["v"]
    if (node["c"], kind) != (FORM, "int"):
        raise ValueError(f"a value of the form {kind!r:.40}")
    return int(text)


def has_null(value: Any) -> bool:
    """Return whether a JSON value has a ``None`` in it."""
    if isinstance(value, dict | list):
        return any(map(has_null, value.values() if isinstance(value, dict) else value))
    return value is None


def restore_floats(value: Any, source: Any) -> Any:
    """Return the JSON that pydantic made, with NaN and infinities, which it writes as ``None``.

    Args:
        value: Its JSON.
        source: The same as Python's values.
    """
    if value is None and isinstance(source, float):
        return source
    if isinstance(value, dict) and isinstance(source, dict) and len(value) == len(source):
        pairs = zip(value.items(), source.values(), strict=True)
        return {key: restore_floats(it, its) for (key, it), its in pairs}
    if isinstance(value, list) and isinstance(source, list | tuple) and len(value) == len(source):
        return [restore_floats(it, its) for it, its in zip(value, source, strict=True)]
    return value
