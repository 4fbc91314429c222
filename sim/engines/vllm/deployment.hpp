// What vLLM makes of a launch line on a card: every limit, dtype, block size and capture size that
// memory or scheduling depends on. Rules: facts page vLLM sections 0, 1 and 4.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu.hpp"
#include "models/kv.hpp"
#include "models/spec.hpp"
#include "models/weights.hpp"
#include "sim/allocator/settings.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/engines/vllm/scheduler_config.hpp"
#include "sim/engines/vllm/speculation.hpp"
#include "sim/engines/vllm/startup_rules.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::vllm {

enum class CudagraphMode { kNone, kPiecewise, kFull, kFullDecodeOnly, kFullAndPiecewise };
std::string_view name_of(CudagraphMode mode);
constexpr bool has_piecewise(CudagraphMode mode) {
  return mode == CudagraphMode::kPiecewise || mode == CudagraphMode::kFullAndPiecewise;
}
constexpr bool has_full(CudagraphMode mode) {
  return mode != CudagraphMode::kNone && mode != CudagraphMode::kPiecewise;
}

// What is kept of a recurrent layer's states (facts: vLLM 4.1, 4.4).
enum class StateCache {
  kLast,     // "none": the running state alone
  kAligned,  // "align": a state a block boundary, for prefix hits
  kEvery,    // "all": a state a block, as attention keeps keys
};

// How keys and values are stored (facts: vLLM 4.1).
enum class KvFormat {
  kPlain,        // in `kv_dtype`
  kTokenScale8,  // 8 bits and a 4-byte scale a token and head, for K and for V
  kTokenScale4,  // 4 bits, likewise
  kNvfp4,        // 4 bits and an 8-bit scale for 16 values
};

// Layers of one KV cache group share a block table (facts: vLLM 4.3).
struct KvGroupLayout {
  KvGroup group;            // as the scheduler sees it
  std::int64_t layers = 0;  // members, padding excluded
  Bytes page;               // one block of all members, where their pages differ; else 0
};

// Pages of several sizes lie side by side in a block: a tuple has one of each.
struct PackedKv {
  std::int64_t tuples = 0;  // of a group, padding included
  Bytes tuple;
};

// The KV cache of one rank.
struct KvLayout {
  std::vector<KvGroupLayout> groups;
  std::int64_t group_size = 0;  // page tensors; layers per group, padding included
  Bytes page;                   // one block of one layer; of all, where their pages differ
  std::optional<PackedKv> packed;
  [[nodiscard]] Bytes block_bytes() const { return page * group_size; }
};

struct Deployment : EngineDeployment {
  StartupRules rules;

  bool runner_v2 = false;
  int redundant_experts = 0;  // copies that EPLB places
  int dcp = 1;                // ranks of a tensor group that share the tokens of a sequence
  int micro_batches = 1;      // of a step that is split to overlap dispatch and compute
  std::string attention_backend;
  std::int64_t max_num_seqs = 0;
  Tokens max_num_batched_tokens;
  bool fits_model_len = false;  // max_model_len is the most that may be: what fits is taken
  double gpu_memory_utilization = 0;
  KvFormat kv_format = KvFormat::kPlain;
  StateCache state_cache = StateCache::kLast;
  Tokens state_block;  // tokens that one state of a recurrent layer stands for
  models::DType state_dtype = models::DType::kBFloat16;  // of convolution states
  std::optional<models::DType> recurrent_dtype;          // where a flag sets it
  std::optional<Speculation> speculation;
  Bytes indexer_logits = 512 * kMiB;           // largest, which a profile run makes
  std::optional<Bytes> kv_cache_memory;        // --kv-cache-memory-bytes
  std::optional<std::int64_t> block_override;  // --num-gpu-blocks-override
  Tokens block_size{16};
  bool enforce_eager = false;
  CudagraphMode cudagraph_mode = CudagraphMode::kFullAndPiecewise;
  std::vector<std::int64_t> capture_sizes;  // ascending
  bool graph_estimate_applied = false;
  bool prefix_caching = true;
  bool chunked_prefill = true;
  bool async_scheduling = false;
  SchedulerConfig::Policy policy = SchedulerConfig::Policy::kFcfs;

