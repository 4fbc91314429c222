#include "sim/core/units.hpp"

#include <fmt/core.h>

namespace oomcast::detail {

void throw_overflow(const char* operation, std::int64_t left, std::int64_t right) {
  throw ArithmeticOverflow(fmt::format("a quantity is too large: {} {} {} does not fit in 64 bits",
                                       left, operation, right));
}

}  // namespace oomcast::detail
