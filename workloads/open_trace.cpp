// Which format a file is in, told by its column or key names.
#include <algorithm>
#include <charconv>
#include <functional>

#include "sim/core/error.hpp"
#include "workloads/byte_source.hpp"
#include "workloads/flat_reader.hpp"
#include "workloads/formats/agentic.hpp"
#include "workloads/formats/formats.hpp"
#include "workloads/formats/servegen.hpp"
#include "workloads/request_stream.hpp"
#include "workloads/trace_stream.hpp"

namespace oomcast::workloads {
namespace {

constexpr const char* kAgenticKeys = "id, block_size, requests";

// In order of detection: the more telling signatures first.
const std::vector<FlatFormat>& flat_formats() {
  static const std::vector<FlatFormat> all = {
      formats::bailian(),   formats::mooncake(), formats::tair(),       formats::llmservingsim(),
      formats::azure(),     formats::burstgpt(), formats::inferencex(), formats::vllm_multiturn(),
      formats::splitwise(), formats::arena(),    formats::vidur()};
  return all;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

bool has_all(const TraceHead& head, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(head.names.begin(), head.names.end(), name) != head.names.end();
  });
}

bool has_any(const TraceHead& head, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(head.names.begin(), head.names.end(), name) != head.names.end();
  });
}

bool is_agentic(const TraceHead& head) {
  return head.is_json && has_all(head, {"block_size", "requests"});
}

bool fits(const FlatFormat& format, const TraceHead& head) {
  return format.is_json == head.is_json && has_all(head, format.required) &&
         !has_any(head, format.forbidden);
}

// "mooncake:block=16", "servegen:start=36000,duration=3600"
struct FormatChoice {
  std::string name;
  std::optional<std::int64_t> block_size;
  formats::ServegenWindow window;
};

std::int64_t setting_value(const std::string& setting, std::size_t from, std::int64_t most) {
  std::int64_t value = 0;
  const char* last = setting.data() + setting.size();
  const auto [end, error] = std::from_chars(setting.data() + from, last, value);
  if (error != std::errc{} || end != last || value < 0 || value > most) {
    throw ConfigError(Problem{"command line", "--trace-format", setting,
                              fmt::format("a whole number from 0 to {}", most), ""});
  }
  return value;
}

