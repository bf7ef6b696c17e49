"""``db vector-index`` makes the table of embeddings, once, and records its dimension."""

from __future__ import annotations

import pytest

from locus_store import InvalidArgumentError, SchemaError, UnsupportedError
from locus_store.sql import migrate
from locus_store.sql.schema.vectors import create_vector_index


@pytest.fixture
def ask(postgresql, migrated_database):
    name = migrated_database.rpartition("/")[2]
    return lambda query, *values: postgresql.value(query, *values, database=name)


def test_it_is_made_once(migrated_database, ask):
    assert create_vector_index(migrated_database, dimension=3)
    assert not create_vector_index(migrated_database, dimension=3)
    assert ask("SELECT value FROM locus_settings WHERE name = 'vector_dimension'") == "3"
    definition = ask("SELECT indexdef FROM pg_indexes WHERE tablename = 'locus_embeddings' "
                     "AND indexname LIKE '%cosine%'")  # fmt: skip
    assert "hnsw" in definition
    assert "vector_cosine_ops" in definition
    assert migrate.check(migrated_database).state == "ok"


def test_another_metric_and_method_stand_beside_it(migrated_database, ask):
    assert create_vector_index(migrated_database, dimension=3)
    assert create_vector_index(migrated_database, dimension=3, metric="l2", method="ivfflat")
    assert create_vector_index(migrated_database, dimension=3, metric="ip")
    assert ask("SELECT count(*) FROM pg_indexes WHERE tablename = 'locus_embeddings'") == 4


def test_the_dimension_is_the_same_for_good(migrated_database):
    create_vector_index(migrated_database, dimension=3)
    with pytest.raises(SchemaError, match="embeddings of 3 numbers, not 4"):
        create_vector_index(migrated_database, dimension=4)


def test_a_schema_and_a_prefix_of_its_own(database):
    where = {"schema": "memory", "prefix": "mine_"}
    migrate.upgrade(database, **where)
    assert create_vector_index(database, dimension=8, **where)
    assert not create_vector_index(database, dimension=8, **where)
    assert migrate.check(database, **where).state == "ok"


def test_a_downgrade_takes_it_away_and_it_can_be_made_again(migrated_database):
    create_vector_index(migrated_database, dimension=3)
    migrate.downgrade(migrated_database, "base")
    migrate.upgrade(migrated_database)
    assert create_vector_index(migrated_database, dimension=5)


def test_a_database_without_our_schema_is_told(database):
    with pytest.raises(SchemaError, match="db upgrade"):
        create_vector_index(database, dimension=3)


def test_a_server_without_pgvector_is_told(postgresql_tls):
    name = postgresql_tls.new_database()
    url = postgresql_tls.url(name)
    migrate.upgrade(url)
    with pytest.raises(UnsupportedError, match="pgvector"):
        create_vector_index(url, dimension=3)
    postgresql_tls.drop_database(name)


@pytest.mark.parametrize(
    "wrong", [{"dimension": 0}, {"dimension": 2001}, {"dimension": True}, {"dimension": "3"},
              {"dimension": 3, "metric": "hamming"}, {"dimension": 3, "method": "x; DROP"}]
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match="must be"):
        create_vector_index("sqlite://", **wrong)
