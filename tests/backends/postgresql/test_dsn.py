"""PostgreSQL's DSNs as hosts issue them, before anything is connected to."""

from __future__ import annotations

import os
import pickle
import re
import socket
import ssl
import sys
from traceback import format_exc
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

import pytest
from hypothesis import strategies as st
from properties import given
from sqlalchemy.engine import URL, make_url

from locus_store.backends.postgresql.connecting import connect, make_connection_error
from locus_store.backends.postgresql.dsn import Target, parse
from locus_store.errors import ConnectionFailedError, InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3tZq"  # noqa: S105  (made up)
MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
ATTRIBUTES = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing of the developer's: neither files nor variables."""
    made = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [it for it in os.environ if it.startswith("PG")]:
            patch.delenv(name)
        patch.setenv("HOME", str(made))
        patch.setenv("LOGNAME", "somebody")
        yield made


def read(text: str | URL, **options: Any) -> dict[str, Any]:
    """Hosts, ports, what asyncpg reads in its DSN, and its other arguments."""
    target = parse(text, **options)
    arguments = dict(target.arguments)
    found = dict(parse_qsl(urlsplit(arguments.pop("dsn")).query)) | arguments
    if target.hosts:
        hosts, ports = zip(*target.hosts, strict=True)
        found |= {"host": list(hosts), "port": list(ports)}
    return found


def at(*hosts: str, ports: tuple[int, ...] = (5432,), user: str = "u", database: str = "db"):
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return {"user": user, "dbname": database, "host": list(hosts), "port": list(ports)}


