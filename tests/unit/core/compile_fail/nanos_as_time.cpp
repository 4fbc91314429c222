#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
SimTime at{Nanos{5}};
#else
SimTime at = Nanos{5};
#endif
