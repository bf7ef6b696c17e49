CREATE TABLE IF NOT EXISTS locus_search (line NUMBER(19) NOT NULL, sequence NUMBER(19) NOT NULL, tokens CLOB, CONSTRAINT locus_search_pk PRIMARY KEY (line, sequence))
