"""Checks of Oracle's SQL by two grammars, and checks of these grammars."""

from __future__ import annotations

import re

import oracle_grammar as grammars
import pytest
import test_oracle_recorded as recorded
from oracle_right import RIGHT
from oracle_wrong import HELD_OUT, WRONG

from locus_store.sql import migrate
from locus_store.sql.schema import user_ids

# Wrong statements that are let through.
FIRST = {
    "array_literal",
    "cast_as_interval",
    "fetch_for_update",
    "for_update_before_fetch",
    "json_exists_bind_path",
}
SECOND_UNDENIED = {
    "as_before_table_alias",
    "block_without_semicolon",
    "cast_as_interval",
    "cast_colons",
    "default_after_not_null",
    "distinct_on",
    "fetch_for_update",
    "ilike",
    "interval_words",
    "json_exists_bind_path",
    "limit",
    "merge_as_before_alias",
    "merge_matched_and",
    "timestamp_without_time_zone",
    "update_as_before_alias",
}
HELD_OUT_FIRST = {"array_index"}
HELD_OUT_SECOND = {
    "array_index",
    "merge_delete",
    "merge_on_bare",
    "regex_operator",
    "top",
    "trailing_semicolon",
}
# Wrong statements that are refused for what the grammar does not know, so that it proves nothing.
FIRST_NOT_ASKED: set[str] = set()
SECOND_NOT_ASKED = {"offset_without_rows"}
# Right statements that are refused, and whose syntax no run of words tells apart.
FIRST_REFUSES = {"insert_rows", "merge_returning", "update_from"}
# Right statements that neither grammar knows.
UNASKED = {
    "fetch_approx",
    "fetch_approx_accuracy",
    "hnsw_index",
    "hnsw_index_parameters",
    "ivf_index",
    "json_exists",
    "search_index",
    "vector_operator",
}
# What is sent and that one grammar at most knows: the rest of a statement can be asked about.
UNKNOWN_WORDS = re.compile(r'IF NOT EXISTS |(?<=FETCH )APPROX | PASSING :\w+ AS "v"(?=\))')

second = grammars.second_errors


def _through(wrong, errors):
    return {name for name, it in wrong.items() if not errors(it.statement)}


def _not_asked(names, statements, unknown):
    return {it for it in names if grammars.unknown(statements[it], unknown)}


def test_there_are_forty_and_twenty_wrong_statements():
    assert (len(WRONG), len(HELD_OUT)) == (40, 20)


def test_the_first_grammar_refuses_35_of_40_and_19_of_20(oracle_grammar):
    assert _through(WRONG, oracle_grammar.errors) == FIRST
    assert _through(HELD_OUT, oracle_grammar.errors) == HELD_OUT_FIRST


def test_the_second_grammar_refuses_25_of_40_as_it_comes():
    assert _through(WRONG, grammars.second_errors_undenied) == SECOND_UNDENIED


def test_the_second_grammar_with_nodes_denied_refuses_40_of_40_and_14_of_20():
    """The latter is the figure to trust: the nodes were chosen by looking at the forty."""
    assert _through(WRONG, second) == set()
    assert _through(HELD_OUT, second) == HELD_OUT_SECOND


def test_wrong_statements_refused_for_want_of_knowledge_are_few():
    statements = {name: it.statement for name, it in WRONG.items()}
    first = WRONG.keys() - FIRST
    assert _not_asked(first, statements, grammars.UNKNOWN) == FIRST_NOT_ASKED
    assert _not_asked(WRONG, statements, grammars.SECOND_UNKNOWN) == SECOND_NOT_ASKED
    assert not FIRST_NOT_ASKED & SECOND_NOT_ASKED


def test_the_first_grammar_accepts_what_is_right_and_known_to_it(oracle_grammar):
    refused = {name for name, statement in RIGHT.items() if oracle_grammar.errors(statement)}
    assert refused - _not_asked(RIGHT, RIGHT, grammars.UNKNOWN) == FIRST_REFUSES
    assert _not_asked(RIGHT, RIGHT, grammars.UNKNOWN) <= refused, "knows more than is listed"


def test_the_second_grammar_accepts_what_is_right_and_known_to_it():
    refused = {name for name, statement in RIGHT.items() if second(statement)}
    assert refused == _not_asked(RIGHT, RIGHT, grammars.SECOND_UNKNOWN)


def test_what_no_grammar_is_asked_about_is_told():
    first = _not_asked(RIGHT, RIGHT, grammars.UNKNOWN) | FIRST_REFUSES
    assert first & _not_asked(RIGHT, RIGHT, grammars.SECOND_UNKNOWN) == UNASKED


def test_what_is_sent_is_right_but_for_the_words_that_no_grammar_knows(oracle_grammar):
    statements = [it for it in recorded.statements() if UNKNOWN_WORDS.search(it)]
    assert len(statements) == 17
    for statement in statements:
        rest = UNKNOWN_WORDS.sub("", statement)
        assert oracle_grammar.errors(rest) == []
        assert second(rest) == [] or grammars.unknown(rest, grammars.SECOND_UNKNOWN)


@pytest.mark.parametrize("options", [{}, {"prefix": "other_"}, {"schema": "agents"}], ids=str)
def test_the_offline_definitions_are_accepted(oracle_grammar, options):
    statements = _offline(**options)
    assert len(statements) > 20
    for statement in statements:
        assert second(statement) == []
        assert not grammars.unknown(statement, grammars.SECOND_UNKNOWN)
        if not grammars.unknown(statement, grammars.UNKNOWN):
            assert oracle_grammar.errors(statement) == []


@pytest.mark.parametrize("users", ["string", "int", "bigint"])
def test_the_definitions_of_users_ids_are_accepted(oracle_grammar, users):
    preface, script = user_ids.render_sql("oracle", users, schema="agents").split("\n\n", 1)
    assert preface == "WHENEVER SQLERROR EXIT FAILURE ROLLBACK\nSET DEFINE OFF"
    statements = [it.strip() for it in script.split(";\n") if it.strip()]
    assert len(statements) == 10
    for statement in statements:
        assert second(statement) == []
        if not grammars.unknown(statement, grammars.UNKNOWN):
            assert oracle_grammar.errors(statement) == []


def _offline(**options):
    """The statements between the slashes of SQL*Plus, without comments and its own commands."""
    begin, script = migrate.render_upgrade("oracle", **options).split("\n\n", 1)
    assert begin == "WHENEVER SQLERROR EXIT FAILURE ROLLBACK\nSET DEFINE OFF"
    lines = [it for it in script.splitlines() if not it.startswith("--")]
    parts = "\n".join(lines).split("\n/\n")
    return [it.strip() for it in parts if it.strip()]