FORMS: dict[str, dict[str, Any]] = {
    # schemes
    "postgresql://u@h/db": at("h"),
    "postgres://u@h/db": at("h"),
    "POSTGRES://u@h/db": at("h"),
    "postgresql+asyncpg://u@h/db": at("h"),
    "postgresql+psycopg://u@h/db": at("h"),
    "postgresql+psycopg2://u@h/db": at("h"),
    "host=h user=u dbname=db": at("h"),
    " user = 'u' host=h\n\tdbname='d\\'b' port = 1": at("h", ports=(1,), database="d'b"),
    r"host=h user=u dbname=a\ b\\": at("h", database="a b\\"),
    # users, passwords, databases
    "postgresql://u:p@h/db": at("h") | {"password": "p"},
    "postgresql://u:@h/db": at("h"),
    "postgresql://u%40corp:p%2F%3F%23%40%25@h/d%2Fb": (
        at("h", user="u@corp", database="d/b") | {"password": "p/?#@%"}
    ),
    "postgresql://u:p:q#[r@s@h/db": at("h") | {"password": "p:q#[r@s"},
    "postgresql://u:50%@h/db": at("h") | {"password": "50%"},
    "postgresql://h": {"host": ["h"], "port": [5432]},
    "postgresql://u@h": {"user": "u", "host": ["h"], "port": [5432]},
    "postgresql://h/db?user=u&password=p%2Bq": at("h") | {"password": "p+q"},
    "postgresql://u@h/?dbname=db": at("h"),
    "postgresql://u@h/?database=db": at("h"),
    # hosts and ports
    "postgresql://u@h:1/db": at("h", ports=(1,)),
    "postgresql://u@h/db?port=1": at("h", ports=(1,)),
    "postgresql://u@[::1]/db": at("::1"),
    "postgresql://u@[fe80::1%25eth0]:1/db": at("fe80::1%eth0", ports=(1,)),
    "host=::1 user=u dbname=db port=1": at("::1", ports=(1,)),
    "postgresql://u@/db?host=[::1]:1": at("::1", ports=(1,)),
    "postgresql://u@a:1,b,[::1]:3/db": at("a", "b", "::1", ports=(1, 5432, 3)),
    "postgresql://u@a,b/db": at("a", "b"),
    "postgresql://u@a,b/db?port=7": at("a", "b", ports=(7,)),
    "host=a,b port=1,2 user=u dbname=db": at("a", "b", ports=(1, 2)),
    "host=a,b port=7 user=u dbname=db": at("a", "b", ports=(7,)),
    "host=a,b port=,7 user=u dbname=db": at("a", "b", ports=(5432, 7)),
    "postgresql+asyncpg://u@/db?host=a:1&host=b:2": at("a", "b", ports=(1, 2)),
    "postgresql+asyncpg://u@/db?host=a&host=b&port=1&port=2": at("a", "b", ports=(1, 2)),
    # unix sockets
    "postgresql://u@%2Frun%2Fpg:1/db": at("/run/pg", ports=(1,)),
    "postgresql://u@/db?host=/run/pg": at("/run/pg"),
    "postgresql:///db?host=/run/pg&user=u": at("/run/pg"),
    "postgresql://u@localhost:1/db?host=/cloudsql/a:b:c": at("/cloudsql/a:b:c", ports=(1,)),
    "postgresql://u@/db?host=/run/pg&sslmode=verify-full": (
        at("/run/pg") | {"sslmode": "verify-full"}
    ),
    "postgresql://u@%2Frun%2Fpg,h/db?sslmode=require": at("/run/pg", "h") | {"sslmode": "require"},
    "postgresql://u@/db": {"user": "u", "dbname": "db"},
    "postgresql://u@:1/db": {"user": "u", "dbname": "db", "port": "1"},
    "postgresql:///": {},
    # TLS
    "postgresql://u@h/db?ssl=require": at("h") | {"sslmode": "require"},
    "postgresql://u@h/db?ssl=true": at("h") | {"sslmode": "require"},
    "postgresql://u@h/db?ssl=false": at("h") | {"sslmode": "disable"},
    "postgresql://u@h/db?channel_binding=prefer&sslmode=require": at("h") | {"sslmode": "require"},
    "postgresql://u@h/db?channel_binding=disable": at("h"),
    "postgresql://u@h/db?sslnegotiation=postgres": at("h") | {"sslnegotiation": "postgres"},
    # session
    "postgresql://u@h/db?application_name=a%20b": (at("h") | {"application_name": "a b"}),
    "postgresql://u@h/db?fallback_application_name=a": (at("h") | {"application_name": "a"}),
    "postgresql://u@h/db?fallback_application_name=a&application_name=b": (
        at("h") | {"application_name": "b"}
    ),
    "postgresql://u@h/db?options=-c%20search_path%3Da": (at("h") | {"options": "-c search_path=a"}),
    "postgresql://u@h/db?options=-c+search_path%3Da": (at("h") | {"options": "-c search_path=a"}),
    "postgresql://u@ep.neon.tech/db?options=endpoint%3Dep": (
        at("ep.neon.tech") | {"options": "endpoint=ep"}
    ),
    "postgresql://u@h/db?connect_timeout=5": at("h") | {"timeout": 5},
    "postgresql://u@h/db?connect_timeout=0": at("h") | {"timeout": None},
    "postgresql://u@h/db?passfile=/p": at("h") | {"passfile": "/p"},
    "postgresql://u@h/db?krbsrvname=k&gsslib=gssapi": (
        at("h") | {"krbsrvname": "k", "gsslib": "gssapi"}
    ),
    # the last one of two counts
    "postgresql://u@h/db?sslmode=require&sslmode=disable": at("h") | {"sslmode": "disable"},
    # what asks for nothing
    "postgresql://u@h/db?client_encoding=UTF-8": at("h"),
    "postgresql://u@h/db?client_encoding=utf8": at("h"),
    "postgresql://u@h/db?gssencmode=disable&sslcompression=0&sslsni=1": at("h"),
    "postgresql://u@h/db?sslmode=&sslrootcert=&connect_timeout=&host=": at("h"),
    "postgresql://u@h/db?": at("h"),
    "postgresql://u@h/db?port=1&": at("h", ports=(1,)),
}


@pytest.mark.parametrize("text", FORMS)
def test_a_dsn_is_read_as_libpq_reads_it(text: str) -> None:
    assert read(text) == FORMS[text]


