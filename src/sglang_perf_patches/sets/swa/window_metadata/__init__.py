"""``swa.window-metadata``."""

from ....model.patch import Patch, Variant, of
from ....model.releases import between
from ..proven import WINDOWS
from ..references import OLD_ALLOCATOR

BACKEND = "sglang.srt.layers.attention.triton_backend"
EAGER = f"{BACKEND}:update_sliding_window_buffer"
CAPTURED = f"{BACKEND}:update_sliding_window_buffer_cuda_graph"
_POOLS = "sglang.srt.mem_cache.swa_memory_pool"
POOL = f"{_POOLS}:SWAKVPool"
_ATTENTION = f"{BACKEND}:TritonAttnBackend"
_EXTEND = "extend_attention:build_unified_kv_indices"
_TRANSLATOR = "sglang.srt.mem_cache.kv_index_translator:KVIndexTranslator"

_RELIES_ON = (
    # Who reads the buffer, and that none does behind the last window's end.
    *of(_ATTENTION, "__init__", "init_cuda_graph_state", "init_forward_metadata"),
    *of(_ATTENTION, "init_forward_metadata_capture_cuda_graph", "_update_decode_kv_buffers"),
    *of(_ATTENTION, "init_forward_metadata_replay_cuda_graph", "_update_target_verify_buffers"),
    *of(_ATTENTION, "init_forward_metadata_out_graph", "_apply_cuda_graph_metadata"),
    *of(_ATTENTION, "forward_extend", "forward_decode", "_forward_extend_unified"),
    f"sglang.srt.layers.attention.triton_ops.{_EXTEND}",
    f"sglang.kernels.ops.attention.{_EXTEND}",
    # What translates.
    *of(POOL, "__init__", "register_mapping", "translate_loc_from_full_to_swa"),
)
_OLD = (f"{OLD_ALLOCATOR}.__init__", f"{OLD_ALLOCATOR}.translate_loc_from_full_to_swa")
_NEW = ("sglang.srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator.__init__",)


def _variant(first: str, last: str, install: str, *depends: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{__name__}.body:{install}",
        targets=(EAGER,),
        depends=(*_RELIES_ON, *_NEW, *depends),
        awaits=(_POOLS,),
    )


PATCH = Patch(
    id="swa.window-metadata",
    proven_with=WINDOWS,
    summary="Triton attention's windows are translated without the host's waiting for their length",
    variants=(
        Variant(
            releases=between("0.5.12", "0.5.12.post1"),
            install=f"{__name__}.body:install_in_both",
            targets=(EAGER, CAPTURED),
            depends=(*_RELIES_ON, *_OLD),
            awaits=(_POOLS,),
        ),
        _variant("0.5.13", "0.5.18", "install"),
        _variant("0.5.19", "0.5.19", "install_with_table"),
        _variant(
            "0.5.20",
            "0.5.21",
            "install_with_translator",
            *of(_TRANSLATOR, "fill_packed_read_stream", "reads_are_translated"),
        ),
    ),
)
