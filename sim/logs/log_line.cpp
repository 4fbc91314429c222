#include "sim/logs/log_line.hpp"

#include <re2/re2.h>

#include <array>
#include <boost/locale/utf.hpp>

#include "sim/core/json.hpp"

namespace oomcast::logs {
namespace {

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }

// Blanks for bytes that are no text.
std::string readable(std::string_view raw, std::int64_t& unreadable) {
  using Utf8 = boost::locale::utf::utf_traits<char>;
  std::string out;
  out.reserve(raw.size());
  const char* at = raw.data();
  const char* const end = at + raw.size();
  while (at != end) {
    const auto byte = static_cast<unsigned char>(*at);
    constexpr unsigned char kDelete = 0x7f;
    if (byte >= ' ' && byte < kDelete) {
      out += *at++;
      continue;
    }
    if (byte == '\t' || byte == '\x1b') {
      out += *at++;
      continue;
    }
    const char* next = at;
    const boost::locale::utf::code_point point =
        byte > kDelete ? Utf8::decode(next, end) : boost::locale::utf::illegal;
    if (point == boost::locale::utf::illegal || point == boost::locale::utf::incomplete) {
      ++unreadable;
      out += ' ';
      ++at;
    } else {
      out.append(at, next);
      at = next;
    }
  }
  return out;
}

// Escape sequences of terminals, also as loggers spell them (#033[, ^[[, \u001b[).
void strip_colours(std::string& text) {
  if (text.find('[') == std::string::npos && text.find('\x1b') == std::string::npos) {
    return;
  }
  static const re2::RE2 kColours(
      R"((?:\x1b|#033|\^\[|\\u001b|\\x1b|\\e)\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07?|\x1b.?)",
      re2::RE2::Latin1);
  re2::RE2::GlobalReplace(&text, kColours, "");
}

std::string stream_of(std::string_view line) {
  static const std::array<re2::RE2, 3> kPrefixes = {
      re2::RE2(R"(^([A-Za-z][\w.-]*) +\| )", re2::RE2::Latin1),  // docker compose
      re2::RE2(R"(^\[(pod/[^\]\s]+)\] )", re2::RE2::Latin1),     // kubectl logs --prefix
      re2::RE2(R"(^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ )"
               R"(([\w./@-]+\[\d+\]): )",
               re2::RE2::Latin1),  // journald, syslog
  };
  std::string found;
  for (const re2::RE2& prefix : kPrefixes) {
    if (re2::RE2::PartialMatch(piece(line), prefix, &found)) {
      break;
    }
  }
  return found;
}

// "_DP0_TP1" or " DP0 TP1" as "DP0 TP1".
std::string tidy(const std::string& parts) {
  std::string out;
  for (const char letter : parts) {
    if (letter != '_' && letter != ' ') {
      out += letter;
    } else if (!out.empty()) {
      out += ' ';
    }
  }
  return out;
}

std::string rank_of(std::string_view line) {
  // Prefixes stand at the front; what follows may speak of other ranks.
  constexpr std::size_t kPrefix = 256;
  const std::string_view head = line.substr(0, kPrefix);
  std::string parts;
  std::string number;
  static const re2::RE2 kVllm(
      R"(\((?:EngineCore|Worker|VllmWorker|VllmWorkerProcess|RayWorkerWrapper)((?:_[A-Z]+\d+)*))"
      R"((?:_\d+)?(?: rank=(\d+))? (?:pid=\d+))",
      re2::RE2::Latin1);
  if (re2::RE2::PartialMatch(piece(head), kVllm, &parts, &number)) {
    return number.empty() ? tidy(parts) : "rank " + number;
  }
  static const re2::RE2 kSglang(
      R"(\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z_]+\d+)+)\])", re2::RE2::Latin1);
  if (re2::RE2::PartialMatch(piece(head), kSglang, &parts)) {
    return tidy(parts);
  }
  static const re2::RE2 kNumbered(R"(\[(?:rank|RANK ?)(\d+)\]|^\[\d+,(\d+)\]<std)",
                                  re2::RE2::Latin1);
  std::string of_mpi;
  if (re2::RE2::PartialMatch(piece(head), kNumbered, &number, &of_mpi)) {
    return "rank " + (number.empty() ? of_mpi : number);
  }
  return {};
}

struct Record {
  std::string text;
  std::string stream;
};

// A line of a JSON log: docker's json-file, journald, collectors.
std::optional<Record> json_record(std::string_view line) {
  const std::size_t open = line.find_first_not_of(" \t");
  if (open == std::string_view::npos || line[open] != '{' || line.substr(open, 2) == "{'") {
    return std::nullopt;
  }
  const Json json = Json::parse(line.substr(open), nullptr, false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  Record record;
  const auto text_at = [&json](const char* key) -> const std::string* {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? &found->get_ref<const std::string&>()
                                                     : nullptr;
  };
  for (const char* key : {"log", "message", "msg", "MESSAGE", "textPayload", "line", "body"}) {
    if (const std::string* text = text_at(key)) {
      record.text = *text;
      break;
    }
  }
  if (record.text.empty()) {
    return std::nullopt;
  }
  for (const char* key : {"pod", "pod_name", "container_name", "container", "_SYSTEMD_UNIT"}) {
    if (const std::string* stream = text_at(key)) {
      record.stream = *stream;
      break;
    }
  }
  return record;
}

}  // namespace

void LineUnwrapper::add(std::string_view text, const std::string& stream) {
  constexpr std::string_view kEnds = "\r\n";
  while (!text.empty()) {
    const std::size_t stop = std::min(text.find_first_of(kEnds), text.size());
    if (stop > 0) {
      LogLine& line = lines_.emplace_back();
      line.text = readable(text.substr(0, stop), unreadable_);
      strip_colours(line.text);
      line.stream = stream.empty() ? stream_of(line.text) : stream;
      line.rank = rank_of(line.text);
    }
    text.remove_prefix(std::min(stop + 1, text.size()));
  }
}

const std::vector<LogLine>& LineUnwrapper::unwrap(std::string_view raw) {
  lines_.clear();
  if (const auto record = json_record(raw)) {
    add(record->text, record->stream);
  } else {
    add(raw, {});
  }
  return lines_;
}

}  // namespace oomcast::logs
