#include "sim/fit/probe_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "sim/fit/guarded_file.hpp"

namespace oomcast::fit {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMostSetting = std::int64_t{1} << 50;
constexpr double kMostValue = 1e18;
constexpr std::size_t kMostSamples = 1'000'000;

constexpr std::array<std::string_view, 5> kStatusNames = {"done", "out_of_memory", "unsupported",
                                                          "failed", "skipped"};

// Names of probes, settings and values go into tables: short plain words.
bool is_name(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char letter) {
           return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') ||
                  letter == '_';
         });
}

std::string required_text(const JsonView& view, const char* key, const char* expected) {
  const auto text = view.text(key);
  if (!text || text->empty()) {
    view.complain(key, expected);
  }
  return text.value_or("");
}

Bytes bytes_of(const JsonView& view, const char* key) {
  const auto count = view.integer(key, 0, kMostBytes);
  if (!view.has(key)) {
    view.complain(key, "bytes");
  }
  return Bytes{count.value_or(0)};
}

std::int64_t count_of(const JsonView& view, const char* key, std::int64_t most) {
  return view.integer(key, 0, most).value_or(0);
}

// "2026-11-30T07:35:00Z": digits where 'd' stands.
bool is_date(std::string_view text) {
  constexpr std::string_view kPattern = "dddd-dd-ddTdd:dd:ddZ";
  return std::equal(text.begin(), text.end(), kPattern.begin(), kPattern.end(),
                    [](char letter, char pattern) {
                      return pattern == 'd' ? letter >= '0' && letter <= '9' : letter == pattern;
                    });
}

ProbedCard read_card(const JsonView& card) {
  known_keys(card,
             {"gpu", "sm_count", "threads_per_sm", "compute_capability", "total_bytes",
              "free_bytes", "mig", "other_processes"},
             "a probed card");
  constexpr std::int64_t kMost = 1 << 20;
  return {.gpu = required_text(card, "gpu", "the card's name, as nvidia-smi prints it"),
          .sm_count = count_of(card, "sm_count", kMost),
          .threads_per_sm = count_of(card, "threads_per_sm", kMost),
          .compute_capability = required_text(card, "compute_capability", "e.g. \"9.0\""),
          .total = bytes_of(card, "total_bytes"),
          .free = bytes_of(card, "free_bytes"),
          .mig = card.boolean("mig").value_or(false),
          .other_processes = count_of(card, "other_processes", kMost)};
}

std::map<std::string, std::int64_t> read_counts(const JsonView& view) {
  std::map<std::string, std::int64_t> out;
  for (const auto& [key, value] : view.raw().items()) {
    const auto count = view.integer(key, 0, kMostSetting);
    if (!is_name(key) || !count) {
      view.complain(key, "a name of small letters with a whole number");
    } else {
      out[key] = *count;
    }
  }
  return out;
}

std::map<std::string, double> read_values(const JsonView& view) {
  std::map<std::string, double> out;
  for (const auto& [key, value] : view.raw().items()) {
    const auto number = view.number(key);
    if (!is_name(key) || !number || !(std::abs(*number) <= kMostValue)) {
      view.complain(key, "a name of small letters with a number");
    } else {
      out[key] = *number;
    }
  }
  return out;
}

SampleStatus read_status(const JsonView& view) {
  const auto name = view.text("status").value_or("");
  const auto at = std::find(kStatusNames.begin(), kStatusNames.end(), name);
  if (at == kStatusNames.end()) {
    view.complain("status", fmt::format("{}", fmt::join(kStatusNames, ", ")));
    return SampleStatus::kFailed;
  }
  return static_cast<SampleStatus>(at - kStatusNames.begin());
}

ProbeSample read_sample(const JsonView& view) {
  known_keys(view,
             {"probe", "settings", "repeat", "status", "note", "values", "free_before",
              "free_after", "disturbed"},
             "a sample");
  ProbeSample out;
  out.probe = view.text("probe").value_or("");
  if (!is_name(out.probe)) {
    view.complain("probe", "the name of a probe");
  }
  if (const auto settings = view.object("settings")) {
    out.settings = read_counts(*settings);
  }
  out.repeat = count_of(view, "repeat", kMostSetting);
  out.status = read_status(view);
  out.note = view.text("note").value_or("");
  if (const auto values = view.object("values")) {
    out.values = read_values(*values);
  } else if (out.status == SampleStatus::kDone) {
    view.complain("values", "what was measured");
  }
  out.free_before = bytes_of(view, "free_before");
  out.free_after = bytes_of(view, "free_after");
  out.disturbed = view.boolean("disturbed").value_or(false);
  return out;
}

