"""Forty statements that Oracle 26ai refuses for their syntax, and why.

Written before looking at what any parser says of them, one of a kind, from what PostgreSQL, MySQL
and SQLAlchemy's other dialects would have us write. No Oracle server has been asked.

What 26ai accepts is not among them, though it was wrong once: SELECT without FROM, IF NOT EXISTS,
BOOLEAN, several rows after VALUES, UPDATE and DELETE with a second FROM, the vector operator <=>.
"""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """A statement that Oracle refuses."""

    statement: str
    why: str


WRONG = {
    # --- saving
    "on_conflict_do_nothing": Wrong(
        "INSERT INTO t (id, a) VALUES (:1, :2) ON CONFLICT (id) DO NOTHING",
        "INSERT ends after VALUES (or RETURNING, LOG ERRORS): Oracle has MERGE instead",
    ),
    "on_conflict_do_update": Wrong(
        "INSERT INTO t (id, a) VALUES (:1, :2)"
        " ON CONFLICT (id) DO UPDATE SET a = excluded.a WHERE t.a < excluded.a",
        "INSERT ends after VALUES (or RETURNING, LOG ERRORS): Oracle has MERGE instead",
    ),
    "on_duplicate_key": Wrong(
        "INSERT INTO t (id, a) VALUES (:1, :2) ON DUPLICATE KEY UPDATE a = :3",
        "MySQL's",
    ),
    "default_values": Wrong(
        "INSERT INTO t DEFAULT VALUES",
        "INSERT needs VALUES with a list, SET or a query (ORA-00926)",
    ),
    "returning_without_into": Wrong(
        "INSERT INTO t (a) VALUES (:a) RETURNING id",
        "RETURNING needs INTO and binds: it makes no result set (ORA-00925)",
    ),
    "merge_without_using": Wrong(
        "MERGE INTO t x ON (x.id = :id) WHEN MATCHED THEN UPDATE SET x.a = :a",
        "USING is not optional (ORA-00926, missing USING keyword)",
    ),
    "merge_as_before_alias": Wrong(
        "MERGE INTO t x USING (SELECT :id AS id FROM dual) AS s ON (x.id = s.id)"
        " WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        "no AS before the alias of a table or a subquery: only before a column's",
    ),
    "merge_matched_and": Wrong(
        "MERGE INTO t x USING (SELECT :id AS id FROM dual) s ON (x.id = s.id)"
        " WHEN MATCHED AND x.a < 3 THEN UPDATE SET x.a = 3",
        "WHEN MATCHED takes no condition: that is a WHERE after SET (ORA-00905)",
    ),
    "merge_do_nothing": Wrong(
        "MERGE INTO t x USING (SELECT :id AS id FROM dual) s ON (x.id = s.id)"
        " WHEN MATCHED THEN DO NOTHING"
        " WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        "after THEN comes UPDATE or INSERT; to do nothing, the branch is left out",
    ),
    "merge_by_source": Wrong(
        "MERGE INTO t x USING s ON (x.id = s.id) WHEN NOT MATCHED BY SOURCE THEN DELETE",
        "PostgreSQL's and SQL Server's: neither BY SOURCE nor a branch that only deletes",
    ),
    "update_as_before_alias": Wrong(
        "UPDATE t AS x SET x.a = 1 WHERE x.id = :id",
        "no AS before a table's alias",
    ),
    # --- deleting
    "delete_limit": Wrong(
        "DELETE FROM t WHERE a = :a LIMIT 10",
        "MySQL's",
    ),
    "delete_using": Wrong(
        "DELETE FROM t USING s WHERE t.id = s.id",
        "PostgreSQL's: Oracle 23ai joins with a second FROM",
    ),
    "data_modifying_cte": Wrong(
        "WITH gone AS (DELETE FROM t WHERE a = :a RETURNING id) SELECT id FROM gone",
        "a named subquery is a query",
    ),
    # --- reading
    "limit": Wrong(
        "SELECT id FROM t ORDER BY id LIMIT 10",
        "Oracle has FETCH FIRST 10 ROWS ONLY",
    ),
    "offset_without_rows": Wrong(
        "SELECT id FROM t ORDER BY id OFFSET 10",
        "ROWS is not optional after OFFSET",
    ),
    "fetch_without_only": Wrong(
        "SELECT id FROM t ORDER BY id FETCH FIRST 10 ROWS",
        "FETCH FIRST ends with ONLY or WITH TIES",
    ),
    "as_before_table_alias": Wrong(
        "SELECT x.id FROM t AS x",
        "no AS before a table's alias (ORA-00933)",
    ),
    "distinct_on": Wrong(
        "SELECT DISTINCT ON (a) a, id FROM t ORDER BY a, id DESC",
        "PostgreSQL's; ON is reserved (ORA-00936)",
    ),
    "as_materialized": Wrong(
        "WITH q AS MATERIALIZED (SELECT id FROM t) SELECT id FROM q",
        "after AS comes the parenthesis; the hint is /*+ MATERIALIZE */",
    ),
    "for_share": Wrong(
        "SELECT id FROM t WHERE id = :id FOR SHARE",
        "only FOR UPDATE locks rows",
    ),
    "for_no_key_update": Wrong(
        "SELECT id FROM t WHERE id = :id FOR NO KEY UPDATE",
        "only FOR UPDATE locks rows",
    ),
    "for_update_before_fetch": Wrong(
        "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED FETCH FIRST 1 ROWS ONLY",
        "FOR UPDATE ends the statement",
    ),
    "fetch_for_update": Wrong(
        "SELECT id FROM t ORDER BY id FETCH FIRST 1 ROWS ONLY FOR UPDATE SKIP LOCKED",
        "FETCH FIRST makes a view of it that cannot be locked (ORA-02014)",
    ),
    # --- expressions
    "cast_colons": Wrong(
        "SELECT a::jsonb FROM t",
        "PostgreSQL's cast: Oracle has CAST and JSON(…)",
    ),
    "dollar_parameter": Wrong(
        "SELECT id FROM t WHERE id = $1",
        "binds begin with a colon; a name cannot begin with $ (ORA-00911)",
    ),
    "ilike": Wrong(
        "SELECT id FROM t WHERE a ILIKE :a",
        "PostgreSQL's: Oracle has UPPER(a) LIKE, or a collation",
    ),
    "json_arrow": Wrong(
        "SELECT id FROM t WHERE c ->> 'k' = :v",
        "PostgreSQL's: Oracle has JSON_VALUE",
    ),
    "json_contains_operator": Wrong(
        "SELECT id FROM t WHERE c @> :v",
        "PostgreSQL's: @ names a database link",
    ),
    "json_exists_bind_path": Wrong(
        "SELECT id FROM t WHERE JSON_EXISTS(c, :path)",
        "the path is a literal (ORA-40454)",
    ),
    "array_literal": Wrong(
        "SELECT id FROM t WHERE id = ANY (ARRAY['a', 'b'])",
        "no array in brackets",
    ),
    "interval_words": Wrong(
        "SELECT id FROM t WHERE a < SYSTIMESTAMP - INTERVAL '5 seconds'",
        "the unit stands after the literal: INTERVAL '5' SECOND",
    ),
    "cast_as_interval": Wrong(
        "SELECT id FROM t WHERE a < SYSTIMESTAMP - CAST(:s || ' seconds' AS INTERVAL)",
        "the type is INTERVAL DAY TO SECOND or INTERVAL YEAR TO MONTH (ORA-30089)",
    ),
    "backticks": Wrong(
        "SELECT `id` FROM t",
        "MySQL's (ORA-00911): names are quoted with double quotes",
    ),
    # --- definitions
    "default_after_not_null": Wrong(
        "CREATE TABLE t (id NUMBER(19) NOT NULL DEFAULT 0)",
        "DEFAULT comes before the constraints (ORA-00907)",
    ),
    "timestamp_without_time_zone": Wrong(
        "CREATE TABLE t (id NUMBER(19), a TIMESTAMP WITHOUT TIME ZONE)",
        "TIMESTAMP alone has none; the words are not Oracle's (ORA-00907)",
    ),
    "index_concurrently": Wrong(
        "CREATE INDEX CONCURRENTLY i ON t (a)",
        "PostgreSQL's: Oracle has ONLINE, at the end",
    ),
    "index_using": Wrong(
        "CREATE INDEX i ON t USING gin (a)",
        "PostgreSQL's: Oracle has INDEXTYPE IS, at the end",
    ),
    "partial_index": Wrong(
        "CREATE INDEX i ON t (a) WHERE a IS NOT NULL",
        "PostgreSQL's and SQLite's: Oracle indexes an expression that is NULL elsewhere",
    ),
    # --- PL/SQL
    "block_without_semicolon": Wrong(
        "BEGIN UPDATE t SET a = :a WHERE id = :id; END",
        "a block ends with a semicolon (PLS-00103)",
    ),
}

