#include "sim/report/record_reader.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/units_text.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast::report {
namespace {

constexpr std::string_view kSchema = "oomcast.record/1";
constexpr std::int64_t kMost = INT64_MAX;
// Sums of a few values stay within 64 bits, and each is exact as a double.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 52;
constexpr double kMostSeconds = 9.2e9;
// More than any deployment has; a longer list is damage.
constexpr std::size_t kMostRanks = 65'536;
constexpr std::size_t kMostTexts = 2'000;
// Enough to see what is wrong; a damaged file could have millions.
constexpr std::size_t kMostProblems = 20;

std::int64_t required(const JsonView& view, std::string_view key, std::int64_t low,
                      std::int64_t high) {
  if (!view.has(key)) {
    view.complain(key, fmt::format("an integer from {} to {}", low, high));
    return low;
  }
  return view.integer(key, low, high).value_or(low);
}

Bytes bytes_of(const JsonView& view, std::string_view key) {
  return Bytes{required(view, key, 0, kMostBytes)};
}

std::string text_of(const JsonView& view, std::string_view key) {
  if (!view.has(key)) {
    view.complain(key, "a string");
  }
  return view.text(key).value_or("");
}

double seconds_of(const JsonView& view, std::string_view key) {
  const double seconds = view.number(key).value_or(0.0);
  if (seconds < 0 || seconds > kMostSeconds) {
    view.complain(key, "seconds from 0 to 9.2e9");
    return 0.0;
  }
  return seconds;
}

// Calls `read` with each object of a list. An absent list is an empty one.
template <typename Read>
void for_each(const JsonView& view, std::string_view key, std::size_t most, const Read& read) {
  const Json* list = view.find(key);
  if (list == nullptr) {
    return;
  }
  if (!list->is_array() || list->size() > most) {
    view.complain(key, fmt::format("a list of at most {} objects", most));
    return;
  }
  for (std::size_t i = 0; i < list->size() && view.problems().found().size() < kMostProblems; ++i) {
    const std::string path =
        fmt::format("{}{}{}[{}]", view.path(), view.path().empty() ? "" : ".", key, i);
    const JsonView item((*list)[i], view.source(), path, view.problems());
    if ((*list)[i].is_object()) {
      read(item);
    }
  }
}

std::vector<std::string> texts_of(const JsonView& view, std::string_view key) {
  std::vector<std::string> texts = view.texts(key).value_or(std::vector<std::string>{});
  if (texts.size() > kMostTexts) {
    view.complain(key, fmt::format("a list of at most {} texts", kMostTexts));
    texts.clear();
  }
  return texts;
}

std::optional<Leaf> leaf_named(std::string_view name) {
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    if (kLeafNames[leaf] == name) {
      return static_cast<Leaf>(leaf);
    }
  }
  return std::nullopt;
}

std::vector<std::string> leaf_names() { return {kLeafNames.begin(), kLeafNames.end()}; }

// Calls `read` with each leaf of an object whose keys are classes.
template <typename Read>
void for_each_leaf(const JsonView& view, std::string_view key, const Read& read) {
  const auto object = view.object(key);
  if (!object) {
    return;
  }
  for (const auto& [name, value] : object->raw().items()) {
    const auto leaf = leaf_named(name);
    if (leaf) {
      read(*object, name, *leaf);
    } else {
      object->complain(name, "a class of memory", did_you_mean(name, leaf_names()));
    }
  }
}

Peak peak_of(const JsonView& view) {
  Peak peak;
  peak.bytes = bytes_of(view, "bytes");
  peak.at =
      SimTime{Nanos{static_cast<std::int64_t>(std::llround(seconds_of(view, "time_s") * 1e9))}};
  peak.during = text_of(view, "during");
  for_each_leaf(view, "live", [&peak](const JsonView& live, std::string_view name, Leaf leaf) {
    peak.live[index_of(leaf)] = bytes_of(live, name);
  });
  return peak;
}

LiveTensor tensor_of(const JsonView& view, std::string_view name_key) {
  return {text_of(view, name_key), text_of(view, "formula"), text_of(view, "class"),
          bytes_of(view, "bytes")};
}