REFUSED = {
    "postgresql://u@h:x/db": "port",
    "postgresql://u@h:0/db": "port",
    "postgresql://u@h:65536/db": "port",
    "postgresql://u@h:²/db": "port",
    "postgresql://u@h/db?port=1,2": "1 hosts but 2 ports",
    "postgresql://u@/db?port=1,2": "port",
    "postgresql://u@,/db": "empty",
    "postgresql://u@a,/db": "empty",
    "host=a,,b": "empty",
    "postgresql://u@[::1/db": "IPv6",
    "postgresql://u@[::1]x/db": "IPv6",
    "postgresql://u@h/db?sslmode=required": "sslmode.*disable, allow, prefer, require, verify-ca",
    "postgresql://u@h/db?target_session_attrs=master": "target_session_attrs.*read-write",
    "postgresql://u@h/db?load_balance_hosts=yes": "load_balance_hosts.*random",
    "postgresql://u@h/db?channel_binding=always": "channel_binding.*require",
    "postgresql://u@h/db?connect_timeout=5s": "connect_timeout.*whole number",
    "postgresql://u@h/db?keepalives_idle=-1": "keepalives_idle.*whole number",
    "postgresql://u@h/db?client_encoding=latin1": "client_encoding",
    "postgresql://u@h/db?gssencmode=require": "gssencmode.*disable, prefer",
    "postgresql://u@h/db?replication=database": "replication.*leave it out",
    "postgresql://u@h/db?hostaddr=127.0.0.1": "hostaddr.*as host",
    "postgresql://u@h/db?requirepeer=postgres": "requirepeer",
    "postgresql://u@h/db?require_auth=scram-sha-256": "require_auth",
    "postgresql://u@h/db?sslsni=0": "sslsni",
    "postgresql://u@h/db?sslcrldir=/d": "sslcrldir",
    "postgresql://u@h/db?foo=1": "foo is not a parameter",
    "postgresql://u@h/db?search_path=a": "search_path.*options=-c%20",
    "postgresql://u@h/db?pgbouncer=true": "pgbouncer is not a parameter",
    "host=h foo=1": "foo is not a parameter",
    "postgresql://u@h/db?keep_lats=3": r"a PostgreSQL DSN \(did you mean 'keep_last'\?\); correct",
    "postgresql://u@h/db?ssl_mode=require": "did you mean 'sslmode'",
    "postgresql://u@h/db?password=a&keep_lats=3": "name 2 in the DSN is not [^(]*;",
    "postgresql://u@h/db?a%20b=1": "name 1 in the DSN",
    "postgresql://u@h/db?foo": "name=value",
    "postgresql://u@h/db#foo": "%23",
    "postgresql://u%ff@h/db": "%25",
    "postgresql://u%00@h/db": "NUL",
    "host=h user=\ud800": "lone surrogate",
    "postgresql://u@h/db?connect_timeout=" + "9" * 5000: "connect_timeout.*whole number",
    "mysql://u@h/db": "mysql:// is not PostgreSQL",
    "h": "neither",
    "": None,
    "host": "neither",
    "host=h password='x": "neither",
    "postgresql://u@h/db?sslrootcert=/no/such/file": "sslrootcert.*/no/such/file",
    "postgresql://u@h/db?sslmode=require&sslrootcert=system": "system needs sslmode=verify-full",
    "postgresql://u@h/db?channel_binding=require&sslmode=disable": "channel_binding=require needs",
    "postgresql://u@/db?channel_binding=require": "channel_binding=require needs",
    "postgresql://u@/db?channel_binding=require&host=/run": "channel_binding=require needs",
    "postgresql://u@h/db?service=nowhere": "no service 'nowhere'",
}


@pytest.mark.parametrize("text", [it for it in REFUSED if it])
def test_what_makes_no_sense_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=REFUSED[text]):
        parse(text)


def test_an_empty_text_is_libpqs_defaults() -> None:
    assert read("") == {}


@pytest.mark.parametrize("mode", MODES)
def test_each_sslmode_is_passed_on(mode: str) -> None:
    assert read(f"postgresql://u@h/db?sslmode={mode}")["sslmode"] == mode


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_each_target_session_attrs_is_kept(attribute: str) -> None:
    assert parse(f"postgresql://u@a,b/db?target_session_attrs={attribute}").wanted == attribute


