-- owner: NULL
-- name: str
SELECT i.status, i.domidx_opstatus FROM all_indexes i
            WHERE i.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
            AND i.index_name = :name
