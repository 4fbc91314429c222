#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
Tokens tokens{Blocks{3}.count()};
#else
Tokens tokens{Blocks{3}};
#endif
