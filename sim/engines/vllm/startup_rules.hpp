// What differs between vLLM versions in startup accounting, resolved from
// models/engines/vllm/presets.json. A version that only changes values needs new rows there and
// nothing here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/core/version.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::vllm {

// How the KV budget is computed (facts: vLLM 2.2).
enum class Budget {
  kProfile,             // requested - non_torch - torch peak - weights
  kProfileAndEstimate,  // ... - graph estimate
  kConsumed,            // requested - consumed - headroom - graph estimate
};

// Which models the second model runner serves by default.
enum class ExpertWorkspaces { kNever, kDispatched, kAlways };  // that outlive their call
enum class PrefillCheckpoints { kNone, kMamba2, kMamba2AndDeltaNet };
// Which latent caches FlashInfer's sparse kernels come first for, on Blackwell's data centre cards:
// with few heads a rank or, later, 8-bit ones.
enum class SparseFlashInfer { kNever, kFewHeadsIn16Bits, kFewHeads, kFewHeadsOrFp8 };
// What FlashMLA's sparse backend holds: the gathered context; queries too; padded ones too, and
// from then on let go where a larger workspace replaces it.
enum class SparseBuffers { kNone, kContext, kQueries, kPadded };
// Experts that go to trtllm-gen's kernels on Blackwell's data centre cards, MXFP4 ones apart.
enum class TrtllmExperts { kNone, kQuantised, kAll };
enum class RunnerV2 { kNever, kDense, kListed, kDenseOrListed, kAlways };

struct StartupRules {
  Budget budget = Budget::kProfile;
  bool requested_is_ceiled = false;
  bool graph_estimate_possible = false;
  bool graph_estimate_v1 = false;  // by default
  bool graph_estimate_v2 = false;
  RunnerV2 runner_v2 = RunnerV2::kNever;
  std::vector<std::string> runner_v2_architectures;
  // Sampler peak in units of rows x vocabulary x 4 B, 16-bit model.
  double sampler_units_v1 = 0;
  double sampler_units_v2 = 0;
  bool sampler_buffer_v1 = false;  // the Triton top-k/top-p buffer exists
  std::int64_t capture_step_from_256 = 16;
  std::int64_t capture_limit_blackwell = 512;
  bool capture_adds_batch_tokens = false;
  bool capture_adds_decode_sizes = false;
  std::int64_t batch_tokens_huge_card = 8192;
  bool unified_memory_is_small = false;  // batch limits of GB10
  bool batch_tokens_capped_by_seqs = false;
  bool pplx_falls_back = false;       // to all-gather, with a warning
  bool dispatch_holds_batch = false;  // batched experts have slots for a whole step's tokens
  bool async_by_default = false;
  bool report_by_concurrency = false;
  bool null_block_in_check = false;
  bool needed_of_all_stages = false;  // of a pipeline, in the check of one stage's memory
  bool needed_from_groups = false;
  bool cublas_before_snapshot = false;
  bool communicators_before_snapshot = true;
  double group_size_ratio = 1.0;
  bool window_in_flight_batches = false;
  ExpertWorkspaces keeps_expert_workspace = ExpertWorkspaces::kAlways;
  bool profiles_encoder_v2 = false;  // the second runner's profile has images
  // Architectures whose encoders no rank divides; those whose vision encoder can be whole on each
  // rank, which then takes a share of the images (--mm-encoder-tp-mode data).
  std::vector<std::string> whole_vision;
  std::vector<std::string> whole_audio;
  std::vector<std::string> encoder_data_parallel;
  bool packs_by_tuples = false;           // a block of packed pages has as many of each size
  bool pads_pages = false;                // attention pages that do not divide the largest
  bool recurrent_prefix_caching = false;  // by default
  // A profile run tries each layer's delta net, then empties the cache.
  bool delta_net_warm_up = false;
  bool unused_kv = false;  // projections to keys and values that another layer makes
  // Kernels that leave a state inside a prefill: a block more a request.
  PrefillCheckpoints prefill_checkpoints = PrefillCheckpoints::kNone;
  std::int64_t delta_net_alignment = 0;  // tokens of a prefill checkpoint of FlashInfer's kernels
  bool keeps_every_state = false;        // prefix caching of Mamba layers keeps a state a block
  bool checks_state_blocks = false;      // full graphs need a state block for each sequence
  bool state_kernel_block_is_current = false;  // states align to the block size in force
  bool long_log_names_model = false;
  std::int64_t interleaved_rope_factor = 4;  // positions of interleaved multimodal rope tables
  bool flashinfer_ropes = false;             // fp32 tables where operators are not compiled
  Bytes flashinfer_mla_workspace;            // made with any MLA model, whichever backend it gets
  bool indexer_rope = false;                 // as in models::IndexerStyle
  bool indexer_key_in_16_bits = false;
  SparseFlashInfer sparse_flashinfer = SparseFlashInfer::kNever;
  bool sparse_flash_attention = false;  // FlashAttention's sparse kernels first, on Hopper
  bool sparse_sm120 = false;            // sparse kernels for GeForce and RTX PRO Blackwell
  SparseBuffers sparse_buffers = SparseBuffers::kNone;
  bool keeps_gathered_keys = false;  // of the indexer, in the workspace that all layers share
  bool radix_selection = false;
  bool indexer_logits_profiled = false;
  // Prompts of the longest length gathered at once, beyond 256 Ki tokens.
  std::int64_t sparse_context_factor_long = 5;
  bool sparse_attention_is_absorbed = false;  // also where a prompt is processed
  bool indexer_keeps_places = false;          // of its choice, for as many rows as decode at once
  // MXFP4 experts of gpt-oss: highest compute capability (major) with Triton's kernels, how their
  // layout pads, whether the scales as loaded stay; width multiple of TensorRT-LLM's kernels.
  int fp4_triton_compute = 0;
  bool fp4_triton_pads = false;
  std::int64_t fp4_triton_scale_columns = 2;
  bool fp4_triton_keeps_scales = false;
  std::int64_t fp4_trtllm_width = 256;
  bool fp4_cutlass_sm120 = false;
  TrtllmExperts trtllm_experts = TrtllmExperts::kNone;
  // max_split_size of PyTorch's allocator while loading and in the profile run; 0: as it was.
  Bytes load_max_split;
  Bytes profile_max_split;
  Version torch;
  bool graphs_own_workspace = false;  // a graph takes its stream's cuBLAS workspace along

  // Measured quantities, with the uncertainty the file states.
  Bytes non_torch_single;
  Bytes non_torch_before_hopper;
  Bytes trial_capture;
  Bytes non_torch_tensor_parallel;
  Bytes non_torch_tensor_parallel_blackwell;
  Bytes non_torch_pipeline;

  StepCosts step_costs;

  // "non-torch memory 0.25 GiB: measured, +-60 MiB (source)" for every measured value above.
  std::vector<std::string> provenance;
};

// Throws ConfigError if the preset file (or its replacement) lacks a row or has a wrong type.
StartupRules startup_rules_for(const Version& version);

}  // namespace oomcast::vllm
