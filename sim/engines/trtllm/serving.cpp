#include "sim/engines/trtllm/serving.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "models/attention_kinds.hpp"
#include "sim/engines/trtllm/forward.hpp"

namespace oomcast::trtllm {
namespace {

using models::AttentionKind;

bool is_windowed(const models::KvLayerSpec& layer, Tokens length) {
  return models::has_window(layer.kind) && layer.window < length;
}

}  // namespace

SchedulerConfig scheduler_config(const Deployment& deployment, Blocks pool_blocks) {
  SchedulerConfig config;
  config.pool_blocks = pool_blocks;
  config.tokens_per_block = deployment.tokens_per_block;
  config.max_seq_len = deployment.max_model_len;
  config.max_batch_size = deployment.max_batch_size;
  config.max_num_tokens = Tokens{deployment.max_num_tokens};
  config.chunked_prefill = deployment.chunked_prefill;
  config.block_reuse = deployment.block_reuse;
  config.overlap = !deployment.launch.on("disable-overlap-scheduler");
  if (offloads(deployment)) {
    config.host_blocks = host_blocks(deployment, 0);
  }
  const std::string policy =
      deployment.launch.text("capacity-scheduler-policy").value_or("GUARANTEED_NO_EVICT");
  config.capacity = policy == "MAX_UTILIZATION" ? CapacityPolicy::kMaxUtilization
                    : policy == "STATIC_BATCH"  ? CapacityPolicy::kStaticBatch
                                                : CapacityPolicy::kGuaranteedNoEvict;
  return config;
}

void check_serving(const Deployment& deployment, Problems& problems) {
  const auto refuse = [&](const char* flag, std::string value, const char* expected,
                          const char* reason) {
    problems.add({"launch line", flag, std::move(value), expected, reason});
  };
  if (deployment.pp > 1) {
    refuse("--pp_size", std::to_string(deployment.pp), "1 for a replay",
           "several micro-batches in flight are not modelled yet");
  }
  if (deployment.beam_width > 1) {
    refuse("--max_beam_width", std::to_string(deployment.beam_width), "1 for a replay",
           "beam search is not modelled yet");
  }
  if (deployment.host_cache > Bytes{0} && deployment.gpu.host_link_bandwidth <= 0) {
    refuse("--kv_cache_config.host_cache_size", std::to_string(deployment.host_cache.count()),
           "0, or a card with host_link_gb_s in the catalog",
           deployment.gpu.unified_memory ? "card and host share their memory" : "");
  }
  if (models::has_recurrent_state(*deployment.model)) {
    refuse("model", deployment.model->name, "a model without recurrent layers for a replay",
           "their states are not scheduled here yet");
  }
  const std::vector<models::KvLayerSpec> layers = deployment.kv_layers(0);
  if (std::any_of(layers.begin(), layers.end(), [&](const auto& layer) {
        return is_windowed(layer, deployment.max_model_len);
      })) {
    refuse("model", deployment.model->name, "a model without windows for a replay",
           "pools of several windows are not modelled yet; --max_seq_len up to the window works");
  }
}

StepSizes StepPeaks::at(const StepLoad& load, const StepLoad& /*before*/) const {
  const std::vector<std::int64_t>& captured = deployment_.graph_sizes;
  const bool padded = deployment_.launch.on("cuda-graph-enable-padding");
  if (load.decodes_only && !captured.empty() &&
      (padded ? load.rows <= captured.front()
              : std::find(captured.begin(), captured.end(), load.rows) != captured.end())) {
    return {};
  }
  StepSizes sizes{};
  for (const opgraph::LiveTensor& tensor :
       forward_peak(deployment_, stage_, load.tokens.count(), load.rows)) {
    const auto place = std::find(kStepLeaves.begin(), kStepLeaves.end(), tensor.leaf);
    OOMCAST_CHECK(place != kStepLeaves.end(), "{} is no tensor of a step", tensor.name);
    sizes[static_cast<std::size_t>(place - kStepLeaves.begin())] += tensor.bytes;
  }
  return sizes;
}

}  // namespace oomcast::trtllm
