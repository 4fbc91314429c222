// What differs between two deployments or two runs, by class of memory, and what each change of the
// launch line does to it.
//
// Between two launches the changes are applied one after another, each simulated: the engine's
// version, the card, the model, environment variables, then flags, both by name. A change's share
// `in_order` is what it does after those before it; `alone`, what it does to A by itself. The two
// differ where changes interact, and `interaction` is that difference. Shares in order sum to the
// whole difference.
#pragma once

#include "sim/core/json.hpp"
#include "sim/run/compare_side.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {

// Schema oomcast.compare/1. Changes between the launches are named where both are known, without
// shares: what else a run was made of is not.
OrderedJson compare_json(const ComparedSide& a, const ComparedSide& b);

struct ComparedDeployment {
  std::string source;  // the launch line
  AnyDeployment deployment;
};
ComparedSide compared_side(const ComparedDeployment& deployment);

// The same with the share of each change. A change that the engine refuses by itself waits until
// others make it valid; what stays refused is applied together. Deployments of different engines
// get no shares.
OrderedJson compare_json(const ComparedDeployment& a, const ComparedDeployment& b);

// For a terminal.
std::string compare_text(const OrderedJson& json);

}  // namespace oomcast
