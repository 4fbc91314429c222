#include "sim/launch/shell_words.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace oomcast::launch {
namespace {

// A line with more words than this is no launch line; it bounds what expansion can multiply.
constexpr std::size_t kMaxWords = 20'000;
constexpr std::size_t kMaxExpandedText = std::size_t{4} << 20;

bool is_name_start(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '_';
}
bool is_name_letter(char letter) {
  return is_name_start(letter) || (letter >= '0' && letter <= '9');
}
bool is_blank(char letter) { return letter == ' ' || letter == '\t'; }

// A piece of a word before expansion.
struct Part {
  enum class Kind { kLiteral, kVariable, kUnknowable };
  Kind kind = Kind::kLiteral;
  std::string text;      // literal text, variable name, or the source of what cannot be known
  std::string fallback;  // ${NAME:-fallback}
  bool has_fallback = false;
  bool quoted = false;
};

struct RawWord {
  std::vector<Part> parts;
  // Length of an unquoted NAME in front of '=', 0 if the word is no assignment.
  std::size_t assignment_name = 0;
};

enum class Ending { kWord, kCommand, kText };

class Scanner {
 public:
  Scanner(std::string_view text, Problems& problems) : text_(text), problems_(&problems) {}

  // The next word, or what ended the command.
  Ending next(RawWord& word);

 private:
  [[nodiscard]] char at(std::size_t index) const {
    return index < text_.size() ? text_[index] : '\0';
  }
  [[nodiscard]] char here() const { return at(at_); }
  void complain(std::string_view what, std::string expected, std::string hint = {});
  [[nodiscard]] std::size_t line_break_after(std::size_t index) const;
  bool skip_continuation();
  void skip_blanks_and_comments();
  void skip_prompt();
  bool skip_redirection();
  void read_word(RawWord& word);
  void read_single_quotes(RawWord& word);
  void read_double_quotes(RawWord& word);
  void read_dollar(RawWord& word, bool quoted);
  void read_backticks(RawWord& word, bool quoted);
  void literal(RawWord& word, char letter, bool quoted) const;

  std::string_view text_;
  Problems* problems_;
  std::size_t at_ = 0;
  bool line_start_ = true;
};

void Scanner::complain(std::string_view what, std::string expected, std::string hint) {
  const auto line =
      1 + std::count(text_.begin(),
                     text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())),
                     '\n');
  problems_->add({std::string(kLaunchLine), fmt::format("line {}", line), std::string(what),
                  std::move(expected), std::move(hint)});
}

// Length of LF or CRLF at `index`, 0 if there is none.
std::size_t Scanner::line_break_after(std::size_t index) const {
  if (at(index) == '\n') {
    return 1;
  }
  return at(index) == '\r' && at(index + 1) == '\n' ? 2 : 0;
}

// Backslash and line end. Blanks between the two are the commonest slip in pasted lines, and no one
// means an escaped blank there.
bool Scanner::skip_continuation() {
  if (here() != '\\') {
    return false;
  }
  std::size_t end = at_ + 1;
  while (is_blank(at(end))) {
    ++end;
  }
  const std::size_t length = line_break_after(end);
  if (length == 0 && end < text_.size()) {
    return false;
  }
  at_ = end + length;
  return true;
}

void Scanner::skip_blanks_and_comments() {
  while (at_ < text_.size()) {
    if (is_blank(here()) || (here() == '\r' && at(at_ + 1) != '\n')) {
      ++at_;
    } else if (here() == '#') {
      while (at_ < text_.size() && here() != '\n') {
        ++at_;
      }
    } else if (!skip_continuation()) {
      return;
    }
  }
}

// "$ vllm serve ..." as copied from a terminal or a README.
void Scanner::skip_prompt() {
  if (line_start_ && here() == '$' && is_blank(at(at_ + 1))) {
    at_ += 2;
    skip_blanks_and_comments();
  }
  line_start_ = false;
}

