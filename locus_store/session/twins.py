"""The blocking twins of a session's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.runtime.portals import Portals
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

    # --- of ``RunMethods``

    def put_checkpoint(
        self,
        config: Mapping[str, Any],
        state: Any,
        messages: Sequence[Message] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._run("put_checkpoint", config, state, messages, metadata)

    def get_thread_owner(self, thread_id: str | int) -> str | int | None:
        found: str | int | None = self._run("get_thread_owner", thread_id)
        return found

    def request_stop(self, config: Mapping[str, Any]) -> None:
        self._run("request_stop", config)

    def is_stop_requested(self, config: Mapping[str, Any]) -> bool:
        return bool(self._run("is_stop_requested", config))

    def clear_stop_request(self, config: Mapping[str, Any]) -> None:
        self._run("clear_stop_request", config)

    def put_tool_result(
        self, config: Mapping[str, Any], tool_call_id: str, result: Mapping[str, Any]
    ) -> None:
        self._run("put_tool_result", config, tool_call_id, result)

    def get_tool_result(
        self, config: Mapping[str, Any], tool_call_id: str
    ) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._run("get_tool_result", config, tool_call_id)
        return found

    def put_cache_value(
        self, namespace: str, key: str, value: Any, ttl_seconds: float | None = None
    ) -> None:
        self._run("put_cache_value", namespace, key, value, ttl_seconds)

    def get_cache_value(self, namespace: str, key: str) -> Any:
        return self._run("get_cache_value", namespace, key)

    def clear_cache_value(self, namespace: str, key: str) -> None:
        self._run("clear_cache_value", namespace, key)

    def list_cache_keys(self, namespace: str, prefix: str | None = None) -> list[str]:
        found: list[str] = self._run("list_cache_keys", namespace, prefix)
        return found
