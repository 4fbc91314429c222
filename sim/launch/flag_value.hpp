// One flag's text as its typed value, checked against the row of the table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/launch/flag_table.hpp"

namespace oomcast::launch {

// What reading a value may add besides problems.
struct ValueNotes {
  Problems* problems;
  std::vector<std::string>* warnings;
  std::string place;  // the flag as typed, for messages
};

// `texts` holds one text but for list types. nullopt when a problem was added.
std::optional<Json> read_flag_value(const FlagSpec& flag, const Version& version,
                                    const std::vector<std::string>& texts, ValueNotes& notes);

// Is `value` what the flag's type says, and within its bounds and choices? For values that come as
// JSON. Adds a problem if not.
bool check_flag_value(const FlagSpec& flag, const Version& version, const Json& value,
                      ValueNotes& notes);

// The text of a dotted key's value: JSON if it reads as JSON, else a string.
Json read_loose_json(const std::string& text);

}  // namespace oomcast::launch
