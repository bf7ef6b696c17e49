"""Statements that Oracle 26ai takes, of every kind that we write or may come to write.

From Oracle's manuals and from code that its authors run on a real server; no Oracle server has been
asked here. As the driver gets them: only PL/SQL ends with a semicolon.
"""

from __future__ import annotations

_DUAL = "USING (SELECT :id AS id, :a AS a FROM dual) s ON (x.id = s.id)"

RIGHT = {
    # --- saving
    "insert": "INSERT INTO t (id, a) VALUES (:id, :a)",
    "insert_numbered_binds": "INSERT INTO t (id, a) VALUES (:1, :2)",
    "insert_rows": "INSERT INTO t (id, a) VALUES (:1, :2), (:3, :4)",
    "insert_select": "INSERT INTO t (id, a) SELECT s.id, :a FROM s WHERE s.b = :b",
    "insert_returning": "INSERT INTO t (a) VALUES (:a) RETURNING id, b INTO :id_out, :b_out",
    "merge": f"MERGE INTO t x {_DUAL}"
    " WHEN MATCHED THEN UPDATE SET x.a = s.a"
    " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a)",
    "merge_insert_only": f"MERGE INTO t x {_DUAL}"
    " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a)",
    "merge_where": f"MERGE INTO t x {_DUAL}"
    " WHEN MATCHED THEN UPDATE SET x.a = s.a WHERE x.a < s.a DELETE WHERE x.a IS NULL"
    " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a) WHERE s.a IS NOT NULL",
    "merge_returning": f"MERGE INTO t x {_DUAL}"
    " WHEN MATCHED THEN UPDATE SET x.a = s.a RETURNING x.a INTO :a_out",
    "update": "UPDATE t x SET x.a = :a, x.b = x.b + 1 WHERE x.id = :id AND x.version = :version",
    "update_subquery": "UPDATE t SET (a, b) = (SELECT s.a, s.b FROM s WHERE s.id = t.id)"
    " WHERE EXISTS (SELECT 1 FROM s WHERE s.id = t.id)",
    "update_from": "UPDATE t x SET x.a = s.a FROM s WHERE s.id = x.id",
    "update_returning_old": "UPDATE t SET a = :a WHERE id = :id RETURNING OLD a, NEW a INTO :o, :n",
    "delete": "DELETE FROM t x WHERE x.id IN (:1, :2, :3)",
    "delete_rows": "DELETE FROM t WHERE id IN"
    " (SELECT id FROM t WHERE a < :a ORDER BY a FETCH FIRST 500 ROWS ONLY)",
    # --- reading
    "fetch": "SELECT id FROM t ORDER BY id FETCH FIRST 10 ROWS ONLY",
    "fetch_bind": "SELECT id FROM t ORDER BY id FETCH FIRST :n ROWS ONLY",
    "offset_fetch": "SELECT id FROM t ORDER BY id OFFSET 20 ROWS FETCH NEXT 10 ROWS ONLY",
    "without_from": "SELECT 1",
    "values_as_rows": "SELECT q.id FROM (VALUES (1, 'a'), (2, 'b')) q (id, a)",
    "values_as_rows_with_as": "SELECT q.id FROM (VALUES (1, 'a'), (2, 'b')) AS q (id, a)",
    "row_number": "SELECT id FROM (SELECT t.id, ROW_NUMBER() OVER"
    " (PARTITION BY t.a ORDER BY t.b DESC) AS n FROM t) q WHERE q.n = 1",
    "cte": "WITH q AS (SELECT id, a FROM t), r AS (SELECT id FROM q) SELECT * FROM r",
    "recursive_cte": "WITH q (id, depth) AS (SELECT id, 1 FROM t WHERE parent IS NULL"
    " UNION ALL SELECT t.id, q.depth + 1 FROM t JOIN q ON t.parent = q.id) SELECT id FROM q",
    "for_update": "SELECT id FROM t WHERE id = :id FOR UPDATE",
    "skip_locked": "SELECT id FROM t WHERE a < :a FOR UPDATE SKIP LOCKED",
    "nowait": "SELECT id FROM t WHERE id = :id FOR UPDATE NOWAIT",
    "for_update_of": "SELECT x.id FROM t x JOIN s ON s.id = x.id FOR UPDATE OF x.id WAIT 5",
    "like_escape": r"SELECT id FROM t WHERE a LIKE :a || '%' ESCAPE '\'",
    "listagg": "SELECT LISTAGG(a, ',') WITHIN GROUP (ORDER BY a) FROM t GROUP BY b",
    "left_join": "SELECT x.id, s.a FROM t x LEFT OUTER JOIN s ON s.id = x.id",
    "minus": "SELECT id FROM t MINUS SELECT id FROM s",
    # --- time
    "at_time_zone": "SELECT SYSTIMESTAMP AT TIME ZONE 'UTC' FROM dual",
    "numtodsinterval": "DELETE FROM t WHERE a < SYSTIMESTAMP - NUMTODSINTERVAL(:s, 'SECOND')",
    "interval": "SELECT id FROM t WHERE a < SYSTIMESTAMP - INTERVAL '5' SECOND",
    "extract": "SELECT EXTRACT(SECOND FROM a) FROM t",
    # --- JSON, text, vectors
    "json_exists": """SELECT id FROM t WHERE JSON_EXISTS(c, '$.k?(@ == $v)' PASSING :v AS "v")""",
    "json_value": "SELECT JSON_VALUE(c, '$.k' RETURNING VARCHAR2(100)) FROM t",
    "json_query": "SELECT JSON_QUERY(c, '$.k' WITH WRAPPER) FROM t",
    "json_table": "SELECT j.k FROM t,"
    " JSON_TABLE(t.c, '$[*]' COLUMNS (k VARCHAR2(10) PATH '$.k')) j",
    "json_serialize": "SELECT JSON_SERIALIZE(c RETURNING CLOB) FROM t",
    "contains": "SELECT id, SCORE(1) FROM t WHERE CONTAINS(c, :q, 1) > 0 ORDER BY SCORE(1) DESC",
    "vector_distance": "SELECT id, VECTOR_DISTANCE(e, :q, COSINE) AS d FROM t"
    " ORDER BY d FETCH FIRST 5 ROWS ONLY",
    "fetch_approx": "SELECT id FROM t ORDER BY VECTOR_DISTANCE(e, :q, DOT)"
    " FETCH APPROX FIRST 5 ROWS ONLY",
    "fetch_approx_accuracy": "SELECT id FROM t ORDER BY VECTOR_DISTANCE(e, :q, EUCLIDEAN)"
    " FETCH APPROX FIRST 5 ROWS ONLY WITH TARGET ACCURACY 90",
    "vector_operator": "SELECT id FROM t ORDER BY e <=> :q FETCH FIRST 5 ROWS ONLY",
    # --- definitions
    "create_table": "CREATE TABLE t (id VARCHAR2(255 CHAR) NOT NULL,"
    " n NUMBER(19) DEFAULT 0 NOT NULL CHECK (n >= 0), p BLOB, r RAW(16), c CLOB,"
    " f BINARY_DOUBLE, a TIMESTAMP(6) WITH TIME ZONE, b TIMESTAMP WITH TIME ZONE,"
    " CONSTRAINT pk_t PRIMARY KEY (id, n),"
    " CONSTRAINT fk_t FOREIGN KEY (r) REFERENCES s (r) ON DELETE CASCADE)",
    "create_table_json": "CREATE TABLE t (id NUMBER(19), c JSON, k CLOB CHECK (k IS JSON))",
    "create_table_vector": "CREATE TABLE t (id NUMBER(19), e VECTOR(1024, FLOAT32))",
    "create_table_boolean": "CREATE TABLE t (id NUMBER(19), b BOOLEAN DEFAULT FALSE NOT NULL)",
    "create_table_if_not_exists": "CREATE TABLE IF NOT EXISTS t (id NUMBER(19) PRIMARY KEY)",
    "identity": "CREATE TABLE t (id NUMBER(19) GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)",
    "alter_table_add": "ALTER TABLE t ADD (b NUMBER(19) DEFAULT 0 NOT NULL, d VARCHAR2(10 CHAR))",
    "alter_table_modify": "ALTER TABLE t MODIFY (d VARCHAR2(20 CHAR))",
    "drop_table": "DROP TABLE t CASCADE CONSTRAINTS PURGE",
    "drop_table_if_exists": "DROP TABLE IF EXISTS t",
    "create_index": "CREATE INDEX i ON t (a, b DESC) ONLINE",
    "create_unique_index": "CREATE UNIQUE INDEX i ON t (CASE WHEN a = 1 THEN id END)",
    "create_index_if_not_exists": "CREATE INDEX IF NOT EXISTS i ON t (a)",
    "context_index": "CREATE INDEX i ON t (c) INDEXTYPE IS CTXSYS.CONTEXT"
    " PARAMETERS ('sync (on commit)')",
    "search_index": "CREATE SEARCH INDEX i ON t (c) FOR JSON",
    "hnsw_index": "CREATE VECTOR INDEX i ON t (e) ORGANIZATION INMEMORY NEIGHBOR GRAPH"
    " WITH DISTANCE COSINE WITH TARGET ACCURACY 95",
    "hnsw_index_parameters": "CREATE VECTOR INDEX i ON t (e) ORGANIZATION INMEMORY NEIGHBOR GRAPH"
    " DISTANCE COSINE WITH TARGET ACCURACY 95"
    " PARAMETERS (type HNSW, neighbors 32, efconstruction 200)",
    "ivf_index": "CREATE VECTOR INDEX i ON t (e) ORGANIZATION NEIGHBOR PARTITIONS"
    " WITH DISTANCE DOT WITH TARGET ACCURACY 90",
    "create_view": "CREATE OR REPLACE VIEW v AS SELECT x.id, x.a FROM t x WHERE x.b = 1",
    "lock_table": "LOCK TABLE t IN EXCLUSIVE MODE WAIT 10",
    "set_transaction": "SET TRANSACTION READ ONLY",
    # --- PL/SQL
    "block": "BEGIN UPDATE t SET a = :a WHERE id = :id;"
    " IF SQL%ROWCOUNT = 0 THEN INSERT INTO t (id, a) VALUES (:id, :a); END IF; END;",
    "block_returning": "BEGIN UPDATE t SET version = version + 1 WHERE id = :id"
    " RETURNING version INTO :out; :n := SQL%ROWCOUNT; END;",
    "block_exception": "DECLARE taken EXCEPTION; PRAGMA EXCEPTION_INIT(taken, -54);"
    " BEGIN INSERT INTO t (id) VALUES (:id); :done := 1;"
    " EXCEPTION WHEN DUP_VAL_ON_INDEX THEN :done := 0; WHEN taken THEN RAISE;"
    " WHEN OTHERS THEN RAISE_APPLICATION_ERROR(-20001, SQLERRM); END;",
    "block_dynamic": "BEGIN EXECUTE IMMEDIATE 'CREATE TABLE t (id NUMBER(19))';"
    " EXCEPTION WHEN OTHERS THEN IF SQLCODE != -955 THEN RAISE; END IF; END;",
    "block_lob": "DECLARE l BLOB; BEGIN DBMS_LOB.CREATETEMPORARY(l, TRUE);"
    " FOR r IN (SELECT id FROM t WHERE a = :a) LOOP DELETE FROM t WHERE id = r.id; END LOOP; END;",
}