# --- secrets

ugly = st.text(
    st.one_of(
        st.sampled_from("@:/?#[]%&=+,;'\"\\ $!"),
        st.characters(exclude_categories=("Cs",), exclude_characters="\0"),
    ),
    min_size=1,
    max_size=20,
)


@given(user=ugly, password=ugly, database=ugly)
def test_ugly_names_and_passwords_survive_percent_encoding(
    user: str, password: str, database: str
) -> None:
    parts = [quote(it, safe="") for it in (user, password, database)]
    expected = at("h", user=user, database=database) | {"password": password}
    assert read("postgresql://{}:{}@h/{}".format(*parts)) == expected
    query = "postgresql://h/?user={}&password={}&dbname={}"
    assert read(query.format(*map(quote_plus, (user, password, database)))) == expected


@given(user=ugly, password=ugly, database=ugly)
def test_ugly_names_and_passwords_survive_quotes_in_keywords(
    user: str, password: str, database: str
) -> None:
    quoted = [it.replace("\\", "\\\\").replace("'", "\\'") for it in (user, password, database)]
    found = read("host=h user='{}' password='{}' dbname='{}'".format(*quoted))
    assert found == at("h", user=user, database=database) | {"password": password}


@given(user=ugly, password=ugly, database=ugly)
def test_sqlalchemys_url_is_read_as_itself_and_as_its_text(
    user: str, password: str, database: str
) -> None:
    url = URL.create(
        "postgresql+asyncpg", user, password, "h", 1, database, {"options": "-c a=b+c"}
    )
    expected = at("h", ports=(1,), user=user, database=database) | {"password": password}
    expected["options"] = "-c a=b+c"
    assert read(url) == expected
    assert read(url.render_as_string(hide_password=False)) == expected


@given(before=ugly, after=ugly, place=st.sampled_from(["user", "query", "keyword", "key"]))
def test_no_error_and_no_repr_holds_a_password_even_where_it_breaks_the_dsn(
    before: str, after: str, place: str
) -> None:
    password = f"{before}{SECRET}{after}"
    text = {
        "user": f"postgresql://u:{password}@h:5432/db?connect_timeout=3",
        "query": f"postgresql://u@h/db?password={password}&foo=1",
        "keyword": f"host=h password={password} user=u",
        "key": f"postgresql://u@h/db?sslmode=require&sslpassword={password}&sslkey=/no",
    }[place]
    try:
        shown = repr(parse(text))
    except InvalidArgumentError:
        shown = format_exc(limit=0)
    assert SECRET not in shown


@given(
    user=ugly,
    database=ugly,
    hosts=st.lists(
        st.tuples(st.sampled_from(["h", "::1", "fe80::1%eth0", "/run/p g"]), st.integers(1, 65535)),
        min_size=1,
        max_size=3,
    ),
)
def test_what_is_shown_is_a_dsn_of_the_same_place(
    user: str, database: str, hosts: list[tuple[str, int]]
) -> None:
    names, ports = zip(*hosts, strict=True)
    url = URL.create("postgresql", user, SECRET, None, None, database)
    target = parse(
        url.update_query_dict(
            {"host": ",".join(names), "port": ",".join(map(str, ports)), "application_name": "x"}
        )
    )
    expected = at(*names, ports=ports, user=user, database=database)
    assert read(target.shown) == expected
    assert repr(target) == f"Target(shown={target.shown!r})"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u@h/db?password=a&{SECRET}=1",
        f"host=h password=a {SECRET}=1",
        f"postgresql://u:a?{SECRET}=1@h/db",
        f"postgresql://u:a@b?{SECRET}=1@h/db",
        f"postgresql://u:1/{SECRET}@h/db",
        f"postgresql://u:{SECRET}/a",
    ],
)
def test_what_may_be_a_part_of_a_password_is_not_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse(text)
    assert SECRET not in str(caught.value)


def test_a_password_given_apart_wins() -> None:
    assert read("postgresql://u:p@h/db", password=SECRET)["password"] == SECRET


