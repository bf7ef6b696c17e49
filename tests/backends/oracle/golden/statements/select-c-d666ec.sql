-- owner: NULL
-- names_1: str
SELECT c.table_name, c.column_name FROM all_tab_columns c
        WHERE c.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
        AND c.table_name IN (:names_1)
