// Any text behind --inject: a fault of a server that is there, or one problem; never a crash.
#include <cstdint>
#include <string_view>

#include "sim/cluster/fault.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const cluster::PoolSizes pools{2, 40};
  Problems problems;
  const auto fault = cluster::parse_fault(text, pools, problems);
  OOMCAST_CHECK(fault.has_value() == problems.empty(), "a fault and a problem, or neither");
  if (fault) {
    OOMCAST_CHECK(fault->server < 40 && fault->share > 0 && fault->share <= 1 &&
                      (!fault->until || *fault->until >= fault->at),
                  "a fault out of bounds");
  }
  return 0;
}
