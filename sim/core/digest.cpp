#include "sim/core/digest.hpp"

#include <fmt/core.h>

namespace oomcast {

std::string Digest::hex() const { return fmt::format("{:016x}", value_); }

}  // namespace oomcast
