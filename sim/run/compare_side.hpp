// What is compared of one side: a few figures of its fullest rank, from `plan --json`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/core/json.hpp"
#include "sim/core/units.hpp"
#include "sim/launch/launch.hpp"
#include "sim/ledger/ledger.hpp"

namespace oomcast {

// Figures that can be subtracted. Those that a side lacks (it died before) stay empty.
struct ComparedFigures {
  LeafBytes
      classes{};      // as `classes` of plan --json: at ready, runtime and workspace at their peak
  Bytes free;         // at ready
  Bytes device_peak;  // highest of the startup
  std::optional<std::int64_t> kv_tokens;

  friend ComparedFigures operator-(const ComparedFigures& left, const ComparedFigures& right);
  friend ComparedFigures operator+(const ComparedFigures& left, const ComparedFigures& right);
  friend bool operator==(const ComparedFigures&, const ComparedFigures&) = default;
};

struct ComparedSide {
  std::string source;  // the launch line, or the path it was read from
  std::string engine;
  std::string engine_version;
  std::string model;
  std::string gpu;
  std::string kind;       // of the outcome: "served"
  std::int64_t rank = 0;  // the fullest: least free at ready
  std::int64_t ranks = 1;
  Bytes total;
  ComparedFigures figures;
  std::optional<launch::Launch> launch;  // where it is known
  std::optional<Json> totals;            // of a replay's record
};

// From `plan --json` (oomcast.plan/1). Throws ConfigError for what is none.
ComparedSide compared_side(const Json& plan, const std::string& source);
// From a run folder, or the record.json or plan.json of one. Throws ConfigError.
ComparedSide read_compared_side(const std::string& path);

}  // namespace oomcast
