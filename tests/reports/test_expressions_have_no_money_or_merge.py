"""A loan or an order could not be written: no exact amounts, no merge, no number formats, no month ends."""

from __future__ import annotations

import pytest

from penstock.core.expression import ExpressionError, parse
from tests.core.expression.evaluation import NOW, failure, same, value

VARIABLES = {"amount": 19.9, "list": [1, 2], "empty": [], "order": {"id": 7, "lines": [{"net": 0.1}, {"net": 0.2}]}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # exact decimals
        ('decimal("19.90") * 3', "59.70"),
        ('decimal("0.1") + decimal("0.2")', "0.3"),
        ("sum(order.lines, decimal(.net))", "0.3"),
        ('decimal("19.90") + amount', "39.80"),
        ('decimal("19.90") - 20', "-0.10"),
        ('-decimal("0.00")', "0.00"),
        ("decimal(1) / 3", "0." + "3" * 34),
        ('decimal("7.5") % 2', "1.5"),
        ('-decimal("7.5") % 2', "-1.5"),
        ('decimal("1.05") ** 2', "1.1025"),
        ("decimal(19.9, 2)", "19.90"),
        ('decimal("0.005", 2)', "0.01"),
        ('[decimal("3.0") == 3, 3.5 == decimal("3.50"), decimal("0.1") == 0.1, decimal("1") == "1"]',
         [True, True, True, False]),
        ('[decimal("1.5") < 2, decimal("1.5") > 1.4, 2 >= decimal("2.0")]', [True, True, True]),
        ('[decimal("1") in [1], decimal("1") == nil]', [True, False]),
        ('sort([decimal("0.3"), 0.1, 2])', [0.1, "0.3", 2]),
        ('[max(decimal("1.1"), 1), min([2, decimal("0.5")])]', ["1.1", "0.5"]),
        ('[mean([decimal("0.1"), 0.2]), median([decimal("0.1"), 5, 1])]', ["0.15", "1"]),
        ('[abs(decimal("-1.50")), ceil(decimal("1.1")), floor(decimal("-1.1"))]', ["1.50", "2", "-2"]),
        ('[int(decimal("-2.9")), float(decimal("2.90")), string(decimal("2.90"))]', [-2, 2.9, "2.90"]),
        ('[type(decimal("1")), toJSON(decimal("1.0"))]', ["decimal", '"1.0"']),
        ('decimal(decimal("1.10"))', "1.10"),
        ('decimal("123456789012345678901234567890.12") + 1', "123456789012345678901234567891.12"),
        # rounding to places
        ("[round(2.675, 2), round(-2.675, 2), round(2.5, 0), round(1250, -2), round(5, 2)]", [2.68, -2.68, 3, 1300, 5]),
        ('[round(decimal("19.9"), 2), round(decimal("2.5")), round(decimal("1250"), -2)]', ["19.90", "3", "1300"]),
        ("[round(2.5), round(-2.5)]", [3, -3]),
        # maps, padding, formats
        ('merge({"a": 1, "b": 1}, {"b": 2}, {})', {"a": 1, "b": 2}),
        ("merge(order, {'lines': []}) == {'id': 7, 'lines': []}", True),
        ('[pad("7", -3, "0"), pad("ab", 4), pad("abc", 2), pad("", 3, "xy")]', ["007", "ab  ", "abc", "xyx"]),
        ('formatNumber(1234567.895, "#,##0.00")', "1,234,567.90"),
        ('formatNumber(-0.001, "0.00")', "0.00"),
        ('formatNumber(-1234.5, "#,##0.0;(#,##0.0)")', "(1,234.5)"),
        ('formatNumber(0.5, "#.0#")', ".5"),
        ('formatNumber(0, "#")', "0"),
        ('formatNumber(7, "000")', "007"),
        ('formatNumber(0.256, "0%")', "26%"),
        ('formatNumber(1e6, "#,###", {"grouping-separator": "."})', "1.000.000"),
        ('formatNumber(decimal("12345678901234567890.129"), "#,##0.00")', "12,345,678,901,234,567,890.13"),
        # dates
        ('addMonths(date("2031-01-31"), 1)', "2031-02-28T00:00:00Z"),
        ('addMonths(date("2032-01-31"), 1)', "2032-02-29T00:00:00Z"),
        ('addMonths(date("2031-03-31"), -13)', "2030-02-28T00:00:00Z"),
        ('endOfMonth(date("2031-12-03 10:00:00"))', "2031-12-31T10:00:00Z"),
        ('addMonths(date("2031-02-28 09:00:00", "2006-01-02 15:04:05", "Europe/Warsaw"), 2)', "2031-04-28T07:00:00Z"),
        ('daysBetween(date("2031-01-31"), date("2031-03-01"))', 29),
        ('daysBetween(date("2031-03-01"), date("2031-01-31"))', -29),
        ('daysBetween(date("2031-01-01T23:59:00Z"), date("2031-01-02T00:01:00Z"))', 1),
        ('let z = timezone("Europe/Warsaw"); daysBetween(date(z, "2031-03-29"), date(z, "2031-03-31"))', 2),
        # what is not there
        ("list[5] ?? 0", 0),
        ("empty[-1] ?? 'none'", "none"),
        ("order.lines[9].net ?? 0", 0),
        ("(list[5] ?? 1) + 1", 2),
        ("nowhere?.[2] ?? 'none'", "none"),
        ("map(1..3, list[#] ?? 0)", [2, 0, 0]),
    ],
)  # fmt: skip
def test_what_people_miss_in_expr_is_there(source, expected):
    assert same(value(source, VARIABLES), expected)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('decimal("x")', "'x' is not a number"),
        ("decimal(nil)", "the argument of decimal must be a number, or text that is one, not nil"),
        ('decimal("1") + "1"', "+ can't join a decimal and a string"),
        ('decimal("1") < "1"', "< can't order a decimal and a string"),
        ('decimal("1") / 0', "division by zero"),
        ('decimal("-1") ** 0.5', "** has no result that is a decimal"),
        ("merge(order, nil)", "an argument of merge must be a map, not nil"),
        ('formatNumber("1", "0")', "the first argument of formatNumber must be a number, not a string"),
        ('formatNumber(1, "x")', "'x' is not a picture of a number such as #,##0.00"),
        ('pad("a", 2, "")', "the third argument of pad must not be empty"),
        ('daysBetween("2031-01-01", now())', "a date is needed, not a string"),
        ("list[5]", "the index 5 is out of range: the length is 2"),
        ("list[list[5]] ?? 1", "the index 5 is out of range: the length is 2"),
        ("order.nothing[0] ?? 1", "can't take an element of nil"),
        ("list['a'] ?? 1", "an index must be a whole number, not a string"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(source, reason):
    assert failure(source, VARIABLES).reason == reason


def test_a_function_of_ours_is_refused_with_too_few_arguments_when_it_is_parsed():
    with pytest.raises(ExpressionError, match="takes 2 arguments, not 1"):
        parse("addMonths(now())").evaluate({}, NOW)