FormatChoice parse_choice(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  FormatChoice choice;
  choice.name = text.substr(0, colon);
  std::vector<std::string> names;
  for (const TraceFormat& format : trace_formats()) {
    names.emplace_back(format.name);
  }
  if (!choice.name.empty() && std::find(names.begin(), names.end(), choice.name) == names.end()) {
    throw ConfigError(Problem{"command line", "--trace-format", choice.name,
                              "one of " + joined(names), did_you_mean(choice.name, names)});
  }
  std::size_t at = colon + 1;
  while (at <= text.size() && colon < text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string setting = text.substr(at, comma - at);
    const std::size_t equals = std::min(setting.find('='), setting.size());
    const std::string key = setting.substr(0, equals);
    constexpr std::int64_t kYear = 366 * std::int64_t{86'400};
    const bool servegen = choice.name == formats::kServegenName;
    if (key == "block" && !servegen) {
      choice.block_size = std::max<std::int64_t>(setting_value(setting, equals + 1, kMaxTokens), 1);
    } else if (key == "start" && servegen) {
      choice.window.start_seconds = setting_value(setting, equals + 1, kYear);
    } else if (key == "duration" && servegen) {
      choice.window.duration_seconds = setting_value(setting, equals + 1, kYear);
    } else {
      throw ConfigError(Problem{
          "command line", "--trace-format", setting,
          servegen ? "start=SECONDS or duration=SECONDS" : "block=N, tokens per block id", ""});
    }
    at = comma + 1;
  }
  return choice;
}

[[noreturn]] void refuse_unknown(const TraceHead& head, const std::string& file) {
  std::string known;
  for (const TraceFormat& format : trace_formats()) {
    known += fmt::format("{}{} ({})", known.empty() ? "" : "; ", format.name, format.signature);
  }
  std::string names = joined(head.names);
  constexpr std::size_t kShown = 300;
  if (names.size() > kShown) {
    names.resize(kShown);
  }
  throw ConfigError(Problem{
      file, head.is_json ? "keys" : "columns", names, "the names of a known trace format: " + known,
      formats::plain(head, file, false) ? "--output LENGTHS draws the outputs" : ""});
}

std::optional<FlatFormat> choose(const TraceHead& head, const FormatChoice& choice,
                                 const std::string& file, bool needs_output) {
  const bool plain = choice.name == "csv" || choice.name == "jsonl";
  for (const FlatFormat& format : flat_formats()) {
    if (choice.name.empty() ? fits(format, head) : format.name == choice.name) {
      if (!fits(format, head)) {
        throw ConfigError(Problem{file, head.is_json ? "keys" : "columns", joined(head.names),
                                  joined(format.required) + ", as " + format.name + " has", ""});
      }
      return format;
    }
  }
  if (choice.name.empty() || plain) {
    return formats::plain(head, file, needs_output);
  }
  return std::nullopt;
}

using LineOpener = std::function<std::unique_ptr<LineReader>()>;

std::unique_ptr<RequestStream> open_lines(const LineOpener& open_again, bool rereadable,
                                          const TraceOptions& options) {
  if (options.concurrent_sessions < 1 || options.concurrent_sessions > 1'000'000) {
    throw ConfigError(Problem{"command line", "sessions at once",
                              fmt::format("{}", options.concurrent_sessions),
                              "a number from 1 to 1,000,000", ""});
  }
  const FormatChoice choice = parse_choice(options.format);
  auto lines = open_again();
  const std::string name = lines->name();
  if (formats::is_tar(lines->peek(formats::kTarHeaderBytes))) {
    return formats::open_servegen(*lines, choice.window, options.seed);
  }
  if (choice.name == formats::kServegenName) {
    throw ConfigError(
        Problem{name, "", "no tar archive", "a tar archive of ServeGen's chunk files", ""});
  }
  const TraceHead head = peek_head(*lines);
  if (choice.name.empty() ? is_agentic(head) : choice.name == formats::kAgenticName) {
    if (!is_agentic(head)) {
      throw ConfigError(Problem{name, "keys", joined(head.names),
                                std::string(kAgenticKeys) + ", as agentic has", ""});
    }
    return formats::open_agentic(std::move(lines), options);
  }
  auto format = choose(head, choice, name, !options.draws_output);
  if (!format) {
    refuse_unknown(head, name);
  }
  if (choice.block_size) {
    if (format->blocks.empty()) {
      throw ConfigError(Problem{"command line", "--trace-format", options.format,
                                "a format with block ids for block=N", ""});
    }
    format->block_size = *choice.block_size;
  }
  // The first reader goes on with the lines already opened.
  const auto open = [&]() {
    return open_flat(lines ? std::move(lines) : open_again(), *format, options);
  };
  return stream_rows(open, rereadable, name);
}

}  // namespace

std::unique_ptr<RequestStream> open_trace(const std::string& path, const TraceOptions& options) {
  return open_lines([&] { return std::make_unique<LineReader>(path); }, is_rereadable(path),
                    options);
}

std::unique_ptr<RequestStream> read_trace(const std::string& bytes, const std::string& name,
                                          const TraceOptions& options) {
  return open_lines([&] { return std::make_unique<LineReader>(bytes, name); }, true, options);
}

const std::vector<TraceFormat>& trace_formats() {
  static const std::vector<std::string> signatures = [] {
    std::vector<std::string> out;
    for (const FlatFormat& format : flat_formats()) {
      out.push_back(joined(format.required));
    }
    return out;
  }();
  static const std::vector<TraceFormat> all = [] {
    std::vector<TraceFormat> out;
    out.push_back({formats::kAgenticName,
                   "agent sessions of kv-cache-tester; seconds, block ids of each session",
                   kAgenticKeys});
    for (std::size_t i = 0; i < flat_formats().size(); ++i) {
      out.push_back({flat_formats()[i].name, flat_formats()[i].about, signatures[i]});
    }
    out.push_back({formats::kServegenName,
                   "tar of ServeGen's clients: rates and length distributions by window; seconds",
                   "chunk-ID-trace.csv, chunk-ID-dataset.json"});
    out.push_back({"csv", "plain CSV; the time column names its unit",
                   "input_tokens, output_tokens, arrival_s (and usual variants)"});
    out.push_back({"jsonl", "plain JSON lines; the time key names its unit",
                   "input_tokens, output_tokens, arrival_s (and usual variants)"});
    return out;
  }();
  return all;
}

}  // namespace oomcast::workloads
