-- owner: NULL
-- names_1: str
-- names_2: str
-- names_3: str
-- names_4: str
-- names_5: str
-- names_6: str
-- names_7: str
-- names_8: str
-- names_9: str
-- names_10: str
-- names_11: str
-- names_12: str
-- names_13: str
-- names_14: str
-- names_15: str
SELECT c.table_name, c.column_name FROM all_tab_columns c
        WHERE c.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
        AND c.table_name IN (:names_1, :names_2, :names_3, :names_4, :names_5, :names_6, :names_7, :names_8, :names_9, :names_10, :names_11, :names_12, :names_13, :names_14, :names_15)
