"""Addresses of pages.

Each page is one segment below the place where the inspector is mounted, and links are relative:
they are right under any prefix, also behind a proxy that removes one. Ids are in the query, where
``/``, ``.`` and ``..`` have no meaning.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

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

    def hidden(self, **query: str | int | None) -> str:
        """Return parameters as the value of a form's field ``at``.

        A form changes line ends in a value, and ids may have them; here they are encoded.
        """
        return self.to("", **query).removeprefix("?")