FinishedRank rank_of(const JsonView& view) {
  FinishedRank rank;
  rank.rank = required(view, "rank", 0, kMost);
  rank.alike = required(view, "alike", 1, kMost);
  rank.device_total = Bytes{required(view, "device_total_bytes", 1, kMostBytes)};
  rank.role = view.text("role").value_or("");
  if (const auto peak = view.object("device_peak")) {
    rank.device_peak = peak_of(*peak);
  } else {
    view.complain("device_peak", "a JSON object");
  }
  for_each_leaf(view, "class_peaks",
                [&rank](const JsonView& peaks, std::string_view name, Leaf leaf) {
                  if (const auto peak = peaks.object(name)) {
                    rank.leaf_peaks.emplace_back(leaf, peak_of(*peak));
                  }
                });
  std::sort(rank.leaf_peaks.begin(), rank.leaf_peaks.end(),
            [](const auto& left, const auto& right) { return left.first < right.first; });
  return rank;
}

// What the plan knows of a rank: its startup and the witness of the profile run.
void read_planned_rank(const JsonView& view, FinishedRank& rank) {
  if (rank.role.empty()) {
    rank.role = view.text("role").value_or("");
  }
  for_each(view, "phases", kMostTexts, [&rank](const JsonView& phase) {
    rank.startup.push_back(
        {text_of(phase, "phase"), bytes_of(phase, "device_peak_bytes"), TimelineRow{}});
  });
  if (const auto peak = view.object("profile_peak")) {
    rank.profile_moment = peak->text("moment").value_or("");
    for_each(*peak, "tensors", kMostTexts, [&rank](const JsonView& tensor) {
      rank.profile_peak.push_back(tensor_of(tensor, "name"));
    });
  }
}

void read_ranks(const JsonView& record, FinishedRun& run) {
  for_each(record, "ranks", kMostRanks, [&](const JsonView& view) {
    run.ranks.push_back(rank_of(view));
    if (const auto allocator = view.object("allocator")) {
      if (const auto failure = allocator->object("out_of_memory")) {
        for_each(*failure, "live", kMostTexts, [&run](const JsonView& tensor) {
          run.outcome.alive.push_back(tensor_of(tensor, "tensor"));
        });
      }
    }
  });
  if (run.ranks.empty()) {
    record.complain("ranks", "a list of at least one rank");
  }
}

// The text of a value that stands in a table; lists and objects as JSON.
std::string shown(const Json& value) {
  constexpr std::size_t kMostLetters = 400;
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMostLetters) {
    std::size_t end = kMostLetters;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      --end;  // not within a letter of several bytes
    }
    text = text.substr(0, end) + " …";
  }
  return text;
}

Settings settings_of(const JsonView& view, std::string_view key) {
  Settings settings;
  const auto object = view.object(key);
  if (object) {
    for (const auto& [name, value] : object->raw().items()) {
      if (!value.is_null() && settings.size() < kMostTexts) {
        settings.emplace_back(shown(Json(name)), shown(value));
      }
    }
  }
  return settings;
}

// Flags that the launch line gives; the defaults are in config.resolved.json.
Settings given_flags(const JsonView& launch) {
  Settings settings;
  const auto flags = launch.object("flags");
  if (!flags) {
    return settings;
  }
  for (const auto& [name, value] : flags->raw().items()) {
    const JsonView flag(value, flags->source(), flags->path() + "." + name, flags->problems());
    if (flag.text("origin").value_or("") == "given" && settings.size() < kMostTexts) {
      const Json* of = flag.find("value");
      settings.emplace_back(shown(Json(name)), of == nullptr ? "" : shown(*of));
    }
  }
  for (auto& [name, value] : settings_of(launch, "environment")) {
    settings.emplace_back(std::move(name), std::move(value));
  }
  return settings;
}

void read_plan(const JsonView& plan, FinishedRun& run) {
  run.model = plan.text("model").value_or("");
  run.gpu = plan.text("gpu").value_or("");
  run.engine = plan.text("engine").value_or("");
  run.engine_version = plan.text("engine_version").value_or("");
  if (const auto world = plan.object("world")) {
    run.tp = required(*world, "tp", 1, kMost);
    run.pp = required(*world, "pp", 1, kMost);
    run.dp = required(*world, "dp", 1, kMost);
    run.ep = required(*world, "ep", 1, kMost);
  }
  run.engine_report = settings_of(plan, "engine_report");
  run.assumptions = texts_of(plan, "assumptions");
  run.warnings = texts_of(plan, "warnings");
  run.notes = texts_of(plan, "notes");
  // Ranks of further data-parallel replicas start as those of the first; a cluster has none, and
  // its plan numbers the ranks of all groups through.
  const Json* listed = plan.find("ranks");
  const auto planned = run.dp == 1 || listed == nullptr || !listed->is_array() || listed->empty()
                           ? kMost
                           : static_cast<std::int64_t>(listed->size());
  for_each(plan, "ranks", kMostRanks, [&run, planned](const JsonView& view) {
    const std::int64_t number = required(view, "rank", 0, kMost);
    for (FinishedRank& rank : run.ranks) {
      if (rank.rank % planned == number && rank.startup.empty()) {
        read_planned_rank(view, rank);
      }
    }
  });
}

