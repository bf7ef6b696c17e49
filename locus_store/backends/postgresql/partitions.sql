-- The statements of partitions.py, by name; names in braces are filled in.

--- function
-- What the triggers do.
CREATE OR REPLACE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION 'finish locus-store db partition before TRUNCATE';
  END IF;
  {guard}
  IF TG_OP <> 'INSERT' THEN {remove}; END IF;
  IF TG_OP <> 'DELETE' THEN {renew}; END IF;
  RETURN NULL;
END$$

--- begin log
CREATE TABLE {log} AS SELECT {keys} FROM {old} WITH NO DATA

--- mark log
COMMENT ON TABLE {log} IS '{phase}'

--- mark snapshots
INSERT INTO {log} DEFAULT VALUES

--- remove logged
DELETE FROM {new} n USING (SELECT DISTINCT {keys} FROM {log} WHERE line <= {position}) d
WHERE {same}

--- renew logged
INSERT INTO {new} ({columns}) SELECT {theirs}
FROM (SELECT DISTINCT {keys} FROM {log} WHERE line <= {position}) d JOIN {old} n ON {same}

--- clear log
DELETE FROM {log}

--- find last
SELECT max(line) FROM (SELECT line FROM {old} WHERE line > {after} ORDER BY line LIMIT {rows}) i

--- copy
INSERT INTO {new} ({columns}) SELECT {columns} FROM {old} WHERE line > {after} AND line <= {last}

--- count
SELECT CASE relkind WHEN 'p' THEN (SELECT count(*) FROM pg_inherits WHERE inhparent = c.oid)
  ELSE 1 END FROM pg_class c WHERE oid = {oid}

--- owner
SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = {oid}

--- keys
SELECT quote_ident(attname) FROM pg_index JOIN pg_attribute ON attrelid = indrelid
WHERE indrelid = {oid} AND indisprimary AND attnum = ANY (indkey) ORDER BY attnum

--- columns
SELECT quote_ident(attname) FROM pg_attribute
WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum

--- options
SELECT array_to_string(reloptions, ', ') FROM pg_class
WHERE (oid = {old} OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = {old}))
  AND reloptions IS NOT NULL LIMIT 1

--- exceptions
-- What belongs to a table and would be lost with it, or cannot be partitioned.
SELECT 'view ' || r.ev_class::regclass FROM pg_depend d
  JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
  WHERE d.refobjid = {oid} AND r.ev_class NOT IN ({oid}, coalesce(to_regclass({heads}), 0))
UNION SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite WHERE ev_class = {oid}
UNION SELECT 'policy ' || quote_ident(polname) FROM pg_policy
  WHERE polrelid = {oid} AND polname <> ALL ({policies})
UNION SELECT 'row level security' FROM pg_class
  WHERE oid = {oid} AND relrowsecurity AND NOT {is_secured}
UNION SELECT 'a replica identity' FROM pg_class WHERE oid = {oid} AND relreplident <> 'd'
UNION SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
  WHERE tgrelid = {oid} AND NOT tgisinternal AND NOT starts_with(tgname, {log})
UNION SELECT 'publication ' || quote_ident(p.pubname) FROM pg_publication_rel r
  JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = {oid}
UNION SELECT 'foreign key ' || quote_ident(conname) FROM pg_constraint
  WHERE contype = 'f' AND {oid} IN (conrelid, confrelid)
UNION SELECT 'table ' || inhrelid::regclass FROM pg_inherits
  JOIN pg_class c ON c.oid = inhparent WHERE inhparent = {oid} AND c.relkind <> 'p'
UNION SELECT 'unique index ' || indexrelid::regclass FROM pg_index i
  JOIN pg_attribute a ON a.attrelid = indrelid AND a.attname = 'line'
  WHERE indrelid = {oid} AND indisunique AND NOT a.attnum = ANY (indkey)
ORDER BY 1

--- grants
-- The statements that give the copy the rights on the table, and nothing else.
WITH granted AS (
  SELECT c.oid, c.relowner, a.*, '' AS columns FROM pg_class c, aclexplode(c.relacl) a
  UNION ALL
  SELECT c.oid, c.relowner, a.*, format(' (%I)', t.attname)
  FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a),
named AS (
  SELECT *, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS who
  FROM granted WHERE grantee <> relowner)
SELECT format('REVOKE ALL ON %s FROM %s', oid::regclass, who) FROM named
WHERE oid = {new} OR oid IN (SELECT relid FROM pg_partition_tree({new}))
UNION ALL
SELECT format('GRANT %s%s ON %s TO %s%s', privilege_type, columns, {new}::regclass, who,
  CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM named WHERE oid = {old}

--- renamed
-- The statements that give the indexes of the copy their names.
WITH i AS (SELECT indrelid, indexrelid, relname, relnamespace,
    regexp_replace(pg_get_indexdef(indexrelid), ' INDEX .* USING ', ' ') AS made
  FROM pg_index JOIN pg_class c ON c.oid = indexrelid)
SELECT format('ALTER INDEX %s RENAME TO %I', n.indexrelid::regclass, o.relname), o.relname
FROM i o LEFT JOIN i n ON n.indrelid = {new} AND n.made = o.made WHERE o.indrelid = {old}

--- snapshots
-- Transactions that may read a snapshot; the state of those of other roles is unknown.
SELECT l.pid || ' ' || l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'virtualxid' AND a.datname = current_database() AND a.usesysid IS NOT NULL
  AND l.pid <> pg_backend_pid() AND (a.state IS NULL OR a.backend_xmin IS NOT NULL)

--- has rows
SELECT count(*) = {rows} FROM (SELECT FROM {new} LIMIT {rows}) rows
