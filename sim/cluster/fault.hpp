// What is done to a cluster while it serves, as written behind --inject:
//
//   kill prefill 0 at 12s               the server dies; it does not come back
//   drop decode 1 at 500ms              what is on its way to or from it is lost
//   slow prefill 2 to 10% at 3s for 20s its links have a share of their rate; without an end, for
//   good. Of several at once the one that began last counts
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast::cluster {

struct Fault {
  enum class Kind : std::uint8_t { kKill, kDrop, kSlow };
  Kind kind = Kind::kKill;
  KvHandoff::Role role = KvHandoff::Role::kPrefill;
  std::size_t server = 0;  // within its pool
  SimTime at;
  double share = 1;              // kSlow: of the rate, from 0.0001 to 1
  std::optional<SimTime> until;  // kSlow
  std::string text;              // as written
};

struct PoolSizes {
  std::size_t prefill = 0;
  std::size_t decode = 0;
};

// Complains about anything that is no fault of a server that is there; nullopt then.
std::optional<Fault> parse_fault(std::string_view text, const PoolSizes& pools, Problems& problems);

}  // namespace oomcast::cluster