Percentiles percentiles_of(const JsonView& totals, std::string_view key) {
  Percentiles out;
  if (const auto view = totals.object(key)) {
    out = {seconds_of(*view, "mean"), seconds_of(*view, "p50"), seconds_of(*view, "p90"),
           seconds_of(*view, "p99"), seconds_of(*view, "max")};
  }
  return out;
}

FinishedTotals totals_of(const JsonView& view) {
  FinishedTotals totals;
  const auto count = [&view](std::string_view key) { return required(view, key, 0, kMostBytes); };
  totals.requests = count("requests");
  totals.finished = count("finished");
  totals.rejected = count("rejected");
  // Records of before clients could give up have none.
  totals.aborted = view.find("aborted") != nullptr ? count("aborted") : 0;
  totals.unfinished = count("unfinished");
  totals.steps = count("steps");
  totals.preemptions = count("preemptions");
  totals.prompt_tokens = count("prompt_tokens");
  totals.output_tokens = count("output_tokens");
  totals.cached_tokens = count("cached_tokens");
  totals.makespan_s = seconds_of(view, "makespan_s");
  totals.kv_pool = bytes_of(view, "kv_pool_bytes");
  totals.kv_peak = bytes_of(view, "kv_peak_bytes");
  totals.kv_peak_s = seconds_of(view, "kv_peak_time_s");
  totals.ttft = percentiles_of(view, "ttft_s");
  totals.tpot = percentiles_of(view, "tpot_s");
  totals.latency = percentiles_of(view, "latency_s");
  return totals;
}

void read_outcome(const JsonView& view, FinishedOutcome& outcome) {
  if (!view.has("fits")) {
    view.complain("fits", "true or false");
  }
  outcome.fits = view.boolean("fits").value_or(false);
  outcome.kind = text_of(view, "kind");
  outcome.phase = view.text("phase").value_or("");
  outcome.rank = view.integer("rank", 0, kMost);
  outcome.leaf = view.text("class").value_or("");
  outcome.short_by = Bytes{view.integer("short_by_bytes", 0, kMostBytes).value_or(0)};
  outcome.message = view.text("message").value_or("");
  for_each(view, "fixes", kMostTexts, [&outcome](const JsonView& fix) {
    outcome.fixes.push_back({text_of(fix, "change"), bytes_of(fix, "frees_bytes")});
  });
}

// "azure_conv_500.csv (azure): 500 requests", or "... 480 of 500 requests".
std::vector<std::string> workload_lines(const JsonView& record) {
  std::vector<std::string> lines;
  for_each(record, "workload", kMostTexts, [&lines](const JsonView& view) {
    const std::string source = text_of(view, "source");
    const std::string format = view.text("format").value_or("");
    const std::int64_t kept = required(view, "kept", 0, kMost);
    const std::int64_t read = required(view, "read", 0, kMost);
    lines.push_back(
        fmt::format("{}{}: {}{} requests", source,
                    format.empty() || source.starts_with(format) ? "" : " (" + format + ")",
                    format_count(kept), kept == read ? "" : " of " + format_count(read)));
  });
  return lines;
}

}  // namespace

FinishedRun read_record(const Json& record, const std::string& source, Problems& problems) {
  FinishedRun run;
  const JsonView view(record, source, "", problems);
  const std::string schema = view.text("schema").value_or("");
  if (schema != kSchema) {
    view.complain("schema", std::string(kSchema), "record.json of a replay");
    return run;
  }
  read_ranks(view, run);
  if (const auto plan = view.object("plan")) {
    read_plan(*plan, run);
  }
  if (const auto config = view.object("config")) {
    if (const auto launch = config->object("launch")) {
      run.given = given_flags(*launch);
    }
    run.resolved = settings_of(*config, "resolved");
  }
  for (const std::string_view key : {"totals", "outcome"}) {
    if (!view.has(key)) {
      view.complain(key, "a JSON object");
    }
  }
  if (const auto totals = view.object("totals")) {
    run.totals = totals_of(*totals);
  }
  if (const auto outcome = view.object("outcome")) {
    read_outcome(*outcome, run.outcome);
  }
  run.workload = workload_lines(view);
  run.digest = view.text("digest").value_or("");
  if (const auto meta = view.object("meta")) {
    run.program_version = meta->text("oomcast_version").value_or("");
    run.date = meta->text("date").value_or("");
  }
  return run;
}

}  // namespace oomcast::report
