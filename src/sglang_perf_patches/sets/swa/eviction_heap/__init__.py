"""``swa.eviction-heap``."""

from ....model.patch import Patch, Variant, Worth, of
from ....model.releases import between
from ..proven import PREFIXES
from ..references import FULL_COMPONENT, OLD_FULL_COMPONENT, TREE

_UNIFIED = "sglang.srt.mem_cache.unified_cache"
_NODE = f"{_UNIFIED}.unified_tree_core:UnifiedTreeNode"
_COMPONENTS = f"{_UNIFIED}.components"
_POLICIES = "sglang.srt.mem_cache.evict_policy"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

_RELIES_ON = (
    # Which nodes are leaves, and what makes them younger, used more often or more important.
    *of(TREE, "reset", "_register_node", "_unregister_node", "_is_device_leaf"),
    *of(TREE, "_match_post_processor", "_touch_node", "_inc_hit_count_and_check"),
    *of(TREE, "begin_insert", "_insert_walk_step", "_finish_insert_walk_node", "_split_node"),
    f"{_NODE}.__lt__",
    f"{_POLICIES}:LRUStrategy",
    f"{_POLICIES}:LFUStrategy",
    f"{_POLICIES}:FIFOStrategy",
    f"{_POLICIES}:FILOStrategy",
    f"{_POLICIES}:PriorityStrategy",
    f"{_POLICIES}:SLRUStrategy",
    # The walk.
    *of(TREE, "evict_device_leaf", "_delete_unbacked_device_leaf", "_release_all_component_layers"),
    *of(TREE, "_iteratively_delete_tombstone_leaf", "_iteratively_delete_tombstone_ancestors"),
    *of(TREE, "_remove_leaf_from_parent", "_cascade_evict"),
    f"{_CACHE}._evict_components",
)


def _component(full: str, tree_component: str, mamba: str) -> tuple[str, ...]:
    return (
        *of(full, "__init__", "_ensure_eviction_strategy", "acquire_component_lock"),
        *of(full, "_evict_device_next_node", "_evict_device_end"),
        f"{_COMPONENTS}.{tree_component}:get_and_increase_time_counter",
        f"{_COMPONENTS}.{mamba}:MambaComponent.commit_insert_component_data",
    )


PATCH = Patch(
    id="swa.eviction-heap",
    only_with=("prefix-cache",),
    proven_with=PREFIXES,
    summary="the prefix cache keeps its eviction heap; stock builds one at each eviction",
    worth=Worth(
        "a",
        "with 20,000 leaves a request takes 0.83 of the CPU time that stock's scheduler needs",
        "tests/benchmarks/results/swa.md",
        "saturated-19",
    ),
    variants=(
        Variant(
            releases=between("0.5.17", "0.5.19"),
            install=f"{__name__}.body:install_in_old_component",
            targets=(
                f"{TREE}._update_evictable_leaf_sets",
                f"{OLD_FULL_COMPONENT}._evict_device_start",
            ),
            depends=(
                *_RELIES_ON,
                *_component(OLD_FULL_COMPONENT, "tree_component", "mamba_component"),
            ),
            awaits=(_POLICIES, _COMPONENTS),
        ),
        Variant(
            releases=between("0.5.20", "0.5.23"),
            install=f"{__name__}.body:install",
            targets=(
                f"{TREE}._update_evictable_leaf_sets",
                f"{FULL_COMPONENT}._evict_device_start",
            ),
            depends=(*_RELIES_ON, *_component(FULL_COMPONENT, "base", "mamba")),
            awaits=(_POLICIES, _COMPONENTS),
        ),
    ),
)
