"""References to stock's definitions that several patches of this set name."""

ATTENTION = "sglang.srt.layers.attention"
SPECULATIVE = "sglang.srt.speculative"
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info"

BASE = f"{ATTENTION}.base_attn_backend:AttentionBackend"
TRTLLM = f"{ATTENTION}.trtllm_mla_backend:TRTLLMMLABackend"
TRTLLM_DRAFT = f"{ATTENTION}.trtllm_mla_backend:TRTLLMMLAMultiStepDraftBackend"
