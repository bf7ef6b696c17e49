"""Pages of the inspector over ASGI, read as a browser without script reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

BASE = "http://localhost"
ATTRIBUTES = frozenset(
    """
    accept-charset action aria-current aria-hidden aria-label aria-labelledby aria-live
    autocomplete charset checked class colspan content cx cy d data-change data-copy data-key
    data-label data-live data-row data-step datetime defer
    for height hidden href http-equiv id lang list method name open placeholder r rel required role
    scope selected size src start step tabindex title type value width x
    y viewbox preserveaspectratio
    """.split()  # noqa: SIM905
)
"""The attributes of our templates."""


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class Seen(HTMLParser):
    """A page: its text, links and forms."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.response = response
        self.text = ""
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.ids: list[str] = []
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: it or "" for name, it in attrs}
        self.tags.append(tag)
        self.attributes += told
        self.ids += [told["id"]] if "id" in told else []
        if tag == "a" and not told["href"].startswith("#"):
            self.links.append(urljoin(str(self.response.url), told["href"]))
        elif tag == "form":
            url = urljoin(str(self.response.url), told.get("action", ""))
            self.forms.append(Form(url, told.get("method", "get")))
        elif tag == "input" and "name" in told and told.get("type") != "radio":
            self.forms[-1].fields[told["name"]] = told.get("value", "")

    def handle_data(self, data: str) -> None:
        self.text += data


class Site:
    """The inspector over a backend."""

    def __init__(self, backend: Any, application: Any = None, base: str = BASE) -> None:
        import httpx

        from locus_store.inspector import app

        transport = httpx.ASGITransport(application or app(backend))
        self.client = httpx.AsyncClient(transport=transport, base_url=base)

    async def get(self, page: str, /, **query: Any) -> httpx.Response:
        return await self.client.get(f"/{page}" if "//" not in page else page, params=query or None)

    async def page(self, page: str, /, **query: Any) -> Seen:
        response = await self.get(page, **query)
        assert response.status_code == 200, response.text
        return Seen(response)

    async def json(self, page: str, /, **query: Any) -> Any:
        response = await self.get(page, **query, format="json")
        assert response.status_code == 200, response.text
        return response.json()

    async def crawled(self, start: str, most: int = 400) -> list[Seen]:
        """All pages that links lead to; downloads are asked for, and not read as pages."""
        found: list[Seen] = []
        waiting, known = [start], {start}
        while waiting and len(found) < most:
            response = await self.client.get(waiting.pop(), follow_redirects=True)
            assert response.status_code == 200, (response.url, response.text)
            if response.headers["content-type"].startswith("text/html"):
                found.append(Seen(response))
                waiting += _new(found[-1].links, known)
        return found


def _new(links: list[str], known: set[str]) -> Iterator[str]:
    for link in links:
        if link not in known:
            known.add(link)
            yield link
