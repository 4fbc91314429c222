#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
bool less = Bytes{1} < Bytes{2};
#else
bool less = Bytes{1} < Tokens{2};
#endif