// "> log", "2>&1", "&> log", "< input": they do not change what is launched.
bool Scanner::skip_redirection() {
  std::size_t end = at_;
  while (at(end) >= '0' && at(end) <= '9') {
    ++end;
  }
  if (end == at_ && at(end) == '&' && at(end + 1) == '>') {
    ++end;
  }
  if (at(end) != '<' && at(end) != '>') {
    return false;
  }
  if (at(end) == '<' && at(end + 1) == '<') {
    at_ = end;
    complain("<<", "a command line without here-documents", "write the file's text in the line");
    at_ = text_.size();
    return true;
  }
  const char direction = at(end);
  ++end;
  if (direction == '>' && (at(end) == '>' || at(end) == '|')) {
    ++end;
  }
  if (at(end) == '&') {
    ++end;
  }
  at_ = end;
  skip_blanks_and_comments();
  RawWord target;
  read_word(target);
  return true;
}

void Scanner::literal(RawWord& word, char letter, bool quoted) const {
  if (word.parts.empty() || word.parts.back().kind != Part::Kind::kLiteral ||
      word.parts.back().quoted != quoted) {
    word.parts.push_back({Part::Kind::kLiteral, {}, {}, false, quoted});
  }
  word.parts.back().text += letter;
}

void Scanner::read_single_quotes(RawWord& word) {
  word.parts.push_back({Part::Kind::kLiteral, {}, {}, false, true});
  const std::size_t end = text_.find('\'', at_ + 1);
  if (end == std::string_view::npos) {
    complain(text_.substr(at_, 40), "a closing quote '");
    at_ = text_.size();
    return;
  }
  word.parts.back().text = text_.substr(at_ + 1, end - at_ - 1);
  at_ = end + 1;
}

void Scanner::read_double_quotes(RawWord& word) {
  const std::size_t start = at_++;
  word.parts.push_back({Part::Kind::kLiteral, {}, {}, false, true});
  while (at_ < text_.size() && here() != '"') {
    if (here() == '\\') {
      const std::size_t length = line_break_after(at_ + 1);
      const char escaped = at(at_ + 1);
      if (length > 0) {
        at_ += 1 + length;
      } else if (escaped == '"' || escaped == '\\' || escaped == '$' || escaped == '`') {
        literal(word, escaped, true);
        at_ += 2;
      } else {
        literal(word, '\\', true);
        ++at_;
      }
    } else if (here() == '$') {
      read_dollar(word, true);
    } else if (here() == '`') {
      read_backticks(word, true);
    } else {
      literal(word, here(), true);
      ++at_;
    }
  }
  if (at_ >= text_.size()) {
    at_ = start;
    complain(text_.substr(start, 40), "a closing quote \"");
    at_ = text_.size();
    return;
  }
  ++at_;
}

void Scanner::read_backticks(RawWord& word, bool quoted) {
  const std::size_t end = std::min(text_.find('`', at_ + 1), text_.size() - 1);
  word.parts.push_back(
      {Part::Kind::kUnknowable, std::string(text_.substr(at_, end - at_ + 1)), {}, false, quoted});
  at_ = end + 1;
}

