from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.graph import graph
from penstock.core.graph.graph import Gateway, TooEntangled, find_blocks, reachable

Successors = Sequence[Sequence[int]]


def test_reachable_follows_every_edge_and_includes_the_starts() -> None:
    successors = [[1], [2, 3], [], [1], [0]]
    assert reachable(successors, [0]) == {0, 1, 2, 3}
    assert reachable(successors, [2, 4]) == {0, 1, 2, 3, 4}
    assert reachable(successors, []) == set()


def test_a_chain_of_100_000_steps_needs_no_recursion() -> None:
    successors = [[index + 1] for index in range(99_999)] + [[]]
    assert len(reachable(successors, [0])) == 100_000
    blocks = find_blocks(successors, {0: Gateway(heads=[1], join=99_998)})
    assert blocks.inside(0) == frozenset(range(1, 99_998))


def test_the_block_of_a_gateway_is_its_branches_steps() -> None:
    # 0 fork → 1 → 2 → 4 join → 5 end, and → 3 → join
    successors = [[1, 3, 4], [2], [4], [4], [5], []]
    assert find_blocks(successors, {0: Gateway(heads=[1, 3], join=4)}).inside(0) == {1, 2, 3}


def test_a_branch_that_is_empty_or_named_twice_changes_nothing() -> None:
    successors = [[1, 2], [2], [3], []]
    assert find_blocks(successors, {0: Gateway(heads=[1, 2], join=2)}).inside(0) == {1}
    assert find_blocks(successors, {0: Gateway(heads=[1, 1], join=2)}).inside(0) == {1}
    assert find_blocks(successors, {0: Gateway(heads=[2, 2], join=2)}).inside(0) == set()


def test_what_the_flow_behind_the_join_reaches_is_not_inside() -> None:
    # 0 fork → 1 → 3 join → 4 → 5 end; 1 may also go straight to 4, 2 to 6 (an end of its own).
    successors = [[1, 2, 3], [3, 4], [3, 6], [4], [5], [], []]
    assert find_blocks(successors, {0: Gateway(heads=[1, 2], join=3)}).inside(0) == {1, 2, 6}


def test_a_loop_around_a_block_leaves_the_block_unchanged() -> None:
    # 0 → 1 fork → 2, 3 → 4 join → 5 → back to 0, or 6 end
    successors = [[1], [2, 3, 4], [4], [4], [5], [0, 6], []]
    assert find_blocks(successors, {1: Gateway(heads=[2, 3], join=4)}).inside(1) == {2, 3}


def test_a_loop_inside_a_branch_is_inside() -> None:
    successors = [[1, 3, 4], [2], [1, 4], [4], []]
    assert find_blocks(successors, {0: Gateway(heads=[1, 3], join=4)}).inside(0) == {1, 2, 3}


def test_a_gateway_inside_a_branch_is_found_within_the_outer() -> None:
    # 0 fork → 1 fork → 2, 3 → 4 join → 6 join; 0 → 5 → 6
    successors = [[1, 5, 6], [2, 3, 4], [4], [4], [6], [6], []]
    blocks = find_blocks(successors, {0: Gateway(heads=[1, 5], join=6), 1: Gateway(heads=[2, 3], join=4)})
    assert blocks.around(1) == [0]
    assert blocks.around(0) == []


def test_a_gateway_that_its_own_branches_reach_is_around_itself() -> None:
    successors = [[1], [2, 3, 4], [0, 4], [4], []]
    assert find_blocks(successors, {1: Gateway(heads=[2, 3], join=4)}).around(1) == [1]


def test_gateways_one_after_another_are_not_nested() -> None:
    successors = [[1, 2, 3], [3], [3], [4], [5, 6, 7], [7], [7], []]
    blocks = find_blocks(successors, {0: Gateway(heads=[1, 2], join=3), 4: Gateway(heads=[5, 6], join=7)})
    assert [blocks.around(step) for step in range(8)] == [[], [0], [0], [], [], [4], [4], []]


def test_a_gateway_without_known_join_contains_all_it_reaches() -> None:
    successors = [[1], [2], []]
    assert find_blocks(successors, {0: Gateway(heads=[1], join=None)}).inside(0) == {1, 2}


def test_without_gateways_nothing_is_inside() -> None:
    assert find_blocks([[1], []], {}).around(1) == []


def _search(successors: Successors, starts: Sequence[int], avoid: int | None) -> set[int]:
    found: set[int] = set()
    pending = list(starts)
    while pending:
        step = pending.pop()
        if step != avoid and step not in found:
            found.add(step)
            pending += successors[step]
    return found


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[list[list[int]], dict[int, Gateway]]:
    size = draw(st.integers(2, 14))
    steps = st.integers(0, size - 1)
    successors = [draw(st.lists(steps, max_size=3)) for _ in range(size)]
    gateways: dict[int, Gateway] = {}
    for index in draw(st.sets(steps, max_size=4)):
        heads = draw(st.lists(steps, max_size=3))
        join = draw(steps.filter(lambda step, index=index: step != index))
        gateways[index] = Gateway(heads=heads, join=join)
        successors[index] = [*heads, join]
    return successors, gateways


@given(_graphs())
def test_blocks_are_those_of_the_definition_by_search(given_graph: tuple[Successors, Mapping[int, Gateway]]) -> None:
    successors, gateways = given_graph
    blocks = find_blocks(successors, gateways)
    for index, gateway in gateways.items():
        branches = _search(successors, gateway.heads, gateway.join)
        own = index in branches
        assert (index in blocks.around(index)) == own
        if not own:
            assert gateway.join is not None
            after = _search(successors, [gateway.join], index)
            assert blocks.inside(index) == branches - after


def test_ten_thousand_steps_in_a_thousand_blocks_are_distinguished() -> None:
    successors: list[list[int]] = []
    gateways: dict[int, Gateway] = {}
    for first in range(0, 10_000, 10):
        join = first + 9
        gateways[first] = Gateway(heads=[first + 1, first + 5], join=join)
        successors.append([first + 1, first + 5, join])
        successors += [[first + 2], [first + 3], [first + 4], [join], [first + 6], [first + 7], [first + 8], [join]]
        successors.append([join + 1, 0] if join + 1 < 10_000 else [0])
    blocks = find_blocks(successors, gateways)
    assert all(blocks.inside(first) == frozenset(range(first + 1, first + 9)) for first in gateways)


def test_a_graph_against_the_sweeps_order_ends_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 400
    successors = [
        [min(size - 1, step + 1), max(0, step - 3) if step % 2 else min(size - 1, step + 2)] for step in range(size)
    ]
    gateways = {step: Gateway(heads=successors[step], join=(step * 7) % size) for step in range(0, size, 10)}
    find_blocks(successors, gateways)
    monkeypatch.setattr(graph, "FLOW_VISITS_MAX_COUNT", 1_000)
    with pytest.raises(TooEntangled):
        find_blocks(successors, gateways)