HELD_OUT = {
    "insert_or_replace": Wrong("INSERT OR REPLACE INTO t (id) VALUES (:id)", "SQLite's"),
    "replace_into": Wrong("REPLACE INTO t (id) VALUES (:id)", "MySQL's"),
    "insert_overriding": Wrong(
        "INSERT INTO t (id) OVERRIDING SYSTEM VALUE VALUES (:id)", "PostgreSQL's"
    ),
    "merge_on_bare": Wrong(
        "MERGE INTO t x USING s ON x.id = s.id WHEN MATCHED THEN UPDATE SET x.a = s.a",
        "the condition of ON stands in parentheses (ORA-00969)",
    ),
    "merge_delete": Wrong(
        "MERGE INTO t x USING s ON (x.id = s.id) WHEN MATCHED THEN DELETE",
        "DELETE WHERE follows an UPDATE SET (ORA-00905)",
    ),
    "delete_returning": Wrong(
        "DELETE FROM t WHERE a = :a RETURNING id", "RETURNING needs INTO (ORA-00925)"
    ),
    "update_order_by": Wrong("UPDATE t SET a = 1 ORDER BY id", "MySQL's (ORA-00933)"),
    "top": Wrong("SELECT TOP 5 id FROM t", "SQL Server's (ORA-00923)"),
    "use_index": Wrong("SELECT id FROM t USE INDEX (i) WHERE a = :a", "MySQL's"),
    "order_by_using": Wrong("SELECT id FROM t ORDER BY id USING <", "PostgreSQL's"),
    "join_as": Wrong(
        "SELECT x.id FROM t x JOIN s AS y ON y.id = x.id", "no AS before a table's alias"
    ),
    "predicate_goes_on": Wrong("SELECT id FROM t WHERE a IS NOT TRUE IS", "a predicate ends"),
    "regex_operator": Wrong("SELECT id FROM t WHERE a ~ '^x'", "PostgreSQL's: REGEXP_LIKE"),
    "equal_twice": Wrong("SELECT id FROM t WHERE a == :a", "the operator is ="),
    "array_index": Wrong("SELECT a[1] FROM t", "no brackets (ORA-00923)"),
    "percent_parameter": Wrong("SELECT id FROM t WHERE id = %s", "binds begin with a colon"),
    "add_column": Wrong(
        "ALTER TABLE t ADD COLUMN b NUMBER(19)", "ADD b …: COLUMN is reserved (ORA-00904)"
    ),
    "alter_column_type": Wrong(
        "ALTER TABLE t ALTER COLUMN b TYPE NUMBER(19)", "MODIFY b … (ORA-01735)"
    ),
    "drop_cascade": Wrong("DROP TABLE t CASCADE", "CASCADE CONSTRAINTS (ORA-00905)"),
    "trailing_semicolon": Wrong(
        "SELECT id FROM t;", "the driver sends it on, and SQL has none (ORA-00933, ORA-03048)"
    ),
}
"""Twenty more, written when ``oracle_grammar.DENIED`` had been, and before they were asked about:
the nodes denied there were chosen by looking at the forty. One was put in later, for a statement
with AS after ``(VALUES …)``, which 23ai turned out to take."""
