// explain_json() for a terminal.
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>

#include "sim/core/units_text.hpp"
#include "sim/run/explain.hpp"

namespace oomcast {
namespace {

std::string words(const OrderedJson& value, const char* otherwise) {
  return value.is_string() && !value.get_ref<const std::string&>().empty()
             ? value.get<std::string>()
             : otherwise;
}

std::string identified(const OrderedJson& what) {
  return what.at("value").is_null() ? "not known"
                                    : fmt::format("{} ({})", what.at("value").get<std::string>(),
                                                  what.at("from").get<std::string>());
}

std::string head(const OrderedJson& engine) {
  std::string out = fmt::format(
      "{}{}, lines {} to {}\n", words(engine.at("engine"), "no engine named"),
      words(engine.at("stream"), "").empty() ? "" : " in " + engine.at("stream").get<std::string>(),
      engine.at("first_line").get<std::int64_t>(), engine.at("last_line").get<std::int64_t>());
  for (const char* key : {"engine_version", "model", "gpu", "launch"}) {
    std::string label = key == std::string_view("engine_version") ? "version" : key;
    out += fmt::format("  {:<8} {}\n", label, identified(engine.at(key)));
  }
  return out;
}

std::string gib_cell(const OrderedJson& value) {
  return value.is_number() ? fmt::format("{:>12.2f}", value.get<double>())
                           : fmt::format("{:>12}", "-");
}

std::string waterfall_line(const OrderedJson& row) {
  return fmt::format("  {:<50}{}{}{}\n", row.at("name").get<std::string>(),
                     gib_cell(row.at("logged_gib")), gib_cell(row.at("predicted_gib")),
                     gib_cell(row.at("difference_gib")));
}

std::string waterfall(const OrderedJson& engine) {
  const OrderedJson& flow = engine.at("waterfall");
  if (flow.is_null()) {
    return "";
  }
  std::string out = fmt::format("\n  {:<50}{:>12}{:>12}{:>12}\n",
                                "GiB, rank " + words(engine.at("deciding_rank"), "-"), "logged",
                                "predicted", "difference");
  for (const OrderedJson& row : flow.at("rows")) {
    out += waterfall_line(row);
  }
  out += waterfall_line(flow.at("left")) + waterfall_line(flow.at("pool"));
  if (!flow.at("unexplained_gib").is_null()) {
    const double rest = flow.at("unexplained_gib").get<double>();
    const double rounding = flow.at("rounding_gib").get<double>();
    out += fmt::format("  {:<50}{:>12.2f}  {}\n", "unexplained", rest,
                       std::abs(rest) <= rounding + 1e-6 ? "within the rounding of the log" : "");
    if (!flow.at("filled").empty()) {
      out += fmt::format("  not logged, predicted instead: {}\n",
                         fmt::join(flow.at("filled").get<std::vector<std::string>>(), ", "));
    }
  }
  return out;
}

std::string number(const OrderedJson& value) {
  if (value.is_null()) {
    return "-";
  }
  return value.is_number_integer() ? format_count(value.get<std::int64_t>())
                                   : fmt::format("{:.2f}", value.get<double>());
}

// What the waterfall does not show.
std::string other_figures(const OrderedJson& engine) {
  constexpr std::array<std::pair<const char*, const char*>, 12> kShown = {
      {{"cudagraph_gib", "CUDA graphs took, GiB"},
       {"cudagraph_estimate_gib", "CUDA graphs estimated, GiB"},
       {"avail_after_load_gib", "free after loading, GiB"},
       {"avail_after_pool_gib", "free after the pools, GiB"},
       {"avail_mem_after_gib", "free when ready, GiB"},
       {"kv_needed_gib", "one full request needs, GiB"},
       {"kv_tokens", "KV cache tokens"},
       {"kv_blocks", "KV cache blocks"},
       {"max_concurrency", "full requests at once"},
       {"est_max_model_len", "longest that fits, tokens"},
       {"max_running_requests", "requests at once"},
       {"kv_usage", "highest share of the cache in use"}}};
  std::string out;
  const OrderedJson& predicted = engine.at("predicted");
  for (const auto& [key, label] : kShown) {
    const OrderedJson& logged = engine.at("logged");
    const bool is_logged = logged.contains(key);
    const bool is_predicted = predicted.is_object() && predicted.contains(key);
    if (is_logged || is_predicted) {
      out += fmt::format("  {:<50}{:>12}{:>12}\n", label, is_logged ? number(logged.at(key)) : "-",
                         is_predicted ? number(predicted.at(key)) : "-");
    }
  }
  return out.empty() ? ""
                     : fmt::format("\n  {:<50}{:>12}{:>12}\n", "", "logged", "predicted") + out;
}

std::string oom_figures(const OrderedJson& oom) {
  constexpr std::array<std::pair<const char*, const char*>, 9> kShown = {
      {{"total_gib", "card"},
       {"free_gib", "free"},
       {"process_gib", "this process"},
       {"other_processes_gib", "other processes"},
       {"allocated_gib", "tensors of PyTorch"},
       {"private_pools_gib", "  of these in graphs' pools"},
       {"reserved_unallocated_gib", "reserved, in no tensor"},
       {"outside_torch_gib", "outside PyTorch"},
       {"allowed_gib", "allowed to this process"}}};
  std::string out;
  for (const auto& [key, label] : kShown) {
    if (!oom.at(key).is_null()) {
      out += fmt::format("    {:<32}{:>9.2f} GiB\n", label, oom.at(key).get<double>());
    }
  }
  return out;
}

std::string outcome(const OrderedJson& engine) {
  const OrderedJson& what = engine.at("outcome");
  if (what.at("fits").get<bool>()) {
    return what.at("kind").is_null()
               ? "\n  The log ends before the server is ready, without an error.\n"
               : "\n  It serves.\n";
  }
  std::string out = fmt::format(
      "\n  {} in phase {} (line {}{}){}{}\n  {}\n", what.at("kind").get<std::string>(),
      what.at("phase").get<std::string>(), what.at("line").get<std::int64_t>(),
      words(what.at("rank"), "").empty() ? "" : ", rank " + what.at("rank").get<std::string>(),
      what.at("class").is_null() ? "" : ", " + what.at("class").get<std::string>(),
      what.at("short_by_gib").is_null()
          ? ""
          : fmt::format(", short by {:.2f} GiB", what.at("short_by_gib").get<double>()),
      what.at("message").get<std::string>());
  if (!words(what.at("reason"), "").empty()) {
    out += fmt::format("  {}\n", what.at("reason").get<std::string>());
  }
  if (!what.at("oom").is_null()) {
    out += oom_figures(what.at("oom"));
  }
  if (what.at("fixes").empty()) {
    return out + (engine.at("predicted").is_null()
                      ? "  Changes are found by simulating them, which needs a prediction.\n"
                      : "  No single change of the usual knobs was found.\n");
  }
  out += "  Changes (each simulated):\n";
  for (const OrderedJson& fix : what.at("fixes")) {
    const double gain = fix.at("frees_gib").get<double>();
    out += fmt::format("    {:<40} {}\n", fix.at("change").get<std::string>(),
                       gain > 0 ? fmt::format("gains {:.2f} GiB", gain) : "needs less");
  }
  return out;
}

std::string notes(const OrderedJson& list) {
  std::string out;
  for (const OrderedJson& note : list) {
    out += "  note: " + note.get<std::string>() + "\n";
  }
  return out.empty() ? out : "\n" + out;
}

}  // namespace

std::string explain_text(const OrderedJson& explained) {
  std::string out = fmt::format("{}, {} lines\n", explained.at("log").get<std::string>(),
                                format_count(explained.at("lines").get<std::int64_t>()));
  out += notes(explained.at("notes"));
  for (const OrderedJson& engine : explained.at("engines")) {
    out += "\n" + head(engine) + waterfall(engine) + other_figures(engine);
    if (!engine.at("not_predicted").is_null()) {
      out += fmt::format("\n  not predicted: {}\n", engine.at("not_predicted").get<std::string>());
    }
    out += outcome(engine) + notes(engine.at("notes"));
  }
  return out;
}

}  // namespace oomcast
