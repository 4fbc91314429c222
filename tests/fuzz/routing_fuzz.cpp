// Expert routing: the text of the command line, and a table of counts.
#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/core/error.hpp"
#include "sim/experts/placement.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto use = [](const experts::Routing& routing) {
    constexpr std::int64_t kExperts = 16;
    experts::ExpertGroup group{kExperts, 0, 2, 4, 2, experts::Placing::kBalanced};
    if (!routing.table.empty()) {
      group.experts = static_cast<std::int64_t>(routing.table.front().size()) / 4 * 4;
      group.picks = 1;
    }
    if (group.experts >= group.picks && group.experts > 0 && routing.windows < kExperts) {
      (void)experts::expert_load(routing, group);
    }
  };
  try {
    if (text.rfind("file:", 0) != 0) {
      use(experts::parse_routing(text));
    }
  } catch (const ConfigError&) {
  }
  try {
    use(experts::routing_of_table(parse_json(text, "table"), "table"));
  } catch (const ConfigError&) {
  }
  return 0;
}
