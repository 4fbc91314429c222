// What SGLang makes of a launch line on a card: every limit, dtype, page and capture size that
// memory or scheduling depends on. Rules: facts pages SGLang 1-4 and SGLang startup.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/kv.hpp"
#include "models/spec.hpp"
#include "models/weights.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/engines/sglang/scheduler_config.hpp"
#include "sim/engines/sglang/startup_rules.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::sglang {

struct Speculation {
  std::string algorithm;
  std::int64_t steps = 0;
  std::int64_t topk = 1;
  std::int64_t draft_tokens = 1;
  bool own_layers = false;  // the draft is the model's own MTP layer
};

struct Deployment : EngineDeployment {
  StartupRules rules;

  int attention_dp = 1;  // groups of attention inside the tensor group
  Role role = Role::kMixed;
  std::string prefill_backend;  // attention kernels
  std::string decode_backend;
  std::string expert_backend;  // --moe-runner-backend
  int redundant_experts = 0;
  int shared_expert_copies = 1;
  std::optional<int> dense_tp;   // --moe-dense-tp-size
  bool batched_decodes = false;  // decodes use DeepEP's low-latency kernels, prefills the others
  bool flashinfer_sampling = true;
  double mem_fraction = 0;
  std::int64_t chunk = 0;  // tokens of one prefill; at most 0: whole prompts
  Tokens max_prefill_tokens{16384};
  Tokens page_size{1};
  std::optional<std::int64_t> max_running;  // as given, or speculation's default
  std::optional<Tokens> max_total_tokens;
  std::vector<std::int64_t> decode_sizes;    // captured batches, ascending; empty: no graphs
  std::vector<std::int64_t> prefill_sizes;   // captured token counts, ascending
  bool window_pool = false;                  // sliding-window layers have a pool of their own
  double window_ratio = 0.8;                 // its slots per slot of the full layers
  double state_ratio = 0.9;                  // memory of recurrent state per memory of KV
  std::optional<std::int64_t> state_slots;   // --max-mamba-cache-size
  std::optional<models::DType> state_dtype;  // of the recurrent part
  bool radix_cache = true;
  bool overlap = true;
  std::int64_t slots_per_request = 1;  // of recurrent state
  bool tracks_states = false;          // in slots beside the request's own, for the prefix cache
  std::optional<Speculation> speculation;
  Bytes multimodal_reservation;
  bool dummy_weights = false;
  bool custom_all_reduce = true;

  [[nodiscard]] OrderedJson resolved() const override;
  [[nodiscard]] std::vector<Knob> knobs() const override;

  [[nodiscard]] int attention_tp() const { return tp / attention_dp; }
  // Ranks that divide the output head.
  [[nodiscard]] int head_tp() const { return launch.on("enable-dp-lm-head") ? attention_tp() : tp; }
  [[nodiscard]] models::ShardPlan shard(int stage) const;
  // Whether the model's own draft layers are loaded too, on the last stage.
  [[nodiscard]] bool loads_draft(int stage) const {
    return speculation && speculation->own_layers && stage == pp - 1;
  }
  // Tokens of a request in a decode: drafts are verified together.
  [[nodiscard]] std::int64_t tokens_per_decode() const {
    return speculation ? speculation->draft_tokens : 1;
  }
  // How tokens reach experts in a prefill or a decode.
  [[nodiscard]] ExpertExchange exchange_in(bool decode) const;
  // Whether the layer's shared experts run as one more routed expert (the model's own class says
  // so: shared_experts_fusion_disable_reason).
  [[nodiscard]] bool fuses_shared_experts(const models::LayerSpec& layer) const;
  // Whether MXFP4 experts are loaded and then kept in 16 bits, for kernels that know no others
  // (quantization/mxfp4.py process_weights_after_loading).
  [[nodiscard]] bool widens_fp4_experts() const;
  // Whether an indexer projects its keys together with the heads' weights, in 16 bits.
  [[nodiscard]] bool fuses_indexer_keys() const;
  // Caches of the stage's layers on one rank.
  [[nodiscard]] std::vector<models::KvLayerSpec> kv_layers(int stage) const;
  // With attention data parallelism the ranks of one server.
  [[nodiscard]] int replicas() const override { return dp * attention_dp; }
  // Columns that a row of the request table has beyond the context length.
  [[nodiscard]] std::int64_t extra_columns() const;
};

// Whether layers have MLA's latents.
bool has_mla(const models::ModelSpec& model);

// Throws ConfigError with all problems: flags that contradict, shards that do not divide, what is
// not modelled yet.
Deployment resolve(launch::Launch launch, const std::shared_ptr<const models::ModelSpec>& model,
                   const models::GpuSpec& gpu, const CardState& card, const Assumed& assumed);

}  // namespace oomcast::sglang
