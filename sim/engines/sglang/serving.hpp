// From a deployment to the scheduler that serves it, and what a replay cannot model of SGLang.
#pragma once

#include "sim/core/error.hpp"
#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/host_pool.hpp"
#include "sim/engines/sglang/scheduler_config.hpp"

namespace oomcast::sglang {

// Settings of the scheduler for pools of this size. Values that SGLang would refuse, or that are
// not modelled, join the problems.
SchedulerConfig scheduler_config(const Deployment& deployment, const CachePlan& plan,
                                 const std::optional<HostPool>& host, Problems& problems);

// Adds a problem for each thing that can be planned but not served here.
void check_serving(const Deployment& deployment, Problems& problems);
// ... and for a server that waits for another one.
void check_serves_alone(const Deployment& deployment, Problems& problems);

}  // namespace oomcast::sglang
