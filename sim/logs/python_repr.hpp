// Python's repr() of settings, as engines print them: `{'model': 'x', 'tp': 2}` or the inside of a
// call, `model='x', dtype=torch.bfloat16, compilation_config={...})`.
#pragma once

#include <string_view>

#include "sim/core/json.hpp"

namespace oomcast::logs {

// Keys and values of the outermost dict or call as a JSON object, in the order given. None reads as
// null; names that are no literal (torch.bfloat16) as their text, enumeration members as their
// name; calls as objects. A text that is cut or malformed gives the entries before that place.
OrderedJson parse_python_settings(std::string_view text);

}  // namespace oomcast::logs