  [[nodiscard]] OrderedJson resolved() const override;
  [[nodiscard]] std::vector<Knob> knobs() const override;

  // Of one request in a step: the last token and its drafts.
  [[nodiscard]] std::int64_t decode_tokens() const;
  // Probability that a draft token is right if those before it were.
  [[nodiscard]] double acceptance() const;
  [[nodiscard]] int ranks() const { return tp * pp; }  // of one engine
  // Tokens of all replicas travel to the ranks that hold their experts.
  [[nodiscard]] bool exchanges_tokens() const { return ep > 1 && dp > 1; }
  [[nodiscard]] models::ShardPlan shard(int stage) const;
  [[nodiscard]] KvLayout kv_layout(int stage) const;
  // Caches of the stage's layers as this engine keeps them.
  [[nodiscard]] std::vector<models::KvLayerSpec> kv_layers(int stage) const;
  // One layer's keys and values of one token, or its states of one sequence, as stored.
  [[nodiscard]] Bytes kv_token_bytes(const models::KvLayerSpec& layer) const;
  // Vision and audio towers are part of the weights.
  [[nodiscard]] bool loads_towers() const;
  // Every rank holds the whole encoder.
  [[nodiscard]] bool whole_tower(models::Component component) const;
  // Ranks share the images of a step among them, not the width of the vision encoder.
  [[nodiscard]] bool shares_images() const;
  // The language model gets embeddings in place of ids, from a buffer of the runner.
  [[nodiscard]] bool takes_embeddings() const { return !model->towers.empty() && loads_towers(); }
  // Latent attention is computed and cached as plain attention.
  [[nodiscard]] bool expands_latents() const;
  // Kernels leave a state inside a prefill, one more block.
  [[nodiscard]] bool checkpoints_prefills() const;
  // Gated delta nets run on FlashInfer's kernels (the default on Hopper).
  [[nodiscard]] bool flashinfer_delta_net() const;
  [[nodiscard]] Bytes state_bytes(const models::KvLayerSpec& layer) const;
  // The group that a layer's cache belongs to, by what its blocks are.
  [[nodiscard]] KvGroup group_of(const models::KvLayerSpec& layer) const;
  // Of a sequence, what one rank of those that share its tokens keeps.
  [[nodiscard]] Tokens own_part(Tokens length) const;
  // Drafts that need the target's last hidden state: prefix hits end a block earlier.
  [[nodiscard]] bool drops_last_hit() const;
  // Scheduled and not yet settled, at most.
  [[nodiscard]] Tokens tokens_in_flight() const;
  // Bytes one request of `length` tokens can need at most, as the version's own check counts.
  [[nodiscard]] Bytes kv_needed(const KvLayout& layout, Tokens length) const;
  // Blocks that a sequence of max_model_len counts for in the logged concurrency.
  [[nodiscard]] std::int64_t blocks_per_sequence(const KvLayout& layout) const;
  // What decides how many batches are in flight.
  [[nodiscard]] SchedulerConfig pipeline_settings() const;
  // Scheduler settings for a pool of `blocks` blocks.
  [[nodiscard]] SchedulerConfig scheduler_config(Blocks blocks) const;
  // Sizes captured as full decode graphs, twice where a batch may also run split; `capture_sizes`
  // are the piecewise ones.
  [[nodiscard]] std::vector<std::int64_t> full_capture_sizes() const;
};

// Throws ConfigError with all problems: flags that contradict, shards that do not divide, what is
// not modelled yet.
Deployment resolve(launch::Launch launch, const std::shared_ptr<const models::ModelSpec>& model,
                   const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed);

}  // namespace oomcast::vllm
