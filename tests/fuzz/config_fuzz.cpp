// Any bytes as config.json: a spec whose arithmetic holds, or a ConfigError; never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/config_reader.hpp"
#include "models/kv.hpp"
#include "models/load.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  using namespace oomcast::models;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelSpec spec = read_model_config_text(text, "config.json");
    OOMCAST_CHECK(parameter_count(spec) >= 0, "negative parameter count");
    for (const int tp : {1, 2, 8}) {
      ShardPlan plan;
      plan.tp = tp;
      plan.ep = tp == 8 ? 8 : 1;
      plan.towers = plan.draft = tp != 2;
      plan.step_tokens = 8192;
      try {
        const RankWeights weights = weights_on_rank(spec, plan);
        OOMCAST_CHECK(weights.rounded() >= weights.total(), "rounding shrank the tensors");
        load_sequence(weights);
        kv_bytes_per_token(kv_layers(spec, plan), DType::kBFloat16);
        draft_kv_layers(spec, plan);
      } catch (const ConfigError&) {
        continue;  // does not divide, or a quantisation without byte rules
      }
    }
  } catch (const ConfigError&) {
    return 0;
  }
  return 0;
}
