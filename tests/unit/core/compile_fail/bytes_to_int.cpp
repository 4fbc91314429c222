#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
std::int64_t plain = Bytes{1}.count();
#else
std::int64_t plain = Bytes{1};
#endif
