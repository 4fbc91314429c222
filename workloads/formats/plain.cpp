// Plain CSV and JSON lines with names that say what they hold. The time column names its unit.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/core/error.hpp"
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {
namespace {

constexpr std::array<const char*, 8> kTimes = {"arrival",    "arrived",     "arrival_time",
                                               "arrived_at", "timestamp",   "time",
                                               "start_time", "request_time"};
constexpr std::array<std::pair<const char*, TimeUnit>, 4> kUnits = {{{"_s", TimeUnit::kSeconds},
                                                                     {"_ms", TimeUnit::kMillis},
                                                                     {"_us", TimeUnit::kMicros},
                                                                     {"_ns", TimeUnit::kNanos}}};
constexpr std::array<const char*, 11> kInputs = {
    "input_tokens",   "prompt_tokens", "num_prompt_tokens", "input_length",
    "prompt_length",  "input_len",     "prompt_len",        "num_prefill_tokens",
    "context_tokens", "input_toks",    "request_tokens"};
constexpr std::array<const char*, 11> kOutputs = {
    "output_tokens",   "completion_tokens", "num_output_tokens", "output_length",
    "response_length", "output_len",        "generated_tokens",  "num_decode_tokens",
    "max_tokens",      "output_toks",       "response_tokens"};
constexpr std::array<const char*, 3> kIds = {"request_id", "req_id", "id"};
constexpr std::array<const char*, 3> kSessions = {"session_id", "conversation_id", "chat_id"};
constexpr std::array<const char*, 4> kAdapters = {"adapter", "lora", "lora_name", "adapter_dir"};

bool has(const TraceHead& head, std::string_view name) {
  return std::find(head.names.begin(), head.names.end(), name) != head.names.end();
}

template <std::size_t kSize>
std::string first_of(const TraceHead& head, const std::array<const char*, kSize>& names) {
  for (const char* name : names) {
    if (has(head, name)) {
      return name;
    }
  }
  return {};
}

}  // namespace

std::optional<FlatFormat> plain(const TraceHead& head, const std::string& file, bool needs_output) {
  FlatFormat format;
  format.name = head.is_json ? "jsonl" : "csv";
  format.about = "plain rows, e.g. arrival_s, input_tokens, output_tokens";
  format.is_json = head.is_json;
  format.input = first_of(head, kInputs);
  format.output = first_of(head, kOutputs);
  if (format.input.empty() || (needs_output && format.output.empty())) {
    return std::nullopt;
  }
  for (const char* base : kTimes) {
    for (const auto& [suffix, unit] : kUnits) {
      if (has(head, std::string(base) + suffix)) {
        format.arrival = std::string(base) + suffix;
        format.arrival_unit = unit;
      }
    }
  }
  const std::string without_unit = first_of(head, kTimes);
  if (format.arrival.empty() && !without_unit.empty()) {
    throw ConfigError(Problem{file, without_unit, "", "a time column whose name tells the unit",
                              fmt::format("name it {}_s, {}_ms, {}_us or {}_ns", without_unit,
                                          without_unit, without_unit, without_unit)});
  }
  format.id = first_of(head, kIds);
  format.session = first_of(head, kSessions);
  format.adapter = first_of(head, kAdapters);
  format.priority = has(head, "priority") ? "priority" : "";
  format.patience = has(head, "cancel_after_s") ? "cancel_after_s" : "";
  return format;
}

}  // namespace oomcast::workloads::formats
