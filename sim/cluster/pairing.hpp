// Whether a prefill and a decode server can work together, and what goes from one to the other.
#pragma once

#include <cstdint>

#include "models/link.hpp"
#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::cluster {

// Adds a problem, in the engine's words where it has some, for each thing that keeps the two from
// exchanging KV over such links.
void check_pair(const AnyDeployment& prefill, const AnyDeployment& decode,
                const models::LinkSpec& link, std::int64_t cards_per_node, Problems& problems);

// Bytes on the wire for the KV of one token: what the ranks of the decode server keep of it, each
// its own copy or share.
Bytes wire_token_bytes(const AnyDeployment& decode);

// Cards of one server.
std::int64_t cards(const EngineDeployment& deployment);

}  // namespace oomcast::cluster
