// The arguments of an engine's command as flags, by the rules of its argument parser (Python's
// argparse with vLLM's additions): abbreviations, underscores, short forms, dotted JSON keys.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/launch/flag_table.hpp"
#include "sim/launch/shell_words.hpp"

namespace oomcast::launch {

struct ParsedArguments {
  std::map<std::string, FlagValue, std::less<>> flags;  // given ones only
  std::vector<Word> positional;
  std::vector<std::string> passed_over;  // flags without effect, as typed, in order
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
};

// Reads all arguments; every problem is added to `problems`.
ParsedArguments read_arguments(const FlagTable& table, const Version& version,
                               const std::vector<Word>& arguments, Problems& problems);

}  // namespace oomcast::launch
