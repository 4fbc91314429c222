// What ended a start, in numbers where the log has them.
#pragma once

#include <optional>
#include <string>

#include "sim/ledger/classes.hpp"
#include "sim/logs/engine_log.hpp"

namespace oomcast {

struct Cause {
  const logs::Failure* failure = nullptr;
  std::optional<Leaf> leaf;       // class whose memory was asked for, by the phase
  std::optional<Bytes> short_by;  // what was missing
  std::optional<Bytes> others;    // held by other processes
  std::string reason;             // in words
  bool fragmented = false;
};

// nullopt when the run did not fail.
std::optional<Cause> find_cause(const logs::EngineRun& run);

}  // namespace oomcast
