// The JSON Schemas (draft 2020-12) of everything that is written, compiled in. Their $id is
// "urn:oomcast:plan:1" for what carries "schema": "oomcast.plan/1".
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace oomcast::schemas {

// "plan", "record", ...: sorted.
std::vector<std::string> names();
// The text of one. Throws ConfigError with the nearest name.
std::string_view text(const std::string& name);

namespace detail {
// Generated at build time by oomcast_embed().
const std::map<std::string_view, std::string_view>& compiled_in_files();
}  // namespace detail

}  // namespace oomcast::schemas
