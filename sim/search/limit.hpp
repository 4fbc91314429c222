// `limit`: how far a setting of a deployment, or its load, can go, what breaks first beyond it, and
// what would move that edge.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/search/boundary.hpp"

namespace oomcast::search {

struct LimitRequest {
  std::string knob;  // canonical
  Range range;
  Settings fixed;  // other settings: a place on the second axis
};

// The range of a setting that makes sense for this deployment, where none is given.
Range usual_range(const PointBase& base, const std::string& knob);

// A change with which the first value beyond the edge holds, tried out.
struct LimitFix {
  std::string change;  // "--max-num-seqs 256"
  std::string knob;
  std::string value;
  Bytes frees;  // headroom gained there
};

struct Limit {
  LimitRequest request;
  Boundary boundary;
  std::vector<LimitFix> fixes;  // mildest first
  std::optional<Edge> next;     // with the first fix in place: the edge that comes then
  int evaluations = 0;          // those of fixes and of the next edge aside
};

Limit find_limit(const PointBase& base, const Criterion& criterion, const LimitRequest& request);

// {"schema": "oomcast.limit/1", "limits": [...]}: one entry an edge, the uppermost of a request
// first; an entry without edge where everything in the range holds, or nothing.
OrderedJson limit_json(const std::vector<Limit>& limits, const Criterion& criterion);
std::string limit_text(const OrderedJson& json);

}  // namespace oomcast::search
