"""Checks of ``swa.eviction-heap`` on one release, over sglang's own prefix caches and pools."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import sglang_perf_patches
from sglang_perf_patches.sets.swa.eviction_heap.leaves import SLACK, Leaves, Walk
from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.mamba.exhaustion import ACTIONS, act, submit
from tests.proof.mamba.host_states import drawn_shape
from tests.proof.mamba.hosted_server import HostedServer
from tests.proof.swa import evictions
from tests.proof.swa.prefix_trees import POLICIES, Ask, PrefixTree, prepare

PATCH = "swa.eviction-heap"
FULL = 0
"""Stock's number of the component that owns full attention's KV."""


def full_caches(episodes: int) -> int:
    """A patched cache and stock's, side by side, step by step; how many leaves went.

    The episodes are always the same. Raises what differs first.
    """
    prepare()
    evicted = 0

    @settings(
        max_examples=episodes,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64))  # not its own randomness, which prefers short episodes
    def each(drawn: int) -> None:
        nonlocal evicted
        shape, acts = evictions.episode(Random(drawn), POLICIES)
        patched, stock = PrefixTree(shape), _left_to_stock(PrefixTree(shape))
        for name, words in acts:
            done = [getattr(tree, name)(*words) for tree in (patched, stock)]
            assert done[0] == done[1], (drawn, shape, name, words)
            told = [tree.told() for tree in (patched, stock)]
            assert told[0] == told[1], (drawn, shape, name, words)
            evicted += len(told[0][0])

    with live(PATCH):
        each()
    return evicted


def a_tree_with_a_host(policy: str, episodes: int) -> int:
    """Servers of a hybrid model with the hierarchical cache: how many leaves the device evicts.

    Raises:
        AssertionError: stock evicts other leaves, or requests find other prefixes.
    """
    publish()  # no patch may be on when a proof begins, and the last server had a host's cache

    def told(seed: int) -> tuple[list[list[int]], Any]:
        random = Random(seed)
        server = HostedServer(replace(drawn_shape(random), policy=policy, tokens=64 * 24))
        evicted: list[list[int]] = []
        stock = server.tree._evict_device_leaf

        def evict(node: Any, tracker: Any) -> Any:
            value = server.tree.tree_core.node_by_id(node).component_data[FULL].value
            evicted.append(value.tolist())
            return stock(node, tracker)

        server.tree._evict_device_leaf = evict
        for _ in range(ACTIONS):
            submit(server, random)
            act(server, random)
        server.drain()
        server.check_drained()
        return evicted, server.found

    expected = [told(seed) for seed in range(episodes)]
    with live(PATCH):
        assert [told(seed) for seed in range(episodes)] == expected
    hosted = sum(host > 0 for _, found in expected for _, host in found.values())
    assert hosted, "nothing is loaded back"
    return sum(len(evicted) for evicted, _ in expected)


def what_is_not_served_is_stocks() -> None:
    """Another order, core, component or sessions: stock's own heap of all leaves."""
    prepare()
    with live(PATCH):
        assert type(_heap_of(evictions.crowded(8))) is Walk
        assert type(_heap_of(evictions.crowded(8, policy="mru"))) is list
        assert type(_heap_of(_left_to_stock(evictions.crowded(8)))) is list
        tree = evictions.crowded(8)
        part = tree.core.components[FULL]
        part.__class__ = type("Other", (type(part),), {})
        assert type(_heap_of(tree)) is list
        tree = evictions.crowded(8)
        tree.core.enable_session_radix_cache = True
        assert type(_heap_of(tree)) is list


def memory_is_bounded() -> None:
    """Requests that come and go, and leaves that are locked and freed: few entries, and no node."""
    prepare()
    with live(PATCH):
        tree = evictions.crowded(100)
        tree.evict(4)
        kept = _kept()
        for number in range(2000):
            tree.request(Ask((number % 50, 7, 7, number)))
            leaves = len(tree.core.evictable_device_leaves)
            assert len(kept._entries) <= 2 * leaves + SLACK + 1, number
            assert len(kept._noted) <= leaves + SLACK, number
        del kept, tree
        tree = evictions.crowded(100)
        tree.evict(4)
        for _ in range(3):  # nothing is evicted meanwhile
            for first in range(4, 124, 4):
                tree.request(Ask(tuple(range(first, first + 4)), stays=True))
            for _ in range(30):
                tree.end(0)
            assert len(_kept()._noted) == 31, "each leaf once, and the one that went"
        leaf = weakref.ref(next(iter(tree.core.evictable_device_leaves)))
        tree.flush()
        gc.collect()
        assert leaf() is None, "a node outlives its tree"
        kept = _kept()
        for number in range(2 * SLACK):  # leaves come and go, without an eviction by stock's walk
            tree.request(Ask((number, 1, 1, 1)))
            tree.cache.reset()
            tree.kv.clear()
        assert len(kept._noted) <= 2 * SLACK
        tree.request(Ask((1, 2, 3, 4)))
        tree.evict(4)
        assert tree.told()[0][-1] == [1, 2, 3, 4]


