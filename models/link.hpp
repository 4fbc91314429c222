// The catalog of links between servers: models/links/*.json, one file a kind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.hpp"

namespace oomcast::models {

struct LinkSpec {
  // Whom a port belongs to: a node's cards share its NICs, NVLink and PCIe are each card's own.
  enum class Kind : std::uint8_t { kNic, kNvlink, kPcie };

  std::string name;
  Kind kind = Kind::kNic;
  bool rdma = true;
  double bytes_per_second = 0;  // of one port in one direction; 0: that of the card
  double efficiency = 1;        // share that transfers reach
  Nanos latency;                // of a message
  Nanos setup;                  // fixed cost of a transfer
};

// By name or alias, case-blind. Throws ConfigError with the nearest names.
LinkSpec find_link(std::string_view name);

// The names, sorted.
std::vector<std::string> link_names();

}  // namespace oomcast::models