@pytest.mark.anyio
async def test_a_callable_is_asked_for_each_connection() -> None:
    kept = iter(["one", "two"])
    ask = parse("postgresql://u:p@h/db", password=lambda: next(kept)).arguments["password"]
    assert [await ask(), await ask()] == ["one", "two"]


@pytest.mark.anyio
async def test_an_asynchronous_callable_is_awaited() -> None:
    async def fetched() -> str:
        return "one"

    assert await parse("postgresql://u@h/db", password=fetched).arguments["password"]() == "one"


def test_a_password_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="NUL") as caught:
        parse("postgresql://u@h/db", password=f"{SECRET}\0")
    assert SECRET not in str(caught.value)


# --- parameters of ours


def test_our_parameters_come_untouched_and_apart() -> None:
    target = parse(
        "postgresql://u@h/db?pgbouncer=true&schema=a%20b&statement_cache_size=0&sslmode=require",
        ours={"pgbouncer", "schema", "statement_cache_size", "prefix"},
    )
    assert target.options == {"pgbouncer": "true", "schema": "a b", "statement_cache_size": "0"}
    assert "sslmode=require" in target.arguments["dsn"]


def test_an_empty_parameter_of_ours_is_kept_for_us_to_judge() -> None:
    assert parse("postgresql://u@h/db?schema=", ours={"schema"}).options == {"schema": ""}


def test_libpqs_names_are_never_ours() -> None:
    target = parse(f"postgresql://u@h/db?password={SECRET}", ours={"password", "schema"})
    assert target.options == {}
    assert SECRET in target.arguments["dsn"]


# --- what stands elsewhere


def test_libpqs_variables_fill_what_the_dsn_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGHOST": "a,b",
        "PGPORT": "7",
        "PGUSER": "u",
        "PGDATABASE": "db",
        "PGPASSWORD": SECRET,
        "PGAPPNAME": "app",
        "PGOPTIONS": "-c a=b",
        "PGSSLMODE": "require",
        "PGCONNECT_TIMEOUT": "3",
        "PGTARGETSESSIONATTRS": "primary",
        "PGPASSFILE": "",
    }.items():
        monkeypatch.setenv(name, value)
    assert read("postgresql://") == at("a", "b", ports=(7,)) | {
        "password": SECRET,
        "sslmode": "require",
        "timeout": 3,
        "application_name": "app",
        "options": "-c a=b",
    }
    assert parse("postgresql://").wanted == "primary"
    assert read("postgresql://v:q@h:1/other?sslmode=prefer&connect_timeout=4") == at(
        "h", ports=(1,), user="v", database="other"
    ) | {
        "password": "q",
        "sslmode": "prefer",
        "timeout": 4,
        "application_name": "app",
        "options": "-c a=b",
    }


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PGPORT", "x"), ("PGCHANNELBINDING", "sometimes"), ("PGHOSTADDR", "::1"), ("PGSSLMODE", "x")],
)
def test_a_variable_that_makes_no_sense_is_refused(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgumentError):
        parse("postgresql://u@h/db")


SERVICE = f"""
# services
[other]
host=elsewhere
[mine]
host=a,b
port=1,2
dbname=db
user=u
password=100%{SECRET}
sslmode=require
connect_timeout=9
application_name = app
"""


