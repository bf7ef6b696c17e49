BEGIN TRANSACTION;
CREATE TABLE locus_checkpoints (
	line BIGINT NOT NULL, 
	sequence BIGINT NOT NULL, 
	chain BIGINT NOT NULL, 
	parent BIGINT, 
	checkpoint_id VARCHAR(256) NOT NULL, 
	digest BLOB NOT NULL, 
	codec SMALLINT DEFAULT 0 NOT NULL, 
	metadata TEXT, 
	labels TEXT, 
	created_at BIGINT NOT NULL, 
	text TEXT, 
	payload BLOB, 
	CONSTRAINT locus_checkpoints_pk PRIMARY KEY (line, sequence), 
	CONSTRAINT locus_checkpoints_id UNIQUE (line, checkpoint_id)
);
INSERT INTO "locus_checkpoints" VALUES(1,1,1,NULL,'v1',X'01010101010101010101010101010101',0,'{"step":1}','{"agent_id":"a","tags":["x"]}',1767323045678901,NULL,X'6672616D65732031');
INSERT INTO "locus_checkpoints" VALUES(1,2,1,1,'v2',X'02020202020202020202020202020202',0,'{"step":2}','{"agent_id":"a","tags":["x"]}',1767323045678901,NULL,X'6672616D65732032');
CREATE TABLE locus_lines (
	line INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(65) NOT NULL, 
	thread_id VARCHAR(256) NOT NULL, 
	namespace VARCHAR(256) NOT NULL, 
	head BIGINT, 
	open_chain BIGINT, 
	open_bytes BIGINT DEFAULT 0 NOT NULL, 
	floor BIGINT DEFAULT 0 NOT NULL, 
	last_sequence BIGINT DEFAULT 0 NOT NULL, 
	writer VARCHAR(256), 
	run VARCHAR(256), 
	updated_at BIGINT NOT NULL, 
	CONSTRAINT locus_lines_id UNIQUE (tenant, thread_id, namespace)
);
INSERT INTO "locus_lines" VALUES(1,'default','//kept','/',2,1,1100,0,2,'run',NULL,1767323045678901);
CREATE TABLE locus_messages (
	thread BIGINT NOT NULL, 
	sequence BIGINT NOT NULL, 
	message_id VARCHAR(256) NOT NULL, 
	role VARCHAR(256) NOT NULL, 
	metadata TEXT, 
	created_at BIGINT NOT NULL, 
	text TEXT, 
	payload BLOB, 
	CONSTRAINT locus_messages_pk PRIMARY KEY (thread, sequence), 
	CONSTRAINT locus_messages_id UNIQUE (thread, message_id)
);
INSERT INTO "locus_messages" VALUES(1,1,'m1','user',NULL,1767323045678901,'hello',X'7B7D');
CREATE TABLE locus_settings (
	name VARCHAR(64) NOT NULL, 
	value VARCHAR(1000) NOT NULL, 
	CONSTRAINT locus_settings_pk PRIMARY KEY (name)
);
INSERT INTO "locus_settings" VALUES('store_id','5e0f0a7c0b5e4f1d9a3b2c1d0e9f8a7b');
INSERT INTO "locus_settings" VALUES('compatibility_floor','0001');
INSERT INTO "locus_settings" VALUES('chain_factor','4');
INSERT INTO "locus_settings" VALUES('record_overhead','512');
INSERT INTO "locus_settings" VALUES('user_id_type','string');
CREATE TABLE locus_store (
	item INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(65) NOT NULL, 
	namespace VARCHAR(301) NOT NULL, 
	"key" VARCHAR(256) NOT NULL, 
	metadata TEXT, 
	version BIGINT DEFAULT 1 NOT NULL, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	value BLOB, 
	CONSTRAINT locus_store_id UNIQUE (tenant, namespace, "key")
);
INSERT INTO "locus_store" VALUES(1,'default','["users"]','/','{"a":1}',1,1767323045678901,1767323045678901,NULL,X'7B7D');
CREATE TABLE locus_threads (
	thread INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(65) NOT NULL, 
	thread_id VARCHAR(256) NOT NULL, 
	user_id VARCHAR(256), 
	name VARCHAR(1001), 
	metadata TEXT, 
	created_at BIGINT NOT NULL, 
	active_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	CONSTRAINT locus_threads_id UNIQUE (tenant, thread_id)
);
INSERT INTO "locus_threads" VALUES(1,'default','//kept','u',NULL,'{"kept":true,"nul":"\u00010"}',1767323045678901,1767323040000000,NULL);
CREATE TABLE locus_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT locus_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "locus_version" VALUES('0001');
CREATE TABLE locus_writes (
	line BIGINT NOT NULL, 
	checkpoint_id VARCHAR(256) NOT NULL, 
	task_id VARCHAR(256) NOT NULL, 
	idx INTEGER NOT NULL, 
	channel VARCHAR(256) NOT NULL, 
	type VARCHAR(256), 
	task_path TEXT, 
	basis BIGINT, 
	created_at BIGINT NOT NULL, 
	payload BLOB, 
	CONSTRAINT locus_writes_pk PRIMARY KEY (line, checkpoint_id, task_id, idx)
);
INSERT INTO "locus_writes" VALUES(1,'v2','/',0,'c','json',NULL,NULL,1767323045678901,X'7B7D');
CREATE INDEX locus_threads_active ON locus_threads (tenant, active_at, thread);
CREATE INDEX locus_threads_user ON locus_threads (tenant, user_id, active_at, thread) WHERE user_id IS NOT NULL;
CREATE INDEX locus_threads_expires ON locus_threads (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX locus_store_expires ON locus_store (expires_at) WHERE expires_at IS NOT NULL;
CREATE VIEW locus_heads AS
SELECT CASE WHEN SUBSTR(t.tenant, 1, 1) = '/' THEN SUBSTR(t.tenant, 2) ELSE t.tenant END AS tenant,
  CASE WHEN SUBSTR(t.thread_id, 1, 1) = '/' THEN SUBSTR(t.thread_id, 2) ELSE t.thread_id END AS thread_id,
  CASE WHEN SUBSTR(c.checkpoint_id, 1, 1) = '/' THEN SUBSTR(c.checkpoint_id, 2) ELSE c.checkpoint_id END AS checkpoint_id,
  json_extract(c.labels, '$.agent_id') AS agent_id,
  CASE WHEN SUBSTR(t.user_id, 1, 1) = '/' THEN SUBSTR(t.user_id, 2) ELSE t.user_id END AS user_id,
  strftime('%Y-%m-%dT%H:%M:%fZ', t.created_at / 1000000.0, 'unixepoch') AS created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', l.updated_at / 1000000.0, 'unixepoch') AS updated_at,
  c.metadata AS metadata,
  c.text AS text
FROM locus_threads t
JOIN locus_lines l ON l.tenant = t.tenant AND l.thread_id = t.thread_id AND l.namespace = '/'
JOIN locus_checkpoints c ON c.line = l.line AND c.sequence = l.head
WHERE t.expires_at IS NULL OR t.expires_at > CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('locus_threads',1);
INSERT INTO "sqlite_sequence" VALUES('locus_lines',1);
INSERT INTO "sqlite_sequence" VALUES('locus_store',1);
COMMIT;
