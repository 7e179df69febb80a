"""The known faults of released sglang.

Each fault was seen in the released wheels: the code of its first and last release has it, and that
of the release after a fixed one has not. ``tests/releases/test_faults.py`` reads each condition
from servers' arguments as the releases resolve them; ``tests/releases/test_fault_states.py``
reproduces four, and ``tests/mamba/test_freed_rows.py`` those of freed rows.
"""

from __future__ import annotations

from .fault import Fault

_ARCHITECTURE = "model.architecture"
_POOL = {"model.is_hybrid_swa": (True,)}
"""There is a pool of its own for windows."""
_WAITS = "states prefix-cache tracked-states speculation -no-overlap"
"""A grammar's results are taken before the next verify, as without overlap."""
_GLM = {_ARCHITECTURE: ("glmmoedsaforcausallm",)}
_MAMBA2 = (
    *("nemotronhforcausallm", "nemotronhpuzzleforcausallm"),
    *("falconh1forcausallm", "granitemoehybridforcausallm"),
)

FAULTS = (
    # -- hybrid models
    Fault(
        *("mixed-chunks-states", "0.5.9 … 0.5.22", (39342, 39526)),
        symptom="a hybrid model's answers get worse under load: prefix-cache hits continue from "
        "states that were never written",
        on="states prefix-cache mixed-chunks tracked-states|other-tracking",
        help="drop `--enable-mixed-chunk`",
    ),
    Fault(
        *("mamba2-states", "0.5.13 … 0.5.19", (31833, 37836)),
        symptom="the answers of a Mamba2 model (Nemotron-H, Falcon-H1) get worse once several "
        "prompts share a prefill: the prefix cache keeps states from the wrong positions",
        on="states prefix-cache tracked-states|other-tracking",
        reads={_ARCHITECTURE: _MAMBA2},
        help="`--mamba-radix-cache-strategy no_buffer` (on 0.5.13 `--mamba-scheduler-strategy "
        "no_buffer`)",
    ),
    Fault(
        *("mamba2-cached-prefix", "0.5.14", (29330, 29368)),
        symptom="a Mamba2 model's answers get worse after a hit on a long prefix: the short "
        "remainder of the prompt starts from an empty state",
        on="states prefix-cache tracked-states|other-tracking",
        reads={_ARCHITECTURE: _MAMBA2},
        help="`--disable-radix-cache`",
    ),
    Fault(
        *("lightning-states", "0.5.13 … 0.5.16", (29973,)),
        symptom="the answers of a model with lightning attention (Ling 2.5) get worse each "
        "time a cached prefix is used again: the prefix cache keeps states of the wrong position",
        on="states prefix-cache tracked-states|other-tracking",
        reads={_ARCHITECTURE: ("bailingmoev2_5forcausallm",)},
        help="`--disable-radix-cache`",
    ),
    Fault(
        *("ngram-states", "0.5.9 … 0.5.13.post1", (26351,)),
        symptom="a hybrid model repeats itself or writes nonsense with NGRAM speculation: its "
        "states are never updated with the accepted tokens",
        on="states ngram",
        help="another speculative algorithm, or none",
    ),
    Fault(
        *("freed-row-death", "0.5.13 … 0.5.15.post1", (27325, 28312, 28407, 28484, 31249, 34786)),
        symptom="a hybrid model's scheduler crashes with `'NoneType' object cannot be interpreted "
        "as an integer` when a request with structured output or a tool call ends during "
        "speculation",
        on=_WAITS,
        help="`--disable-overlap-schedule`",
        patch="mamba.freed-rows",
    ),
    Fault(
        *("freed-row-states", "0.5.16", (29449,)),
        symptom="a hybrid model's answers get worse after requests with structured output or tool "
        "calls: with speculation, such a request overwrites a state of the prefix cache as it ends",
        on=_WAITS,
        help="`--disable-overlap-schedule`",
        patch="mamba.freed-rows",
    ),
    Fault(
        *("freed-row-ngram", "0.5.17 … 0.5.21", (29449,)),
        symptom="a hybrid model's answers get worse after requests with structured output or tool "
        "calls: with NGRAM, such a request overwrites a state of the prefix cache as it ends",
        on=f"{_WAITS} host-drafts",
        help="another speculative algorithm",
        patch="mamba.freed-rows",
    ),
    Fault(
        *("state-slots", "0.5.9 … 0.5.23", (36770, 37619, 34676)),
        symptom="the scheduler crashes with `Can not alloc mamba cache` or `Not enough space for "
        "mamba …` when the slots for states run out",
        on="states prefix-cache",
        help="more slots (`--max-mamba-cache-size`), or a lower `--max-running-requests`",
        patch="mamba.slot-exhaustion",
    ),
    Fault(
        *("refused-speculation", "0.5.9 … 0.5.10.post1", (25079, 19746)),
        symptom="a disaggregated decode server of a hybrid model with speculation does not start: "
        "`is not compatible with radix cache when using --mamba-scheduler-strategy no_buffer`",
        on="states decode-server eagle prefix-cache",
        help="`--disable-radix-cache`",
    ),
    Fault(
        *("retracted-states", "0.5.9 … 0.5.10.post1", (22493,)),
        symptom="a disaggregated decode server of a hybrid model crashes with "
        "`NotImplementedError` when its KV is full and it retracts a request",
        on="states decode-server",
        help="a lower `--max-running-requests`",
    ),
    Fault(
        *("pinned-load-back", "0.5.18", (35931, 36317)),
        symptom="the scheduler crashes with `pinned by load-back` when two requests load the same "
        "prefix from the host",
        on="host-cache states|windows",
        reads={"hicache_write_policy": ("write_back",)},
        help="`--hicache-write-policy write_through`",
    ),
    Fault(
        *("refused-load-back", "0.5.17 … 0.5.23"),
        symptom="a hybrid model with the hierarchical cache gives worse answers: a request whose "
        "state can't be loaded from the host continues a cached prefix from an empty state",
        on="states prefix-cache host-cache",
        patch="mamba.slot-exhaustion",
    ),
    # -- speculation and MLA
    Fault(
        *("page-table-bound", "0.5.9 … 0.5.23", (34239, 35985)),
        symptom="a server with EAGLE, MTP or STANDALONE on FA3 reads past its page table when a "
        "request comes near the context limit: an illegal memory access can crash it",
        on="eagle|standalone -draft-trees fa3",
        help="`--context-length` above what your requests reach",
        patch="mla.page-table-bound",
    ),
    Fault(
        *("trtllm-mla-chunks", "0.5.9 … 0.5.10.post1", (22291, 22688)),
        symptom="an MLA model answers wrongly when prompts with unequal cached prefixes share a "
        "prefill",
        on="mla",
        reads={"attention_backend": ("trtllm_mla",), "disable_chunked_prefix_cache": (False,)},
        help="`--disable-chunked-prefix-cache`",
    ),
    Fault(
        *("retracted-dsa", "0.5.12 … 0.5.13.post1", (27645,)),
        symptom="a disaggregated decode server of DeepSeek-V3.2 or GLM-5 crashes with `TypeError … "
        "mamba_indices` when its KV is full and it retracts a request",
        on="decode-server",
        reads={_ARCHITECTURE: ("deepseekv32forcausallm", "glmmoedsaforcausallm")},
        help="a lower `--max-running-requests`",
    ),
    Fault(
        *("glm-stale-seeds", "0.5.15", (30854, 30839)),
        symptom="a disaggregated decode server of GLM-5.2 or later with MTP crashes with `The size "
        "of tensor a … must match` at `dsa_seed_topk` when the number of running requests changes",
        on="decode-server eagle",
        reads=_GLM,
        help="no speculation",
        is_sure=False,
    ),
    Fault(
        *("glm-graph-votes", "0.5.15.post1 … 0.5.20", (32209, 39072, 32196)),
        symptom="a disaggregated decode server of GLM-5.2 or later with MTP and data-parallel "
        "attention hangs or crashes: a rank without draft indices leaves the CUDA graph, and the "
        "others do not",
        on="decode-server eagle dp-attention -no-cuda-graphs",
        reads=_GLM,
        help="no data-parallel attention, or no speculation",
        is_sure=False,
    ),
    Fault(
        *("glm-attention-ranks", "0.5.14 … 0.5.23", (30296, 31384)),
        symptom="GLM-5.2 or later with MTP crashes if several tensor-parallel ranks "
        "share a rank of data-parallel attention: drafts outside CUDA graphs have more rows than "
        "their attention was planned for",
        on="eagle dp-attention",
        reads=_GLM,
        unlike={"attention.ranks": (1,)},
        help="`--dp-size` equal to `--tp-size`",
        is_sure=False,
    ),
    Fault(
        *("control-broadcast", "0.5.11 … 0.5.23", (22758,)),
        symptom="with data-parallel attention each step of each rank waits for a broadcast from "
        "the first rank, which rarely has anything to tell",
        on="dp-attention",
        reads={"enable_dp_attention_local_control_broadcast": (False,)},
        help="`--enable-dp-attention-local-control-broadcast`",
    ),
    # -- windows and disaggregation
    Fault(
        *("dflash-windows", "0.5.14 … 0.5.17", (33805, 34924)),
        symptom="long replies are retracted though the KV pool is nearly empty: nothing is "
        "evicted from the window pool while DFLASH or DSPARK decodes",
        on="dflash windows -no-window-pool",
        reads=_POOL,
        help="another speculative algorithm, or a larger `--swa-full-tokens-ratio`",
    ),
    Fault(
        *("tree-windows", "0.5.9 … 0.5.11", (24402, 24617)),
        symptom="a sliding-window model with EAGLE's draft trees crashes with an illegal memory "
        "access: the trees index the window pool with slots of the full pool",
        on="eagle draft-trees windows -no-window-pool",
        reads={"attention_backend": ("fa3",), **_POOL},
        help="`--speculative-eagle-topk 1`, or `--disable-hybrid-swa-memory`",
    ),
    Fault(
        *("flashinfer-eagle-windows", "0.5.9 … 0.5.13.post1", (22679,)),
        symptom="a sliding-window model with speculation on FlashInfer crashes with `TypeError` in "
        "`update_sliding_window`",
        on="eagle|standalone|ngram windows",
        reads={"attention_backend": ("flashinfer",)},
        help="`--attention-backend` triton or fa3",
    ),
    Fault(
        *("flashinfer-verify-windows", "0.5.14 … 0.5.23", (39160, 39287)),
        symptom="a sliding-window model with speculation on FlashInfer answers wrongly once a "
        "request is longer than the window: drafts are verified against its first tokens, not "
        "against its last ones",
        on="eagle|standalone|ngram windows",
        reads={"attention_backend": ("flashinfer",)},
        help="`--attention-backend` triton or fa3",
    ),
    Fault(
        *("window-tail-mapping", "0.5.12", (25805, 26078)),
        symptom="a disaggregated decode server crashes with `AssertionError: "
        "swa_attn_allocator.available_size()`, or two requests write to one window slot",
        on="decode-server windows -no-window-pool pages",
        reads=_POOL,
        help="`--disable-hybrid-swa-memory`",
        patch="swa.tail-prealloc",
    ),
    Fault(
        *("prefill-window-cap", "0.5.9 … 0.5.12.post1", (24523, 26607)),
        symptom="a prefill server refuses a prompt that is longer than its window pool: `exceeds "
        "the maximum number of tokens`",
        on="prefill-server windows -no-window-pool",
        reads=_POOL,
        help="a larger `--swa-full-tokens-ratio`",
    ),
    Fault(
        *("idle-admission", "0.5.9 … 0.5.23"),
        symptom="a request waits forever on an idle decode server whose window pool is smaller "
        "than the window plus 4,096 tokens",
        on="decode-server windows -no-window-pool",
        reads=_POOL,
        help="a larger `--swa-full-tokens-ratio`",
        patch="swa.idle-admission",
        is_sure=False,
    ),
    # -- MLX
    Fault(
        *("mlx-quantised", "0.5.11 … 0.5.23", (40385, 25191)),
        symptom="MLX refuses a model that `mlx_lm` quantised: `Unknown quantization method: .`. "
        "Since 0.5.12, Macs accept 4-bit and 8-bit models",
        on="mlx",
        reads={_ARCHITECTURE: ()},  # a model that is read was not refused
        help="`--quantization mlx_q8` on a Mac from 0.5.12 on: a 4-bit model stays one",
        is_sure=False,
    ),
    Fault(
        *("mlx-sampling", "0.5.10 … 0.5.23", (39559,)),
        symptom="MLX ignores temperature, top-p and seed: every reply is greedy",
        on="mlx -mlx-sampling",
        help="`--mlx-enable-sampling` from 0.5.18 on",
    ),
    Fault(
        *("mlx-penalties", "0.5.18 … 0.5.23", (39559,)),
        symptom="MLX ignores frequency, presence and repetition penalties",
        on="mlx mlx-sampling",
    ),
    Fault(
        *("mlx-logprobs", "0.5.11 … 0.5.23"),
        symptom="a request with `return_logprob` crashes an MLX server: `'NoneType' object has no "
        "attribute 'tolist'`",
        on="mlx -mlx-sampling",
        help="`--mlx-enable-sampling` from 0.5.18 on",
    ),
    Fault(
        *("mlx-retracted-logprobs", "0.5.18 … 0.5.23"),
        symptom="a request with `return_logprob` crashes an MLX server when it is retracted and "
        "computed again, for example by `/pause_generation` with mode `retract` or when the KV is "
        "full: `assert output.input_token_logprobs is not None`",
        on="mlx mlx-sampling",
        help="pause with mode `in_place`, and a lower `--max-running-requests`",
    ),
    Fault(
        *("mlx-pages", "0.5.10 … 0.5.23"),
        symptom="MLX crashes at boot with pages of several tokens: `alloc_extend is only for paged "
        "allocator`",
        on="mlx pages",
        help="remove `--page-size`",
    ),
    Fault(
        *("mlx-max-running", "0.5.16", (32674, 32520)),
        symptom="MLX crashes at boot: `'MlxModelRunnerStub' object has no attribute 'dp_size'`",
        on="mlx",
        unlike={"max_running_requests": (None,)},
        help="remove `--max-running-requests`",
    ),
    Fault(
        *("mlx-rows", "0.5.11 … 0.5.21", (30093, 33547)),
        symptom="MLX answers wrongly after a prefix-cache hit: the KV of an earlier reply was "
        "written over the prefix. Up to 0.5.17 it happens only once the server has had more "
        "requests in all than may run at once (`--max-running-requests`, else 4,096)",
        on="mlx prefix-cache -states -windows",
        help="`--disable-radix-cache`",
        patch="mlx.released-rows",
        is_sure=False,
    ),
    Fault(
        *("mlx-capacity", "0.5.21"),
        symptom="MLX crashes at boot, with any model: `'MlxModelRunnerStub' object has no "
        "attribute 'kv_cache_configurator'`",
        on="mlx",
        help="another release",
    ),
    Fault(
        *("mlx-buffer-end", "0.5.11 … 0.5.14", (29271,)),
        symptom="MLX crashes, or loses KV, when one of several running requests passes 4,096 "
        "tokens",
        on="mlx",
        unlike={"context_length": (4096,)},
        help="`--context-length 4096`",
        patch="mlx.kv-arena",
    ),
    Fault(
        *("mlx-windows", "0.5.11 … 0.5.17", (30050,)),
        symptom="MLX does not start with a sliding-window model, or attends to more than its "
        "window",
        on="mlx windows",
        help="another release",
    ),
    Fault(
        *("mlx-hybrid-defaults", "0.5.17 … 0.5.23", (32449,)),
        symptom="MLX refuses a hybrid model (Qwen3.5, Qwen3-Next) with default arguments: "
        "`extra_buffer needs CUDA/MUSA/NPU`, from 0.5.22 on `extra_buffer requires platform "
        "support`",
        on="mlx states prefix-cache tracked-states|other-tracking",
        help="`--disable-radix-cache` from 0.5.19 on",
        patch="mlx.hybrid-defaults",
    ),
    Fault(
        *("mlx-hybrid-boot", "0.5.14 … 0.5.18", (32802, 29490)),
        symptom="MLX crashes at boot with a hybrid model: `'NoneType' object has no attribute "
        "'conv'`, or on 0.5.18 `object has no attribute 'mamba_allocator'`",
        on="mlx states",
        patch="mlx.hybrid-cache",
    ),
    Fault(
        *("mlx-hybrids", "0.5.19 … 0.5.23", (39238,)),
        symptom="MLX crashes at the first request to a hybrid model with the radix cache: "
        "`has no attribute 'mamba_checkpoint_grid'`",
        on="mlx states prefix-cache",
        help="`--disable-radix-cache`",
        patch="mlx.hybrid-cache",
    ),
    Fault(
        *("mlx-relay-device", "0.5.13 … 0.5.23", (39281, 39222, 36200, 35137, 32803)),
        symptom="MLX crashes on a Mac when two requests run at once: `Expected all tensors to be "
        "on the same device`",
        on="mlx no-overlap",
        reads={"device": ("mps",)},
        help="leave overlap scheduling on, if the model is not hybrid",
        patch="mlx.relay-device",
    ),
    Fault(
        *("mlx-pool-memory", "0.5.11 … 0.5.23", (39675, 39676)),
        symptom="on MLX, memory grows with each request",
        on="mlx prefix-cache",
        help="`--disable-radix-cache`",
        patch="mlx.pool-write",
    ),
)
"""By area, in each the worst first."""
