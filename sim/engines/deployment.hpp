// What every engine makes of a launch line on a card; each engine adds its own settings.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gpu.hpp"
#include "models/spec.hpp"
#include "sim/allocator/settings.hpp"
#include "sim/core/json.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/expert_exchange.hpp"
#include "sim/engines/graph_driver.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast {

// What the card really shows, where the user knows better than the catalog.
struct CardState {
  std::optional<Bytes> total;          // cudaMemGetInfo's total
  std::optional<Bytes> free_at_start;  // before this engine does anything
  Bytes other_use;                     // held by other processes
};

// What a calibration found beyond the computed quantities; added to them, may be negative.
struct Residuals {
  Bytes load;         // beside the weights once they are loaded
  Bytes activation;   // of the profile run's peak
  Bytes non_torch;    // appears outside PyTorch up to the end of profiling
  Bytes collectives;  // the same with tensor parallelism: collectives' own
  Bytes graph;        // driver memory of each captured graph

  friend bool operator==(const Residuals&, const Residuals&) = default;
};

// Quantities taken as given instead of computed (`--assume NAME=VALUE`).
struct Assumed {
  std::optional<Bytes> available_kv;
  std::optional<Bytes> non_torch;
  std::optional<Bytes> activation_peak;
  std::optional<Bytes> graphs;
  std::optional<Bytes> communicators;
  std::optional<Bytes> available_after_load;  // SGLang: free memory once weights are loaded
  std::optional<Bytes> free_for_kv;           // TensorRT-LLM: what its fraction is taken of
  std::optional<Bytes> cache_pool;            // SGLang: KV and recurrent state together
  std::optional<Bytes> host_memory;           // free on the host when the engine starts
  std::optional<Version> driver;              // NVIDIA's
  Residuals residuals;                        // of a calibration
  experts::Routing routing;                   // how tokens choose experts
  std::optional<double> spec_acceptance;      // of a draft token, if those before it were right
  bool warm_compile_cache = false;
  bool pieces_compiled_before = false;  // kernels are timed again, pieces not compiled again
  bool kernels_timed_before = false;    // pieces are compiled again, kernels not timed again

  // Reads NAME=VALUE texts; throws ConfigError for unknown names or values.
  static Assumed parse(const std::vector<std::string>& texts);
};

// A setting that can be turned to make a deployment fit.
struct Knob {
  enum class Kind {
    kLess,      // a limit on tokens or requests: halved until it fits
    kLonger,    // a length: the longest that fits
    kFraction,  // a share of memory: up, else down, by hundredths
    kSwitch,    // on
    kValue,     // set to `value`
    kCards,     // doubled, up to a node's 8
  };
  Kind kind = Kind::kLess;
  std::string flag;  // canonical name, without dashes
  double now = 0;    // its value in this deployment
  double least = 1;  // kLess: not below
  std::string value = {};
};

struct EngineDeployment {
  launch::Launch launch;
  std::shared_ptr<const models::ModelSpec> model;
  models::GpuSpec gpu;
  CardState card;
  Assumed assumed;
  allocator::AllocatorSettings allocator_settings;  // from the launch line's environment
  Bytes cublas_workspace;                           // of one handle and stream
  GraphCosts graph_costs;

  int tp = 1;
  int pp = 1;
  int dp = 1;
  int ep = 1;
  models::DType dtype = models::DType::kBFloat16;
  models::DType kv_dtype = models::DType::kBFloat16;
  Tokens max_model_len;
  ExpertExchange exchange;  // of the expert-parallel group

  std::vector<std::string> assumptions;
  std::vector<std::string> warnings;

  EngineDeployment() = default;
  EngineDeployment(const EngineDeployment&) = default;
  EngineDeployment(EngineDeployment&&) = default;
  EngineDeployment& operator=(const EngineDeployment&) = default;
  EngineDeployment& operator=(EngineDeployment&&) = default;
  virtual ~EngineDeployment() = default;

  [[nodiscard]] Bytes device_total() const { return card.total.value_or(gpu.device_total); }
  // Held by other processes before this engine starts; free memory as shown then covers it.
  [[nodiscard]] Bytes used_by_others() const;

  // Data-parallel replicas, each with its scheduler and its KV cache.
  [[nodiscard]] virtual int replicas() const { return dp; }

  // The engine's own resolved settings, for config.resolved.json.
  [[nodiscard]] virtual OrderedJson resolved() const = 0;
  // Settings to try when it does not fit, mildest first.
  [[nodiscard]] virtual std::vector<Knob> knobs() const = 0;
};

}  // namespace oomcast
