// From the card's memory to the KV pool in the engine's own arithmetic, logged beside predicted
// (facts: vLLM 2.2, SGLang 1, TensorRT-LLM 3.2).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/logs/engine_log.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {

// One step; subtracted memory is negative.
struct WaterfallRow {
  std::string name;
  std::string memory_class;         // class of the ledger it belongs to; empty for levels
  std::optional<double> logged;     // bytes
  std::optional<double> predicted;  // bytes
  double half_step = 0;             // of the logged value
};

struct Waterfall {
  std::vector<WaterfallRow> rows;   // from the first level down; their sum is what is left
  WaterfallRow left;                // the sum: logged where printed, else predicted
  WaterfallRow pool;                // what the engine says it has for the KV cache
  std::vector<std::string> filled;  // rows without a logged value, summed with the predicted one
  // pool - left: what no row explains. Within `rounding` it is none.
  std::optional<double> unexplained;
  double rounding = 0;
};

// `plan` may be null.
Waterfall make_waterfall(const logs::EngineRun& run, std::size_t rank, launch::Engine engine,
                         const Plan* plan);

// A figure of the engine's report under the name the logs have for it: bytes, a count or a ratio.
std::optional<double> predicted_figure(const EngineReport& report, logs::Figure figure);

}  // namespace oomcast
