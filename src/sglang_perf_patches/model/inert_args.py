"""Arguments of a server that make no difference to any patch, by reason.

Every argument of `ServerArgs` is here or switches a feature of `setups`.
"""

from __future__ import annotations

PREFIXES = (
    *("constrained_json_", "debug_tensor_dump_", "decoupled_spec_", "ds_", "eplb_", "hicache_"),
    *("kt_", "kv_canary_", "mm_", "modelopt_", "speculative_dflash_", "speculative_dspark_"),
    *("speculative_ngram_", "unified_cache_external_linker_"),
)
"""Prefixes of arguments that only configure a feature which another argument switches on."""

INERT_ARGS = {
    "says how a feature works that another argument switches on": """
    aux_hidden_state_capture cp_strategy dcp_comm_backend dcp_replicate_q_proj
    disable_attn_tp_gather disable_hicache_numa_detect disable_priority_preemption
    disaggregation_bootstrap_port disaggregation_decode_dp disaggregation_decode_extra_slots
    disaggregation_decode_polling_interval disaggregation_decode_tp disaggregation_ib_device
    disaggregation_prefill_pp disaggregation_transfer_backend dllm_algorithm_config dllm_fdfo
    dsa_prefill_cp_mode elastic_ep_initial_size elastic_ep_rejoin elastic_ep_scale_timeout
    enable_broadcast_mm_inputs_process enable_dense_mlp_attn_tp
    enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_elastic_expert_backup
    enable_linker_mla_dedup enable_lora_overlap_loading enable_mm_global_cache
    enable_prefix_mm_cache enable_shared_experts_attn_tp enable_torch_compile_debug_mode
    enable_tp_lm_head_all_to_all ep_dispatch_algorithm ep_join_rank_offset
    ep_num_redundant_experts expert_balancedness_report_mode
    expert_distribution_recorder_buffer_size expert_distribution_recorder_mode
    experts_shared_outer_loras flexkv_config_file hisparse_config init_expert_location
    int8_mamba_ckpt_size keep_mm_feature_on_device limit_mm_data_per_request
    linear_replayssm_cache_len lmcache_config_file load_balance_method lora_backend
    lora_drain_wait_threshold lora_eviction_policy lora_strict_loading lora_target_modules
    lora_use_virtual_experts mamba_cache_philox_rounds max_ep_size max_loaded_loras
    max_lora_chunk_size max_lora_rank max_loras_per_batch mooncake_ib_device nsa_prefill_cp_mode
    num_reserved_decode_tokens offload_mode offload_num_in_group offload_prefetch_step
    paged_experts_num_resident pdmux_config_path ple_offload_backend ple_offload_dir
    pp_async_batch_depth pp_max_micro_batch_size prefill_cp_mode prefill_kv_cache_dequant_dtype
    priority_scheduling_preemption_threshold quantization_param_path record_nolora_graph
    return_aux_hidden_state_layer_ids schedule_low_priority_values_first shared_experts_tp_size
    sm_group_num speculative_adaptive_config speculative_domino_candidate_pool_size
    speculative_draft_load_format speculative_draft_model_path speculative_draft_model_revision
    speculative_num_draft_tokens speculative_num_steps speculative_skip_dp_mlp_sync
    tbo_token_distribution_threshold torch_compile_max_bs trust_mm_content_hashes
    _radix_eviction_policy_explicitly_set _speculative_draft_quantization_explicitly_set
    _swa_full_tokens_ratio_explicitly_set""",
    "chooses kernels or graphs: a patch knows the code that it changes, or asks for the object": """
    attention_backend bf16_gemm_backend boundary_reduction cuda_graph_backend_decode
    cuda_graph_backend_prefill cuda_graph_bs cuda_graph_bs_decode cuda_graph_bs_prefill
    cuda_graph_config cuda_graph_max_bs cuda_graph_max_bs_decode cuda_graph_max_bs_prefill
    cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context cuda_graph_tc_compiler
    decode_attention_backend deepep_config deepep_dispatcher_output_dtype deepep_mode
    deepep_v2_mode disable_aiter_allreduce_fusion_in_decode
    disable_aiter_allreduce_fusion_in_prefill disable_chunked_prefix_cache
    disable_cuda_graph_padding disable_custom_all_reduce disable_flashinfer_autotune
    disable_flashinfer_cutlass_moe_fp4_allgather disable_piecewise_cuda_graph
    disable_prefill_cuda_graph disable_shared_experts_fusion dsa_decode_backend
    dsa_paged_mqa_logits_backend dsa_prefill_backend dsa_topk_backend dsa_triton_union
    dsv4_attn_backend dsv4_prefill_backend dtype enable_aiter_allreduce_fusion
    enable_cudagraph_gc enable_deepep_waterfill enable_deepseek_v4_fp4_indexer
    enable_dsa_fused_indexer enable_flashinfer_allreduce_fusion enable_fp32_lm_head
    enable_fused_moe_sum_all_reduce enable_fused_qk_norm_rope enable_lean_attention
    enable_mscclpp enable_nccl_nvls enable_p2p_check enable_piecewise_cuda_graph
    enable_profile_cuda_graph enable_quant_communications enable_scattered_sconv enable_symm_mem
    enable_tf32_matmul enable_torch_symm_mem enable_w4a4_mxfp4_megamoe enable_waterfill
    enforce_disable_flashinfer_allreduce_fusion enforce_shared_experts_fusion
    flashinfer_a2a_dispatch_type flashinfer_allreduce_fusion_backend flashinfer_autotune_skip_ops
    flashinfer_mla_disable_ragged flashinfer_mxfp4_moe_precision fp4_gemm_runner_backend
    fp8_gemm_runner_backend fuseep_mode linear_attn_backend linear_attn_decode_backend
    linear_attn_prefill_backend linear_attn_verify_backend mamba_backend mamba_ssm_dtype
    moe_runner_backend nsa_decode_backend nsa_prefill_backend piecewise_cuda_graph_compiler
    piecewise_cuda_graph_max_tokens piecewise_cuda_graph_tokens pre_warm_nccl
    prefill_attention_backend qsa_indexer_dtype speculative_attention_mode
    speculative_boundary_reduction speculative_draft_attention_backend
    speculative_dsa_topk_backend speculative_enable_w4a4_mxfp4_megamoe
    speculative_moe_a2a_backend speculative_moe_runner_backend triton_attention_num_kv_splits
    triton_attention_reduce_in_fp32 triton_attention_split_tile_size uses_mamba_radix_cache""",
    "how much there is, and in which order requests come": """
    abort_on_priority_when_disabled c128_page_size context_length default_priority_value
    enable_prefill_delayer mamba_full_memory_ratio mamba_max_states_per_path mamba_track_interval
    max_mamba_cache_size max_prefill_tokens max_queued_requests max_running_requests
    max_total_tokens mem_fraction_static min_free_slots_delay prefill_decode_interval
    prefill_decode_interval_min_bs prefill_delayer_forward_passes_buckets
    prefill_delayer_max_delay_ms prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
    prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets
    prefill_max_requests radix_eviction_policy radix_eviction_policy_config
    schedule_conservativeness schedule_policy scheduler_recv_interval swa_full_tokens_ratio
    swa_prefix_tails""",
    "which tokens are sampled or accepted, and what is returned of them": """
    allow_auto_truncate enable_cache_report enable_custom_logit_processor enable_strict_thinking
    enable_watermark grammar_backend preferred_sampling_params random_seed reasoning_parser
    return_input_ids return_output_ids sampling_backend sampling_defaults
    sampling_mask_max_tokens speculative_accept_threshold_acc speculative_accept_threshold_single
    speculative_use_block_verification speculative_use_rejection_sampling tool_call_parser
    watermark_config watermark_context_window watermark_default_enabled watermark_enforce_all
    watermark_key watermark_key_b watermark_max_probability watermark_mixing_probability""",
    "the model, and how its weights are loaded": """
    checkpoint_engine_wait_weights_before_ready custom_weight_loader decrypted_config_file
    decrypted_draft_config_file delete_ckpt_after_loading download_dir json_model_override_args
    load_format model_checksum model_config_parser model_loader_extra_config model_path
    modelexpress_config remote_instance_weight_loader_backend
    remote_instance_weight_loader_seed_instance_ip
    remote_instance_weight_loader_seed_instance_service_port
    remote_instance_weight_loader_send_weights_group_ports
    remote_instance_weight_loader_start_seed_via_transfer_engine revision
    startup_weight_load_mode trust_remote_code weight_cache_mode weight_cache_socket
    weight_cache_timeout weight_loader_disable_mmap weight_loader_drop_cache_after_load
    weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads weight_version""",
    "how requests come in and replies go out": """
    admin_api_key allowed_media_domains api_key asr_max_buffer_seconds
    asr_max_concurrent_sessions batch_notify_size chat_template completion_template
    default_chat_template_kwargs detokenizer_worker_num disable_fast_image_processor
    disable_outlines_disk_cache disable_tokenizer_batch_decode dynamic_batch_tokenizer_batch_size
    dynamic_batch_tokenizer_batch_timeout enable_adaptive_dispatch_to_encoder
    enable_dynamic_batch_tokenizer enable_http2 enable_http_worker_reuseport
    enable_precise_embedding_interpolation enable_response_store enable_ssl_refresh
    enable_tokenizer_batch_encode encoder_bootstrap_port encoder_register_urls
    encoder_transfer_backend encoder_urls fastapi_root_path file_storage_path
    grpc_http_sidecar_port grpc_mode grpc_port grpc_response_timeout_secs grpc_worker_threads
    hf_chat_template_name host http2_initial_connection_window_size http2_max_concurrent_streams
    image_processor_backend incremental_streaming_output media_url_max_file_size_mb port
    served_model_name sidecar sidecar_args skip_server_warmup skip_tokenizer_init smg_grpc_mode
    smg_http_sidecar_port ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password
    stream_interval stream_output stream_response_default_include_usage tokenizer_backend
    tokenizer_mode tokenizer_path tokenizer_worker_num tool_server trust_request_chat_template
    warmups""",
    "processes, machines, logs and metrics": """
    base_gpu_id bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token
    collect_tokens_histogram crash_dump_folder custom_sigquit_handler decode_log_interval
    dist_init_addr dist_timeout enable_expert_distribution_metrics enable_layerwise_nvtx_marker
    enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics
    enable_request_time_stats_logging enable_trace engine_info_bootstrap_port
    export_metrics_to_file export_metrics_to_file_dir extra_metric_labels
    forward_pass_metrics_ipc_name forward_pass_metrics_worker_id gated_launch_port gc_threshold
    gc_warning_threshold_secs generation_tokens_buckets gpu_id_step kv_events_config
    load_publish_endpoint load_snapshot_publish_interval log_level log_level_http log_requests
    log_requests_format log_requests_level log_requests_target nccl_port nnodes node_rank
    numa_node otlp_service_name otlp_traces_endpoint prompt_tokens_buckets show_time_cost
    sleep_on_idle soft_watchdog_timeout spec_trace_dir stat_loggers
    tokenizer_metrics_allowed_custom_labels tokenizer_metrics_custom_labels_header trace_modules
    use_ray uvicorn_access_log_exclude_prefixes watchdog_timeout""",
}
"""Reason → arguments that make no difference to any patch."""

NAMES = frozenset(name for names in INERT_ARGS.values() for name in names.split())
