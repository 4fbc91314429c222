#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
auto sum = Bytes{1} + Bytes{1};
#else
auto mixed = Bytes{1} + Tokens{1};
#endif
