// What to change when a deployment does not fit: every proposal is simulated before it is made.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"

namespace oomcast {

// Changes that make a plan start which did not, each alone, ordered by how little they change: a
// length or batch limit before precision, precision before more cards. At most one value per knob,
// the mildest that works.
std::vector<Fix> find_fixes(const Plan& failed);

// Changes that let a run which ran out of memory serve its whole workload, each alone: where memory
// was there in pieces, a setting of PyTorch's allocator; and less memory for the KV cache.
// `restart` gives the workload from its start; `options` are those of the run.
std::vector<Fix> find_runtime_fixes(
    const EngineDeployment& deployment, const RunRecord& failed, const StepTimeModel& model,
    const std::function<std::unique_ptr<workloads::RequestStream>()>& restart,
    const ReplayOptions& options);

}  // namespace oomcast
