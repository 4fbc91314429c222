// What resolving a launch line has in common, whatever the engine; each engine's resolver derives
// from it and adds its own steps.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/launch/flag_table.hpp"

namespace oomcast {

// PyTorch's allocator settings, from the first of its variables that is set, and the workspace of
// cuBLAS in the engine's `torch`.
void settle_torch(EngineDeployment& deployment, const Version& torch, Problems& problems);

// What the model's file left open, what its spec leaves out, what the line warned of, and where
// measured values come from.
void add_notes(EngineDeployment& deployment, const std::vector<std::string>& provenance);

// Setting to try where the card computes with 8-bit floats and the cache does not hold them yet.
void add_float8_knob(const EngineDeployment& deployment, const char* value,
                     std::vector<Knob>& knobs);

template <typename Deployment>
class LaunchResolver {
 protected:
  template <typename Rules>
  LaunchResolver(Rules rules, launch::Launch&& launch,
                 const std::shared_ptr<const models::ModelSpec>& model, const models::GpuSpec& gpu,
                 const CardState& card, const Assumed& assumed) {
    out_.rules = std::move(rules);
    out_.launch = std::move(launch);
    out_.model = model;
    out_.gpu = gpu;
    out_.card = card;
    out_.assumed = assumed;
  }

  [[nodiscard]] const launch::Launch& line() const { return out_.launch; }
  [[nodiscard]] const models::ModelSpec& model() const { return *out_.model; }

  void complain(const std::string& flag, std::string value, std::string expected,
                std::string hint = {}) {
    problems_.add(
        {"launch line", "--" + flag, std::move(value), std::move(expected), std::move(hint)});
  }

  // A number of ranks; 1 after a complaint.
  int parallel(const char* flag) {
    constexpr std::int64_t kMost = 1024;
    const std::int64_t value = line().integer(flag).value_or(1);
    if (value < 1 || value > kMost) {
      complain(flag, std::to_string(value), fmt::format("1 to {}", kMost));
      return 1;
    }
    return static_cast<int>(value);
  }

  // Flags that the engine's table marks as not modelled. The others in it that change bytes or
  // decisions are read somewhere.
  void refuse_what_is_not_modelled() {
    const launch::FlagTable* table = launch::flag_table(line().engine);
    for (const auto& [name, flag] : line().flags) {
      const launch::FlagSpec* spec = table != nullptr ? table->find(name) : nullptr;
      if (spec == nullptr || flag.origin != launch::Origin::kGiven ||
          (spec->modelled && spec->refused.empty()) || !spec->asks(flag.value, line().version)) {
        continue;
      }
      if (spec->refused.empty()) {
        out_.warnings.push_back(fmt::format(
            "{} is not modelled: the plan is that of a launch without it", flag.written));
      } else {
        complain(name, flag.value.dump(), "a launch without " + spec->refused,
                 spec->instead.empty() ? spec->refused + " is not modelled yet" : spec->instead);
      }
    }
    if (out_.gpu.vendor != "nvidia") {
      problems_.add({"command line", "--gpu", out_.gpu.name, "a card of NVIDIA",
                     "other vendors' engines are not modelled yet"});
    }
  }

  void torch_settings() { settle_torch(out_, out_.rules.torch, problems_); }
  void measured_values() {
    out_.graph_costs = graph_costs(out_.assumed.driver, out_.rules.provenance);
  }
  void notes() { add_notes(out_, out_.rules.provenance); }

  Deployment out_;
  Problems problems_;
};

}  // namespace oomcast
