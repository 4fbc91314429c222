// JSON files that are handed on and must not change on the way: closed sets of keys, a checksum.
#pragma once

#include <string>
#include <vector>

#include "sim/core/json.hpp"

namespace oomcast::fit {

// Complains about keys that are none of `keys`, with the nearest; `what` is "a calibration".
void known_keys(const JsonView& view, const std::vector<std::string>& keys,
                const std::string& what);

// Of the file without its own `checksum`.
std::string file_checksum(Json file);
// Complains about a checksum that is there and does not agree.
void check_checksum(const JsonView& file);

}  // namespace oomcast::fit
