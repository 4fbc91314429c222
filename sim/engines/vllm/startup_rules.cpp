#include "sim/engines/vllm/startup_rules.hpp"

#include "models/data.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::vllm {

namespace {

StartupRules read_rules(const Version& version) {
  constexpr const char* kFile = "engines/vllm/presets.json";
  const Json& file = models::embedded_json(kFile);
  Problems problems;
  const VersionRows read(file, kFile, version, problems);
  StartupRules rules;
  rules.budget =
      read.choice<Budget>("budget", {{"profile", Budget::kProfile},
                                     {"profile_and_estimate", Budget::kProfileAndEstimate},
                                     {"consumed", Budget::kConsumed}});
  rules.requested_is_ceiled = read.boolean("requested_is_ceiled");
  rules.graph_estimate_possible = read.boolean("graph_estimate_possible");
  rules.graph_estimate_v1 = read.boolean("graph_estimate_v1");
  rules.graph_estimate_v2 = read.boolean("graph_estimate_v2");
  rules.runner_v2 =
      read.choice<RunnerV2>("runner_v2", {{"never", RunnerV2::kNever},
                                          {"dense", RunnerV2::kDense},
                                          {"listed", RunnerV2::kListed},
                                          {"dense_or_listed", RunnerV2::kDenseOrListed},
                                          {"always", RunnerV2::kAlways}});
  if (const Json* row = read.rule("runner_v2"); row != nullptr && row->contains("architectures")) {
    for (const Json& name : row->at("architectures")) {
      rules.runner_v2_architectures.push_back(name.get<std::string>());
    }
  }
  rules.sampler_units_v1 = read.number("sampler_units_v1");
  rules.sampler_units_v2 = read.number("sampler_units_v2");
  rules.sampler_buffer_v1 = read.boolean("sampler_buffer_v1");
  rules.capture_step_from_256 = read.integer("capture_step_from_256");
  rules.capture_limit_blackwell = read.integer("capture_limit_blackwell");
  rules.capture_adds_batch_tokens = read.boolean("capture_adds_batch_tokens");
  rules.capture_adds_decode_sizes = read.boolean("capture_adds_decode_sizes");
  rules.batch_tokens_huge_card = read.integer("batch_tokens_huge_card");
  rules.unified_memory_is_small = read.boolean("unified_memory_is_small");
  rules.pplx_falls_back = read.boolean("pplx_falls_back");
  rules.dispatch_holds_batch = read.boolean("dispatch_holds_batch");
  rules.batch_tokens_capped_by_seqs = read.boolean("batch_tokens_capped_by_seqs");
  rules.async_by_default = read.boolean("async_by_default");
  rules.report_by_concurrency =
      read.choice<bool>("report_tokens", {{"blocks", false}, {"concurrency", true}});
  rules.null_block_in_check = read.boolean("null_block_in_check");
  rules.needed_of_all_stages = read.boolean("needed_of_all_stages");
  rules.needed_from_groups = read.boolean("needed_from_groups");
  rules.communicators_before_snapshot = read.boolean("communicators_before_snapshot");
  rules.cublas_before_snapshot = read.boolean("cublas_before_snapshot");
  rules.group_size_ratio = read.number("group_size_ratio");
  rules.window_in_flight_batches = read.boolean("window_in_flight_batches");
  rules.keeps_expert_workspace = read.choice<ExpertWorkspaces>(
      "keeps_expert_workspace", {{"never", ExpertWorkspaces::kNever},
                                 {"dispatched", ExpertWorkspaces::kDispatched},
                                 {"always", ExpertWorkspaces::kAlways}});
  rules.profiles_encoder_v2 = read.boolean("profiles_encoder_v2");
  rules.whole_vision = read.texts("whole_vision");
  rules.whole_audio = read.texts("whole_audio");
  rules.encoder_data_parallel = read.texts("encoder_data_parallel");
  rules.packs_by_tuples = read.boolean("packs_by_tuples");
  rules.pads_pages = read.boolean("pads_pages");
  rules.recurrent_prefix_caching = read.boolean("recurrent_prefix_caching");
  rules.unused_kv = read.boolean("unused_kv");
  rules.prefill_checkpoints = read.choice<PrefillCheckpoints>(
      "prefill_checkpoints", {{"none", PrefillCheckpoints::kNone},
                              {"mamba2", PrefillCheckpoints::kMamba2},
                              {"mamba2_and_delta_net", PrefillCheckpoints::kMamba2AndDeltaNet}});
  rules.delta_net_alignment = read.integer("delta_net_alignment");
  rules.delta_net_warm_up = read.boolean("delta_net_warm_up");
  rules.keeps_every_state = read.boolean("keeps_every_state");
  rules.checks_state_blocks = read.boolean("checks_state_blocks");
  rules.state_kernel_block_is_current = read.boolean("state_kernel_block_is_current");
  rules.long_log_names_model = read.boolean("long_log_names_model");
  rules.interleaved_rope_factor = read.integer("interleaved_rope_factor");
  rules.flashinfer_ropes = read.boolean("flashinfer_ropes");
  rules.flashinfer_mla_workspace = kMiB * read.integer("flashinfer_mla_workspace_mib");
  rules.indexer_rope = read.boolean("indexer_rope");
  rules.sparse_attention_is_absorbed = read.boolean("sparse_attention_is_absorbed");
  rules.sparse_flashinfer = read.choice<SparseFlashInfer>(
      "sparse_flashinfer", {{"never", SparseFlashInfer::kNever},
                            {"few_heads_in_16_bits", SparseFlashInfer::kFewHeadsIn16Bits},
                            {"few_heads", SparseFlashInfer::kFewHeads},
                            {"few_heads_or_fp8", SparseFlashInfer::kFewHeadsOrFp8}});
  rules.sparse_flash_attention = read.boolean("sparse_flash_attention");
  rules.sparse_sm120 = read.boolean("sparse_sm120");
  rules.sparse_buffers =
      read.choice<SparseBuffers>("sparse_buffers", {{"none", SparseBuffers::kNone},
                                                    {"context", SparseBuffers::kContext},
                                                    {"queries", SparseBuffers::kQueries},
                                                    {"padded", SparseBuffers::kPadded}});
  rules.keeps_gathered_keys = read.boolean("keeps_gathered_keys");
  rules.radix_selection = read.boolean("radix_selection");
  rules.indexer_logits_profiled = read.boolean("indexer_logits_profiled");
  rules.sparse_context_factor_long = read.integer("sparse_context_factor_long");
  rules.indexer_key_in_16_bits = read.boolean("indexer_key_in_16_bits");
  rules.indexer_keeps_places = read.boolean("indexer_keeps_places");
  rules.fp4_triton_compute = static_cast<int>(read.integer("fp4_triton_compute"));
  rules.fp4_triton_pads = read.boolean("fp4_triton_pads");
  rules.fp4_triton_scale_columns = read.integer("fp4_triton_scale_columns");
  rules.fp4_triton_keeps_scales = read.boolean("fp4_triton_keeps_scales");
  rules.fp4_trtllm_width = read.integer("fp4_trtllm_width");
  rules.fp4_cutlass_sm120 = read.boolean("fp4_cutlass_sm120");
  rules.trtllm_experts =
      read.choice<TrtllmExperts>("trtllm_experts", {{"none", TrtllmExperts::kNone},
                                                    {"quantised", TrtllmExperts::kQuantised},
                                                    {"all", TrtllmExperts::kAll}});
  rules.load_max_split = kMiB * read.integer("load_max_split_mib");
  rules.profile_max_split = kMiB * read.integer("profile_max_split_mib");
  rules.torch = read.version("torch");
  rules.graphs_own_workspace = read.boolean("graphs_own_workspace");

  auto& notes = rules.provenance;
  rules.non_torch_single = kMiB * read.measured("non_torch_single_mib", notes);
  rules.non_torch_before_hopper = kMiB * read.measured("non_torch_before_hopper_mib", notes);
  rules.trial_capture = kMiB * read.measured("trial_capture_mib", notes);
  rules.non_torch_tensor_parallel = kMiB * read.measured("non_torch_tensor_parallel_mib", notes);
  rules.non_torch_tensor_parallel_blackwell =
      kMiB * read.measured("non_torch_tensor_parallel_blackwell_mib", notes);
  rules.non_torch_pipeline = kMiB * read.measured("non_torch_pipeline_mib", notes);
  rules.step_costs = read.step_costs();
  problems.raise_if_any();
  return rules;
}

}  // namespace

StartupRules startup_rules_for(const Version& version) { return known_rules(version, read_rules); }

}  // namespace oomcast::vllm
