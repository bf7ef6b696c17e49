"""The blocking twins of a session's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.blocking import Portals
    from locus_store.session.messages import Message
    from locus_store.session.models import ThreadInfo


class BlockingTwins:
    """Each method is the one of the same name with ``a`` before it, and blocks.

    They run on an event loop of the session's own, which ``release`` ends. They work in code
    without an event loop, and in a worker thread of one.
    """

    _portals: Portals

    def _run(self, name: str, *args: Any) -> Any:
        return self._portals.run(type(self).__name__, getattr(self, f"a{name}"), *args)

    def setup(self) -> None:
        self._run("setup")

    def release(self) -> None:
        """Release as ``arelease`` does, and end the loop."""
        if self._portals.is_open:
            self._run("release")
            self._portals.close()

    def put_state(self, config: Mapping[str, Any], state: Any) -> Any:
        return self._run("put_state", config, state)

    def get_state(self, config: Mapping[str, Any]) -> Any:
        return self._run("get_state", config)

    def clear_state(self, config: Mapping[str, Any]) -> None:
        self._run("clear_state", config)

    def put_state_cache(self, config: Mapping[str, Any], state: Any) -> Any:
        return self._run("put_state_cache", config, state)

    def get_state_cache(self, config: Mapping[str, Any]) -> Any:
        return self._run("get_state_cache", config)

    def put_messages(
        self,
        config: Mapping[str, Any],
        messages: Sequence[Message],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._run("put_messages", config, messages, metadata)

    def get_message(self, config: Mapping[str, Any], message_id: str | int) -> Message | None:
        found: Message | None = self._run("get_message", config, message_id)
        return found

    def list_messages(
        self,
        config: Mapping[str, Any],
        search: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> list[Message]:
        found: list[Message] = self._run("list_messages", config, search, offset, limit)
        return found

    def delete_message(self, config: Mapping[str, Any], message_id: str | int) -> None:
        self._run("delete_message", config, message_id)

    def put_thread(
        self, config: Mapping[str, Any], thread_info: ThreadInfo | Mapping[str, Any]
    ) -> None:
        self._run("put_thread", config, thread_info)

    def get_thread(self, config: Mapping[str, Any]) -> ThreadInfo | None:
        found: ThreadInfo | None = self._run("get_thread", config)
        return found

    def list_threads(
        self,
        config: Mapping[str, Any],
        search: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> list[ThreadInfo]:
        found: list[ThreadInfo] = self._run("list_threads", config, search, offset, limit)
        return found

    def clean_thread(self, config: Mapping[str, Any]) -> None:
        self._run("clean_thread", config)
