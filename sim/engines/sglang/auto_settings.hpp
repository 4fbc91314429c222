// Settings that SGLang derives from the card's memory before anything else: chunk, capture sizes
// and --mem-fraction-static (facts: SGLang 2; arg_groups/memory_hook.py, older server_args.py).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engines/sglang/scheduler_config.hpp"
#include "sim/engines/sglang/startup_rules.hpp"

namespace oomcast::sglang {

// What enters: only what the user gave, before defaults of model, attention and DP.
struct AutoInput {
  std::optional<std::int64_t> card_mib;  // as nvidia-smi prints it
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t attention_dp = 1;
  Role role = Role::kMixed;
  std::optional<std::int64_t> chunk;        // --chunked-prefill-size; at most 0: off
  std::optional<std::int64_t> decode_max;   // largest captured decode batch
  std::optional<std::int64_t> prefill_max;  // largest captured prefill
  std::optional<std::int64_t> max_running;  // --max-running-requests
  std::int64_t max_prefill_tokens = 16384;
  std::int64_t draft_tokens = 1;
  bool decode_graphs = true;
  bool prefill_graphs = true;
  bool speculative = false;
  bool standalone_draft = false;
  bool mla = false;
  bool deepep = false;
};

struct AutoSettings {
  std::int64_t chunk = 0;  // at most 0: chunked prefill is off
  std::int64_t decode_max = 0;
  std::int64_t decode_of_card = 0;  // largest batch on the card's own list
  std::int64_t prefill_max = 0;
  double mem_fraction = 0;
};

AutoSettings auto_settings(const StartupRules& rules, const AutoInput& input);

struct CaptureRange {
  std::int64_t most = 0;     // at least 1
  std::int64_t of_card = 0;  // kStepsOf8: where the card's own list ends
};
// Batches of decode graphs up to `most`, ascending.
std::vector<std::int64_t> decode_capture_sizes(CaptureList list, const CaptureRange& range,
                                               bool speculative, bool padded);
// Tokens of prefill graphs up to `most`, ascending.
std::vector<std::int64_t> prefill_capture_sizes(std::int64_t most);

// What a vision encoder of `layers` layers and this width leaves of the fraction.
double multimodal_fraction_factor(std::int64_t layers, std::int64_t hidden);

}  // namespace oomcast::sglang
