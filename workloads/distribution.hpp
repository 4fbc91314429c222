// Distributions of lengths and times as they are written in a synthetic workload:
//   512   fixed(512)   uniform(64,512)   normal(1024,256)   lognormal(1024,0.8)
//   exponential(1024)  empirical(FILE)
// and for all but fixed a cap: lognormal(1024,0.8,max=8192).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sim/core/random.hpp"

namespace oomcast::workloads {

class Distribution {
 public:
  Distribution() = default;
  virtual ~Distribution() = default;
  Distribution(const Distribution&) = delete;
  Distribution& operator=(const Distribution&) = delete;
  // A draw, before rounding and limits.
  [[nodiscard]] virtual double draw(RandomStream& stream) const = 0;
};

// `place` names the key of a synthetic workload ("input"), or an option ("--output"), in messages.
// Throws ConfigError that shows the valid forms.
std::unique_ptr<Distribution> parse_distribution(std::string_view text, const std::string& place);

}  // namespace oomcast::workloads