void Scanner::read_dollar(RawWord& word, bool quoted) {
  const std::size_t start = at_;
  const auto unknowable = [&](std::size_t end) {
    at_ = std::min(end, text_.size());
    word.parts.push_back({Part::Kind::kUnknowable,
                          std::string(text_.substr(start, at_ - start)),
                          {},
                          false,
                          quoted});
  };
  const char after = at(start + 1);
  if (is_name_start(after)) {
    std::size_t end = start + 1;
    while (is_name_letter(at(end))) {
      ++end;
    }
    word.parts.push_back({Part::Kind::kVariable,
                          std::string(text_.substr(start + 1, end - start - 1)),
                          {},
                          false,
                          quoted});
    at_ = end;
  } else if (after == '{') {
    std::size_t end = start + 2;
    while (is_name_letter(at(end))) {
      ++end;
    }
    const std::size_t close = text_.find('}', end);
    if (close == std::string_view::npos) {
      complain(text_.substr(start, 40), "a closing }");
      at_ = text_.size();
      return;
    }
    Part part{Part::Kind::kVariable,
              std::string(text_.substr(start + 2, end - start - 2)),
              {},
              false,
              quoted};
    const std::string_view rest = text_.substr(end, close - end);
    const bool has_fallback = rest.starts_with(":-") || rest.starts_with("-");
    if (part.text.empty() || (!rest.empty() && !has_fallback)) {
      unknowable(close + 1);
      return;
    }
    if (has_fallback) {
      part.has_fallback = true;
      part.fallback = rest.substr(rest.starts_with(":") ? 2 : 1);
    }
    word.parts.push_back(std::move(part));
    at_ = close + 1;
  } else if (after == '(') {
    std::size_t end = start + 1;
    int depth = 0;
    do {
      depth += at(end) == '(' ? 1 : at(end) == ')' ? -1 : 0;
      ++end;
    } while (depth > 0 && end < text_.size());
    unknowable(end);
  } else if (after == '\'' && !quoted) {
    ++at_;
    read_single_quotes(word);
  } else if (after == '@' || after == '*' || after == '#' || after == '?' || after == '$' ||
             after == '!' || (after >= '0' && after <= '9')) {
    unknowable(start + 2);
  } else {
    literal(word, '$', quoted);
    ++at_;
  }
}

void Scanner::read_word(RawWord& word) {
  constexpr std::string_view kEnds = " \t\n;|&<>()";
  bool only_name = true;
  while (at_ < text_.size()) {
    const char letter = here();
    if (letter == '\'') {
      read_single_quotes(word);
      only_name = false;
    } else if (letter == '"') {
      read_double_quotes(word);
      only_name = false;
    } else if (letter == '$') {
      read_dollar(word, false);
      only_name = false;
    } else if (letter == '`') {
      read_backticks(word, false);
      only_name = false;
    } else if (letter == '\\') {
      if (skip_continuation()) {
        continue;
      }
      literal(word, at(at_ + 1), false);
      at_ += 2;
      only_name = false;
    } else if (kEnds.find(letter) != std::string_view::npos || line_break_after(at_) > 0) {
      return;
    } else {
      if (letter == '=' && only_name && !word.parts.empty() && word.assignment_name == 0 &&
          is_name_start(word.parts[0].text[0]) &&
          std::all_of(word.parts[0].text.begin(), word.parts[0].text.end(), is_name_letter)) {
        word.assignment_name = word.parts[0].text.size();
      }
      literal(word, letter, false);
      ++at_;
    }
  }
}

Ending Scanner::next(RawWord& word) {
  word = {};
  while (true) {
    skip_blanks_and_comments();
    skip_prompt();
    if (at_ >= text_.size()) {
      return Ending::kText;
    }
    if (skip_redirection()) {
      continue;
    }
    const char letter = here();
    if (const std::size_t length = line_break_after(at_); length > 0) {
      at_ += length;
      line_start_ = true;
      // A line that starts with an option continues the one before: its `\` was lost in copying.
      std::size_t ahead = at_;
      while (is_blank(at(ahead))) {
        ++ahead;
      }
      if (at(ahead) == '-' && at(ahead + 1) != ' ') {
        line_start_ = false;
        continue;
      }
      return Ending::kCommand;
    }
    if (letter == ';' || letter == '&' || letter == '|') {
      ++at_;
      return Ending::kCommand;
    }
    if (letter == '(' || letter == ')') {
      complain(text_.substr(at_, 40), "one plain command",
               "arrays, functions and subshells are not read; quote a parenthesis that is text");
      at_ = text_.size();
      return Ending::kText;
    }
    read_word(word);
    return Ending::kWord;
  }
}

using Variables = std::map<std::string, Word, std::less<>>;

class Expander {
 public:
  void set(const Assignment& assignment) { variables_[assignment.name] = assignment.value; }

