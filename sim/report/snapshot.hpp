// The history of one rank's allocator as snapshot.pickle: frames name tensor, op, class and the
// step with its mix of tokens and rows; in a startup, class and phase.
#pragma once

#include <string>

#include "sim/run/allocator_record.hpp"

namespace oomcast {

// Throws ConfigError when the file cannot be written.
void write_snapshot(const MemoryHistory& history, int rank, const std::string& path);

}  // namespace oomcast
