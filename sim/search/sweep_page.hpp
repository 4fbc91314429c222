// sweep.html: a heat map of two settings, figures against each other, the table of points.
#pragma once

#include <string>

#include "sim/engines/deployment.hpp"
#include "sim/search/sweep.hpp"

namespace oomcast::search {

// Of a large sweep the best points and a part of the others, evenly taken, which the page says.
std::string sweep_page(const Sweep& sweep, const EngineDeployment& base);

}  // namespace oomcast::search