  // An unquoted variable splits into several words, as in the shell.
  std::vector<Word> expand(const RawWord& raw) {
    std::vector<Word> out;
    Word current;
    bool open = false;
    for (const Part& part : raw.parts) {
      if (part.kind == Part::Kind::kUnknowable) {
        note_unknown(current, part.text);
        append(current, part.text);
        open = true;
        continue;
      }
      Word value{part.text, {}};
      if (part.kind == Part::Kind::kVariable) {
        value = lookup(part);
      }
      if (!value.unknown.empty()) {
        note_unknown(current, value.unknown);
      }
      if (part.quoted || part.kind == Part::Kind::kLiteral || raw.assignment_name > 0) {
        append(current, value.text);
        open = open || part.quoted || !value.text.empty();
        continue;
      }
      for (const char letter : value.text) {
        if (is_blank(letter) || letter == '\n' || letter == '\r') {
          if (open) {
            out.push_back(std::exchange(current, {}));
            open = false;
          }
        } else {
          append(current, std::string_view(&letter, 1));
          open = true;
        }
      }
    }
    if (open) {
      out.push_back(std::move(current));
    }
    return out;
  }

 private:
  static void note_unknown(Word& word, const std::string& what) {
    if (word.unknown.empty()) {
      word.unknown = what;
    }
  }

  void append(Word& word, std::string_view text) {
    written_ += text.size();
    if (written_ > kMaxExpandedText) {
      throw ConfigError(
          Problem{std::string(kLaunchLine), "", "", "at most 4 MiB of expanded text", ""});
    }
    word.text += text;
  }

  [[nodiscard]] Word lookup(const Part& part) const {
    const auto found = variables_.find(part.text);
    if (found != variables_.end()) {
      return found->second;
    }
    if (part.has_fallback) {
      return {part.fallback, {}};
    }
    return {"$" + part.text, "$" + part.text};
  }

  Variables variables_;
  std::size_t written_ = 0;
};

// Splits "NAME=value" that stood in front, or after `export`.
std::optional<Assignment> as_assignment(const Word& word) {
  const std::size_t equals = word.text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return std::nullopt;
  }
  const std::string_view name = std::string_view(word.text).substr(0, equals);
  if (!is_name_start(name[0]) || !std::all_of(name.begin(), name.end(), is_name_letter)) {
    return std::nullopt;
  }
  return Assignment{std::string(name), Word{word.text.substr(equals + 1), word.unknown}};
}

}  // namespace

std::vector<SimpleCommand> read_shell(std::string_view text, Problems& problems) {
  if (text.starts_with("\xef\xbb\xbf")) {
    text.remove_prefix(3);
  }
  std::vector<SimpleCommand> commands;
  Scanner scanner(text, problems);
  Expander expander;
  SimpleCommand command;
  std::size_t words = 0;
  const auto finish = [&] {
    if (command.words.empty() || command.words[0].text == "export") {
      for (const Assignment& assignment : command.assignments) {
        expander.set(assignment);
      }
      for (const Word& word : command.words) {
        if (const auto assignment = as_assignment(word)) {
          expander.set(*assignment);
          command.assignments.push_back(*assignment);
        }
      }
      command.words.clear();
    }
    if (!command.words.empty() || !command.assignments.empty()) {
      commands.push_back(std::exchange(command, {}));
    }
  };
  RawWord raw;
  while (true) {
    const Ending ending = scanner.next(raw);
    if (ending != Ending::kWord) {
      finish();
      if (ending == Ending::kText) {
        return commands;
      }
      continue;
    }
    if (++words > kMaxWords) {
      throw ConfigError(Problem{std::string(kLaunchLine), "", "",
                                fmt::format("at most {} words", kMaxWords), ""});
    }
    for (Word& word : expander.expand(raw)) {
      const bool in_front = raw.assignment_name > 0 && command.words.empty();
      if (const auto assignment = in_front ? as_assignment(word) : std::nullopt) {
        command.assignments.push_back(*assignment);
      } else {
        command.words.push_back(std::move(word));
      }
    }
  }
}

}  // namespace oomcast::launch