void read_samples(const JsonView& view, ProbeSamples& out) {
  const Json* rows = view.find("samples");
  if (rows == nullptr || !rows->is_array() || rows->size() > kMostSamples) {
    view.complain("samples", fmt::format("an array of at most {} samples", kMostSamples));
    return;
  }
  // One file can be wrong in a million places: the first few say enough.
  constexpr std::size_t kEnough = 20;
  for (std::size_t i = 0; i < rows->size() && view.problems().found().size() < kEnough; ++i) {
    const JsonView row((*rows)[i], view.source(), fmt::format("samples[{}]", i), view.problems());
    if (row.raw().is_object()) {
      out.samples.push_back(read_sample(row));
    }
  }
}

OrderedJson sample_json(const ProbeSample& sample) {
  OrderedJson json;
  json["probe"] = sample.probe;
  json["settings"] = OrderedJson::object();
  for (const auto& [name, value] : sample.settings) {
    json["settings"][name] = value;
  }
  json["repeat"] = sample.repeat;
  json["status"] = to_string(sample.status);
  if (!sample.note.empty()) {
    json["note"] = sample.note;
  }
  json["values"] = OrderedJson::object();
  for (const auto& [name, value] : sample.values) {
    json["values"][name] = value;
  }
  json["free_before"] = sample.free_before.count();
  json["free_after"] = sample.free_after.count();
  json["disturbed"] = sample.disturbed;
  return json;
}

}  // namespace

std::string_view to_string(SampleStatus status) {
  return kStatusNames[static_cast<std::size_t>(status)];
}

std::string label_of(const ProbeSample& sample) {
  std::string out = sample.probe;
  for (const auto& [name, value] : sample.settings) {
    out += fmt::format(" {}={}", name, value);
  }
  return out + fmt::format(", repeat {}", sample.repeat);
}

ProbeSamples read_probe_samples(const std::string& path) {
  return parse_probe_samples(read_text_file(path), path);
}

ProbeSamples parse_probe_samples(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  Problems problems;
  const JsonView view(json, source, "", problems);
  problems.raise_if_any();
  known_keys(view,
             {"schema", "origin", "about", "card", "driver", "cuda", "date", "probes", "left_out",
              "samples", "checksum"},
             "recorded samples");
  if (view.text("schema").value_or("") != "oomcast.probe_samples/1") {
    view.complain("schema", "\"oomcast.probe_samples/1\"");
  }
  ProbeSamples out;
  out.source = source;
  const std::string origin = view.text("origin").value_or("");
  if (origin != "measured" && origin != "synthetic") {
    view.complain("origin", "measured or synthetic");
  }
  out.synthetic = origin == "synthetic";
  out.about = view.text("about").value_or("");
  if (const auto card = view.object("card")) {
    out.card = read_card(*card);
  } else {
    view.complain("card", "the card it was measured on");
  }
  out.driver = required_text(view, "driver", "the driver's version");
  out.cuda = required_text(view, "cuda", "the CUDA runtime's version");
  out.date = view.text("date").value_or("");
  if (!is_date(out.date)) {
    view.complain("date", "a time like 2026-11-30T07:35:00Z");
  }
  if (const auto versions = view.object("probes")) {
    out.versions = read_counts(*versions);
  }
  out.left_out = view.texts("left_out").value_or(std::vector<std::string>{});
  read_samples(view, out);
  check_checksum(view);
  problems.raise_if_any();
  return out;
}

OrderedJson probe_samples_json(const ProbeSamples& samples) {
  OrderedJson json;
  json["schema"] = "oomcast.probe_samples/1";
  json["origin"] = samples.synthetic ? "synthetic" : "measured";
  json["about"] = samples.about;
  json["card"] = {{"gpu", samples.card.gpu},
                  {"sm_count", samples.card.sm_count},
                  {"threads_per_sm", samples.card.threads_per_sm},
                  {"compute_capability", samples.card.compute_capability},
                  {"total_bytes", samples.card.total.count()},
                  {"free_bytes", samples.card.free.count()},
                  {"mig", samples.card.mig},
                  {"other_processes", samples.card.other_processes}};
  json["driver"] = samples.driver;
  json["cuda"] = samples.cuda;
  json["date"] = samples.date;
  json["probes"] = OrderedJson::object();
  for (const auto& [name, version] : samples.versions) {
    json["probes"][name] = version;
  }
  json["left_out"] = samples.left_out;
  json["samples"] = OrderedJson::array();
  for (const ProbeSample& sample : samples.samples) {
    json["samples"].push_back(sample_json(sample));
  }
  json["checksum"] = file_checksum(Json::parse(json.dump()));
  return json;
}

}  // namespace oomcast::fit
