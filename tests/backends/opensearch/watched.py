"""A client of the test server that counts its requests, and may lose replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import opensearchpy

if TYPE_CHECKING:
    from indexes import TestIndex


class Watched:
    """A client that counts its requests, and may lose replies."""

    def __init__(self, index: TestIndex) -> None:
        self.real = index.server.client()
        self.transport = self
        self.asked: list[str] = []
        self.loses: set[str] = set()
        """Methods, or ends of paths, whose next reply is lost."""
        self.unanswered = 0
        """So many answers to ``_mget`` have errors of a shard in place of documents."""
        self._skips = 0

    def loses_after(self, end: str, skip: int = 0) -> None:
        """Lose the next reply to a path, or one of the following."""
        self.loses, self._skips = {end}, skip

    def perform_request(self, method: str, url: str, **options: Any) -> Any:
        self.asked.append(f"{method} {url.split('/')[2]}" if url.count("/") > 1 else method)
        answer = self.real.transport.perform_request(method, url, **options)
        if url.endswith("/_mget") and self.unanswered:
            self.unanswered -= 1
            error = {"type": "no_shard_available_action_exception", "reason": "lost"}
            answer["docs"] = [{"_id": it["_id"], "error": error} for it in answer["docs"]]
        lost = {it for it in self.loses if it == method or url.endswith(it)}
        if lost and not self._skips:
            self.loses -= lost
            raise opensearchpy.exceptions.ConnectionError("N/A", "lost", OSError("lost"))
        self._skips -= bool(lost)
        return answer

    def counted(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked
