#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
auto twice = Bytes{2} * 2;
#else
auto square = Bytes{2} * Bytes{2};
#endif
