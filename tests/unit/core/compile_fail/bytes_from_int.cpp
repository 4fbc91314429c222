#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
Bytes size{4096};
#else
Bytes size = 4096;
#endif
