#include "sim/core/units.hpp"

using namespace oomcast;  // NOLINT: a snippet, not a program

#ifdef OOMCAST_LEGAL
auto later = SimTime{} + kSecond;
#else
auto later = SimTime{} + SimTime{};
#endif
