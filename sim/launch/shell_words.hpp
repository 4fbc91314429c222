// A pasted piece of shell text as simple commands. Only what people paste around a server command
// is read: quotes, escapes, continued lines, comments, assignments, `&&`, `;`, pipes, redirections.
// Nothing is executed and nothing but variables set in the text itself is expanded.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.hpp"

namespace oomcast::launch {

// One word after expansion. `unknown` is the first part that only a running shell could tell
// ("$HOME", "$(nproc)"); its text stands in `text` as written.
struct Word {
  std::string text;
  std::string unknown;
};

struct Assignment {
  std::string name;
  Word value;
};

struct SimpleCommand {
  std::vector<Assignment> assignments;  // `NAME=value` in front of the words
  std::vector<Word> words;              // may be empty: the assignments then stay set
};

// Commands in order of their text. Assignments without a command and `export NAME=value` become
// variables for the commands after them. Problems (unclosed quote, subshell, here-document) name
// the line and are added to `problems`; what could be read is returned.
std::vector<SimpleCommand> read_shell(std::string_view text, Problems& problems);

}  // namespace oomcast::launch
