// What TensorRT-LLM makes of a launch line on a card (facts page TensorRT-LLM, sections 1, 3, 4).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/kv.hpp"
#include "models/weights.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/engines/trtllm/startup_rules.hpp"

namespace oomcast::trtllm {

struct Deployment : EngineDeployment {
  StartupRules rules;

  std::int64_t max_batch_size = 2048;
  std::int64_t max_num_tokens = 8192;
  std::int64_t beam_width = 1;
  double free_fraction = 0.9;
  Tokens tokens_per_block{32};
  std::optional<Tokens> max_kv_tokens;
  std::optional<Bytes> max_kv_bytes;
  Bytes host_cache;
  bool attention_dp = false;
  bool block_reuse = true;
  bool chunked_prefill = false;
  bool nvfp4_kv = false;
  std::string moe_backend;
  std::optional<std::int64_t> moe_tokens;  // of one call of the experts
  std::vector<std::int64_t> graph_sizes;   // captured batches, descending

  [[nodiscard]] OrderedJson resolved() const override;
  [[nodiscard]] std::vector<Knob> knobs() const override;
  // Ranks that do not divide attention have requests of their own.
  [[nodiscard]] int replicas() const override { return attention_dp ? tp : 1; }

  // Feed-forward layers and the head; attention, which attention DP does not divide.
  [[nodiscard]] models::ShardPlan shard(int stage) const;
  [[nodiscard]] std::vector<models::KvLayerSpec> kv_layers(int stage) const;
  // One layer's keys and values of one token in the pool.
  [[nodiscard]] Bytes kv_token_bytes(const models::KvLayerSpec& layer) const;
  // Recurrent state of one request over the stage's layers.
  [[nodiscard]] Bytes state_bytes(int stage) const;
};

// Bytes of a token's keys and values over all layers of a rank.
Bytes kv_token_bytes(const Deployment& deployment, int stage);

// Blocks of the host's pool on a rank: whole tokens of host_cache, and of them whole blocks.
Blocks host_blocks(const Deployment& deployment, int stage);
// Whether evicted blocks go there: there is one, blocks come back, and blocks without a priority of
// their own (35) are not below --secondary-offload-min-priority.
bool offloads(const Deployment& deployment);

// Throws ConfigError with all problems.
Deployment resolve(launch::Launch launch, const std::shared_ptr<const models::ModelSpec>& model,
                   const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed);

}  // namespace oomcast::trtllm
