// What to change when a deployment does not fit: every proposal is simulated before it is made.
#pragma once

#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/engines/vllm/startup.hpp"

namespace oomcast {

// Changes that make `failed` start, each alone, ordered by how little they change: a length or
// batch limit before precision, precision before more cards. At most one value per knob, the
// mildest that works.
std::vector<Fix> find_fixes(const vllm::Deployment& deployment, const vllm::Startup& failed);

}  // namespace oomcast
