"""Oracle's errors, classified by code, not by message."""

from __future__ import annotations

import re
from typing import Final

from locus_store.sql.connections.database import iterate_causes

REMEDIES: Final = {
    "ORA-01031": "this user may not make the tables; grant it what docs/oracle.md lists, or let a"
    " user that may do it: {command}",
    "ORA-00955": "something else has a name of ours; choose another prefix (prefix='mine_')",
    "ORA-00054": "another transaction held a table; try again when it has ended: {command}",
    **dict.fromkeys(
        ("ORA-01950", "ORA-01536", "ORA-01652", "ORA-01653", "ORA-01658"),
        "there is no room for the tables: give the user a quota on its tablespace, or the"
        " tablespace space; then go on: {command}",
    ),
    **dict.fromkeys(("ORA-01918", "ORA-00959"), "there is no such user or tablespace: {command}"),
    "ORA-43853": "the tablespace has no automatic segment space management, which JSON and vectors"
    " need; give the user another one as its default, then: {command}",
    "ORA-16000": "the database is read-only; migrate on the primary: {command}",
}
"""Of a migration that the server refuses, by code."""


def list_codes(exc: BaseException) -> list[str]:
    """Return the codes (``ORA-00001``) of an Oracle error and its causes.

    What went wrong within a PL/SQL block comes before the code that says where.
    """
    found: list[str] = []
    for error in (
        arg for cause in iterate_causes(exc) for arg in cause.args[:1] if hasattr(arg, "full_code")
    ):
        if error.full_code in _SAYS_WHERE:
            found += [it for it in _CODE.findall(str(error.message)) if it not in _SAYS_WHERE]
        found += [str(error.full_code)] if error.full_code else []
    return found


_SAYS_WHERE: Final = frozenset({"ORA-06550", "ORA-06512"})
_CODE: Final = re.compile(r"\b(?:ORA|PLS)-\d{5}\b")