def a_walk_outlives_the_patch() -> None:
    """The patch is taken off, and put back, in the middle of an eviction."""
    prepare()
    expected = evictions.crowded(40)
    expected.evict(80)
    expected.evict(40)
    stock = expected.told()[0]
    for back in (False, True):
        tree = evictions.crowded(40)
        with live(PATCH, ran=None):
            inner = tree.cache._evict_device_leaf

            def leaf(
                node: Any, tracker: Any, inner: Any = inner, tree: Any = tree, back: bool = back
            ) -> Any:
                if len(tree.evicted) == 5:
                    sglang_perf_patches.deactivate()
                    if back:
                        sglang_perf_patches.activate(PATCH)
                return inner(node, tracker)

            tree.cache._evict_device_leaf = leaf
            tree.evict(80)
            tree.cache._evict_device_leaf = inner
            sglang_perf_patches.activate(PATCH)
            tree.evict(40)
            assert tree.told()[0] == stock


def a_leaf_that_stays_is_offered_again() -> None:
    """A walk that ends before the leaf that it chose has gone."""
    prepare()
    with live(PATCH):
        tree = evictions.crowded(8)
        first = [_chosen(tree) for _ in range(3)]
        assert len(set(first)) == 1, first
        tree.evict(4)
        assert _chosen(tree) != first[0]


def broken_heap(how: str, episodes: int) -> str | None:
    """What the checks of order say while the heap lacks something; None if they pass."""
    try:
        with BREAKS[how]():
            full_caches(episodes)
            a_leaf_that_stays_is_offered_again()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextlib.contextmanager
def _never_out_of_date() -> Iterator[None]:
    """A leaf that was touched stays where it was."""

    def least(self: Leaves, core: Any, priority: Any) -> Any:
        while self._entries:
            node = core._node_arena.get(self._entries[0][-1])
            if node in core.evictable_device_leaves:
                return node
            self.lend_least()
            self._noted.clear()
        return None

    with mock.patch.object(Leaves, "least", least):
        yield


@contextlib.contextmanager
def _dead_ones_too() -> Iterator[None]:
    """What is no leaf any more is not skipped."""

    def least(self: Leaves, core: Any, priority: Any) -> Any:
        return core._node_arena.get(self._entries[0][-1]) if self._entries else None

    with mock.patch.object(Leaves, "least", least):
        yield


@contextlib.contextmanager
def _without_new_ones() -> Iterator[None]:
    with mock.patch.object(Leaves, "note", return_value=True):
        yield


@contextlib.contextmanager
def _not_given_back() -> Iterator[None]:
    def lend_least(self: Leaves) -> None:
        stock = set(self._noted)
        lends(self)
        self._noted = stock

    lends = Leaves.lend_least
    with mock.patch.object(Leaves, "lend_least", lend_least):
        yield


@contextlib.contextmanager
def _parents_first() -> Iterator[None]:
    """The next leaf comes up only where no parent is on the heap."""

    def is_left(self: Walk) -> bool:
        return len(self) > 0 or stock(self)

    stock = Walk.__bool__
    with mock.patch.object(Walk, "__bool__", is_left):
        yield


BREAKS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "a touched leaf keeps its place": _never_out_of_date,
    "what is no leaf is not skipped": _dead_ones_too,
    "new leaves are not noted": _without_new_ones,
    "what was lent is lost": _not_given_back,
    "parents go before older leaves": _parents_first,
}


def _left_to_stock(tree: PrefixTree) -> PrefixTree:
    """The same tree, whose core is not of stock's own class any more."""
    tree.core.__class__ = type("Other", (type(tree.core),), {})
    return tree


def _heap_of(tree: PrefixTree) -> Any:
    """What stock's walk pops from."""
    part = tree.core.components[FULL]
    tree.core.evict_device_start(part.component_type, 1)
    heap = part._evict_device_heap
    tree.core.evict_device_end(part.component_type)
    return heap


def _chosen(tree: PrefixTree) -> int:
    """The node that a walk chooses first; it stays."""
    kind = tree.core.components[FULL].component_type
    tree.core.evict_device_start(kind, 1)
    chosen = tree.core.evict_device_next_node(kind, {kind: 0}).node_id
    tree.core.evict_device_end(kind)
    return int(chosen)


def _kept() -> Leaves:
    """The heap of the one tree that there is, which only the patch holds."""
    gc.collect()
    heaps = [each for each in gc.get_objects() if type(each) is Leaves]
    assert len(heaps) == 1
    return heaps[0]


CHECKS: dict[str, Callable[..., Any]] = {
    check.__name__: check
    for check in (
        full_caches,
        a_tree_with_a_host,
        what_is_not_served_is_stocks,
        memory_is_bounded,
        a_walk_outlives_the_patch,
        a_leaf_that_stays_is_offered_again,
        broken_heap,
    )
}
"""By name, for `on_release`."""