def test_a_service_fills_what_the_dsn_leaves_out(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = at("a", "b", ports=(1, 2)) | {
        "password": f"100%{SECRET}",
        "sslmode": "require",
        "timeout": 9,
        "application_name": "app",
    }
    file = tmp_path / "services"
    file.write_text(SERVICE)
    monkeypatch.setenv("PGUSER", "not this one")
    assert read(f"service=mine servicefile={file}") == expected
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    assert read("postgresql://?service=mine") == expected
    assert read("postgresql://v@h:3/x?service=mine&connect_timeout=1") == expected | at(
        "h", ports=(3,), user="v", database="x"
    ) | {"timeout": 1}
    monkeypatch.setenv("PGSERVICE", "mine")
    assert read("") == expected
    monkeypatch.delenv("PGSERVICEFILE")
    file.rename(home / ".pg_service.conf")
    assert read("") == expected
    (home / ".pg_service.conf").unlink()


@pytest.mark.parametrize(
    "broken", [f"{SECRET}\n", f"[mine]\n{SECRET}\n", f"[mine]\nuser=a\nuser={SECRET}\n"]
)
def test_a_broken_service_file_is_refused_and_not_repeated(broken: str, tmp_path: Path) -> None:
    (tmp_path / "services").write_text(broken)
    with pytest.raises(InvalidArgumentError, match="service") as caught:
        parse(f"service=mine servicefile={tmp_path}/services")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_service_file_in_no_home_directory_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nobody-here/f': there is no such"):
        parse("service=mine servicefile=~nobody-here/f")


def test_an_unknown_name_in_a_service_is_refused(tmp_path: Path) -> None:
    (tmp_path / "services").write_text("[mine]\nhosts=h\n")
    with pytest.raises(InvalidArgumentError, match="hosts is not a parameter"):
        parse(f"service=mine servicefile={tmp_path}/services")


# --- TLS


@pytest.mark.parametrize(
    "query",
    [
        "sslrootcert=system",
        "sslrootcert=system&sslmode=verify-full",
        "channel_binding=require",
        "channel_binding=require&sslmode=require",
        "channel_binding=require&sslmode=prefer",
    ],
)
def test_the_systems_authorities_verify_certificate_and_name(query: str) -> None:
    context = parse(f"postgresql://u@h/db?{query}").arguments["ssl"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_channel_binding_required_verifies_against_a_given_authority(tmp_path: Path) -> None:
    file = tmp_path / "the authority"
    file.touch()
    asked = f"sslmode=require&channel_binding=require&sslrootcert={quote(str(file))}"
    expected = at("h") | {"sslmode": "verify-full", "sslrootcert": str(file)}
    assert read(f"postgresql://u@h/db?{asked}") == expected


def test_versions_of_tls_are_refused_with_the_systems_authorities() -> None:
    with pytest.raises(InvalidArgumentError, match=r"ssl_max_protocol_version.*sslrootcert"):
        parse("postgresql://u@h/db?sslrootcert=system&ssl_max_protocol_version=TLSv1.3")


def test_a_certificate_that_is_none_is_refused_before_connecting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match="PEM"):
        parse(f"postgresql://u@h/db?sslrootcert=system&sslcert={tmp_path}/file")


# --- the socket


def test_keepalives_are_options_of_the_socket() -> None:
    def options(query: str) -> dict[str, int]:
        return dict(parse(f"postgresql://u@h/db?{query}").socket_options)

    assert options("") == {
        "SO_KEEPALIVE": 1,
        "TCP_KEEPIDLE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 30_000,
    }
    assert options("keepalives=0") == {"SO_KEEPALIVE": 0}
    assert options("keepalives=0&tcp_user_timeout=5") == {
        "SO_KEEPALIVE": 0,
        "TCP_USER_TIMEOUT": 5,
    }
    assert options(
        "keepalives=1&keepalives_idle=5&keepalives_interval=6&keepalives_count=7&tcp_user_timeout=0"
    ) == {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 6, "TCP_KEEPCNT": 7}


def test_hosts_are_shuffled_where_the_dsn_asks_for_it() -> None:
    assert parse("postgresql://u@a,b/db?load_balance_hosts=random").is_shuffled
    assert not parse("postgresql://u@a,b/db?load_balance_hosts=disable").is_shuffled


def test_a_target_can_be_sent_to_another_process() -> None:
    target = parse("postgresql://u:p@a,b/db?sslmode=require")
    assert pickle.loads(pickle.dumps(target)) == target  # noqa: S301  (ours)


# --- errors


@pytest.mark.anyio
async def test_without_asyncpg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[postgres\]"):
        await connect(parse("postgresql://u@h/db"))


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, SECRET)
    error.verify_code = code
    return error


