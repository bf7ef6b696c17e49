"""Laws of the reference filter; ``StoreContract`` has examples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from properties import given

from locus_store.errors import InvalidArgumentError
from locus_store.testing.store import EXAMPLES, INVALID_FILTERS, MISSING, ORDERS, Cases
from locus_store.values.filters import OPERATORS, Clause, Filter

scalars = st.sampled_from(Cases.scalars)
values = st.recursive(
    scalars,
    lambda it: st.lists(it, max_size=3) | st.dictionaries(st.sampled_from("abc"), it, max_size=3),
    max_leaves=6,
)
found = values | st.just(MISSING)
numbers = scalars.filter(lambda it: isinstance(it, int | float) and not isinstance(it, bool))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
ordered = numbers | texts


def takes(condition: Any, value: Any) -> bool:
    return Filter({"k": condition}).takes({} if value is MISSING else {"k": value})


@pytest.mark.parametrize(("condition", "taken", "left"), EXAMPLES, ids=repr)
def test_an_example_holds(condition: Any, taken: list[Any], left: list[Any]) -> None:
    for value in taken:
        assert takes(condition, value), value
    for value in left:
        assert not takes(condition, value), value


@given(found, values)
def test_unequal_is_the_opposite_of_equal(value: Any, operand: Any) -> None:
    assert takes({"$ne": operand}, value) is not takes({"$eq": operand}, value)


@given(found, st.lists(values, max_size=4))
def test_in_is_equality_with_any(value: Any, operands: list[Any]) -> None:
    assert takes({"$in": operands}, value) is any(takes({"$eq": it}, value) for it in operands)


@given(values)
def test_a_value_is_equal_to_itself_and_nothing_missing(value: Any) -> None:
    assert takes({"$eq": value}, value)
    assert not takes({"$eq": value}, MISSING)
    assert takes({"$ne": value}, MISSING)


@given(values, values)
def test_equality_is_symmetric(one: Any, other: Any) -> None:
    assert takes({"$eq": one}, other) is takes({"$eq": other}, one)


@given(numbers, numbers)
def test_exactly_one_order_holds_of_two_numbers(one: Any, other: Any) -> None:
    held = [takes({it: other}, one) for it in ("$lt", "$eq", "$gt")]
    assert held == [one < other, one == other, one > other]
    assert takes({"$gte": other}, one) is not takes({"$lt": other}, one)
    assert takes({"$lte": other}, one) is not takes({"$gt": other}, one)


@given(texts, texts)
def test_texts_are_ordered_by_code_point(one: str, other: str) -> None:
    assert takes({"$lt": other}, one) is (list(map(ord, one)) < list(map(ord, other)))
    assert takes({"$gte": other}, one) is not takes({"$lt": other}, one)


@given(found, ordered, st.sampled_from(ORDERS))
def test_what_is_of_another_kind_has_no_order(value: Any, operand: Any, operator: str) -> None:
    if isinstance(value, str) and isinstance(operand, str):
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and not isinstance(operand, str)):
        assert takes({operator: operand}, value) is False


@given(found, found, values, values)
def test_conditions_hold_together(one: Any, other: Any, first: Any, second: Any) -> None:
    value = {key: it for key, it in {"a": one, "b": other}.items() if it is not MISSING}
    parts = {"a": {"$eq": first}, "b": {"$ne": second}}
    assert Filter(parts).takes(value) is all(Filter({k: v}).takes(value) for k, v in parts.items())


@given(values, values)
def test_an_object_descends(value: Any, operand: Any) -> None:
    wanted = {"a": {"b": {"$eq": operand}}}
    assert Filter(wanted).takes({"a": {"b": value}}) is takes({"$eq": operand}, value)
    assert Filter(wanted).takes({"a": [{"b": operand}]}) is False


@pytest.mark.parametrize("invalid", INVALID_FILTERS, ids=repr)
def test_what_is_no_filter_is_refused(invalid: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="filter"):
        Filter(invalid)


def test_an_unknown_operator_is_told_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'\$regex'.*\$eq, \$ne.*\$exists\. .*\$eq"):
        Filter({"a": {"$regex": "x"}})


def test_a_filter_is_its_own() -> None:
    wanted: dict[str, Any] = {"k": {"$in": [1]}}
    made = Filter(wanted)
    wanted["k"]["$in"].append(2)
    assert not made.takes({"k": 2})


def test_a_filter_is_made_of_clauses() -> None:
    assert Filter(None).clauses == Filter({}).clauses == ()
    assert Filter({"b": {}, "a": {"x.y": {"$gt": 1}}}).clauses == (
        Clause(("a", "x.y"), "$gt", 1),
        Clause(("b",), "{}", None),
    )


def test_generated_cases_match_often_enough_and_use_every_operator() -> None:
    """Else 10,000 of them would show little."""
    taken = 0
    answers: set[tuple[str, bool]] = set()
    for seed in range(2):
        cases = Cases(seed)
        items = cases.make_items(100)
        for _ in range(100):
            wanted = cases.make_filters(items)
            made = Filter(wanted["filter"]), Filter(wanted["metadata_filter"])
            for _, value, metadata in items:
                pairs = [(made[0], value), (made[1], metadata)]
                taken += all(it.takes(found) for it, found in pairs)
                for it, found in pairs:
                    if len(it.clauses) == 1:
                        answers.add((it.clauses[0].operator, it.takes(found)))
    assert 0.1 < taken / 20_000 < 0.6
    assert {it for it, answer in answers if answer} == set(OPERATORS)
    assert {it for it, answer in answers if not answer} == set(OPERATORS)


def test_an_unknown_operator_is_named_and_not_beside_itself() -> None:
    for condition in ({"$bad": 1}, {"$gt": 1, "$bad": 1}):
        with pytest.raises(InvalidArgumentError, match=r"no operator '\$bad'; known operators: "):
            Filter({"n": condition})
    with pytest.raises(InvalidArgumentError, match=r"no operator 'bad' beside '\$gt'; known"):
        Filter({"n": {"bad": 1, "$gt": 1}})