def failures() -> dict[str, tuple[Exception, str]]:
    import asyncpg
    from asyncpg import exceptions

    return {
        "refused": (ConnectionRefusedError(SECRET), "runs"),
        "reset": (ConnectionResetError(SECRET), "at this port"),
        "unknown host": (socket.gaierror(SECRET), "host is not known"),
        "no socket": (FileNotFoundError(SECRET), "no socket"),
        "no rights": (PermissionError(SECRET), "permit"),
        "timeout": (TimeoutError(SECRET), "in time"),
        "several addresses": (OSError(SECRET), "can be reached"),
        "TLS refused": (ConnectionError(SECRET), "refuses TLS"),
        "TLS failed": (ssl.SSLError(SECRET), "TLS failed"),
        "untrusted": (certificate_error(20), "sslrootcert="),
        "other name": (certificate_error(62), "another name"),
        "other address": (certificate_error(64), "another name"),
        "password": (asyncpg.InvalidPasswordError(SECRET), "password"),
        "hba": (asyncpg.InvalidAuthorizationSpecificationError(SECRET), "pg_hba.conf"),
        "no database": (asyncpg.InvalidCatalogNameError(SECRET), "no such database"),
        "no right to connect": (asyncpg.InsufficientPrivilegeError(SECRET), "GRANT CONNECT"),
        "full": (asyncpg.TooManyConnectionsError(SECRET), "pool_size"),
        "starting": (asyncpg.CannotConnectNowError(SECRET), "try again"),
        "stopping": (asyncpg.AdminShutdownError(SECRET), "try again"),
        "closed": (asyncpg.ConnectionDoesNotExistError(SECRET), "try again"),
        "pooler": (asyncpg.ProtocolViolationError(SECRET), "ignore_startup_parameters"),
        "options": (asyncpg.UndefinedObjectError(SECRET), "options="),
        "other state": (asyncpg.DiskFullError(SECRET), "53100"),
        "login": (asyncpg.InterfaceError(SECRET), "scram-sha-256"),
        "wrong host": (exceptions.TargetServerAttributeNotMatched(SECRET), "target_session_attrs"),
        "no PostgreSQL": (exceptions.ProtocolError(SECRET), "ProtocolError"),
    }


async def failing(cause: Exception, patch: pytest.MonkeyPatch) -> None:
    """Connect by an asyncpg that raises."""
    import asyncpg

    async def refused(**_: object) -> None:
        raise cause

    patch.setattr(asyncpg, "connect", refused)
    await connect(parse("postgresql://u@h/db"))


@pytest.mark.anyio
@pytest.mark.parametrize("name", failures())
async def test_each_failure_to_connect_has_a_remedy_and_repeats_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause, remedy = failures()[name]
    with pytest.raises(ConnectionFailedError, match=re.escape(remedy)) as caught:
        await failing(cause, monkeypatch)
    assert caught.value.__cause__ is cause
    assert "postgresql://u@h:5432/db" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.anyio
async def test_what_asyncpg_makes_nothing_of_is_an_invalid_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from asyncpg.exceptions import ClientConfigurationError

    with pytest.raises(InvalidArgumentError, match="no such TLS version"):
        await failing(ClientConfigurationError("no such TLS version"), monkeypatch)


def test_a_failure_of_a_statement_is_none_to_connect() -> None:
    import asyncpg

    for error in (
        asyncpg.UniqueViolationError("x"),
        asyncpg.InsufficientPrivilegeError("x"),
        TimeoutError(),
        ValueError("x"),
    ):
        assert make_connection_error(error, "here") is None


def test_a_connection_lost_in_use_and_one_that_others_failed_to_make_are_told() -> None:
    import asyncpg

    for error in (
        asyncpg.AdminShutdownError("x"),
        asyncpg.ConnectionDoesNotExistError("x"),
        asyncpg.InvalidPasswordError("x"),
        ConnectionResetError(),
        socket.gaierror(),
    ):
        assert isinstance(make_connection_error(error, "here"), ConnectionFailedError)


def test_make_urls_text_and_object_agree() -> None:
    text = "postgresql+psycopg2://u:p%40@h:1/db?application_name=a+b&sslmode=require"
    assert parse(make_url(text)) == parse(text)
    assert isinstance(parse(text), Target)
