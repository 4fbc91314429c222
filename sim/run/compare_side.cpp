#include "sim/run/compare_side.hpp"

#include <algorithm>
#include <filesystem>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

template <typename Combine>
ComparedFigures combined(const ComparedFigures& left, const ComparedFigures& right,
                         Combine combine) {
  ComparedFigures out;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    out.classes[leaf] = combine(left.classes[leaf], right.classes[leaf]);
  }
  out.free = combine(left.free, right.free);
  out.device_peak = combine(left.device_peak, right.device_peak);
  if (left.kv_tokens && right.kv_tokens) {
    out.kv_tokens = combine(Tokens{*left.kv_tokens}, Tokens{*right.kv_tokens}).count();
  }
  return out;
}

// The sum of an object of bytes by class, each also put into `leaves`.
Bytes read_leaves(const JsonView& rank, const char* key, LeafBytes& leaves) {
  Bytes sum;
  const auto object = rank.object(key);
  if (!object) {
    rank.complain(key, "bytes by class");
    return sum;
  }
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    leaves[leaf] = Bytes{object->integer(kLeafNames[leaf], 0, kMostBytes).value_or(0)};
    sum += leaves[leaf];
  }
  return sum;
}

// Elements of an array of objects; anything else is a complaint.
std::vector<JsonView> objects(const JsonView& view, const char* key) {
  std::vector<JsonView> out;
  const Json* array = view.find(key);
  if (array == nullptr || !array->is_array()) {
    view.complain(key, "a list");
    return out;
  }
  for (std::size_t i = 0; i < array->size(); ++i) {
    const std::string path =
        (view.path().empty() ? "" : view.path() + ".") + key + "." + std::to_string(i);
    out.emplace_back((*array)[i], view.source(), path, view.problems());
  }
  return out;
}

void take_fullest_rank(const JsonView& plan, ComparedSide& side) {
  const std::vector<JsonView> ranks = objects(plan, "ranks");
  side.ranks = static_cast<std::int64_t>(ranks.size());
  bool first = true;
  for (const JsonView& rank : ranks) {
    if (!rank.raw().is_object()) {
      continue;  // complained about by the view
    }
    LeafBytes at_ready{};
    const Bytes total{rank.integer("total_bytes", 0, kMostBytes).value_or(0)};
    const Bytes free = total - read_leaves(rank, "at_ready", at_ready);
    if (!first && free >= side.figures.free) {
      continue;
    }
    first = false;
    side.rank = rank.integer("rank", 0, INT32_MAX).value_or(0);
    side.total = total;
    side.figures.free = free;
    read_leaves(rank, "classes", side.figures.classes);
    side.figures.device_peak = Bytes{0};
    for (const JsonView& phase : objects(rank, "phases")) {
      side.figures.device_peak =
          std::max(side.figures.device_peak,
                   Bytes{phase.integer("device_peak_bytes", 0, kMostBytes).value_or(0)});
    }
  }
}

// The file to read of a run's folder.
std::string file_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return path;
  }
  for (const char* name : {"record.json", "plan.json"}) {
    const fs::path inside = fs::path(path) / name;
    if (fs::exists(inside, error)) {
      return inside.string();
    }
  }
  throw ConfigError(Problem{path, "", "", "a run's folder with record.json or plan.json", ""});
}

// The launch of a config.resolved.json; nullopt where it holds none.
std::optional<launch::Launch> launch_of(const Json& config, const std::string& source) {
  return config.is_object() && config.contains("launch")
             ? std::optional(launch::launch_from_json(config.at("launch"), source))
             : std::nullopt;
}

std::string text_at(const Json& json, const char* key, const std::string& otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

}  // namespace

ComparedFigures operator-(const ComparedFigures& left, const ComparedFigures& right) {
  return combined(left, right, [](auto a, auto b) { return a - b; });
}

ComparedFigures operator+(const ComparedFigures& left, const ComparedFigures& right) {
  return combined(left, right, [](auto a, auto b) { return a + b; });
}

ComparedSide compared_side(const Json& plan, const std::string& source) {
  Problems problems;
  const JsonView view(plan, source, "", problems);
  problems.raise_if_any();
  if (view.text("schema").value_or("") != "oomcast.plan/1") {
    view.complain("schema", "oomcast.plan/1");
    problems.raise_if_any();
  }
  ComparedSide side;
  side.source = source;
  side.engine = view.text("engine").value_or("");
  side.engine_version = view.text("engine_version").value_or("");
  side.model = view.text("model").value_or("");
  side.gpu = view.text("gpu").value_or("");
  take_fullest_rank(view, side);
  if (const auto report = view.object("engine_report")) {
    side.figures.kv_tokens = report->integer("kv_tokens", 0, INT64_MAX / 2);
  }
  if (const auto outcome = view.object("outcome")) {
    side.kind = outcome->text("kind").value_or("");
  }
  if (side.kind.empty()) {
    view.complain("outcome.kind", "the kind of the outcome");
  }
  problems.raise_if_any();
  return side;
}

ComparedSide read_compared_side(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw ConfigError(Problem{"command line", "", path,
                              "a launch line, @file, run folder, record.json or plan.json", ""});
  }
  const std::string file = file_of(path);
  const Json json = read_json_file(file);
  const std::string schema = json.is_object() ? text_at(json, "schema", "") : "";
  if (schema == "oomcast.plan/1") {
    ComparedSide side = compared_side(json, file);
    const auto config = std::filesystem::path(file).parent_path() / "config.resolved.json";
    if (std::filesystem::exists(config, ignored)) {
      side.launch = launch_of(read_json_file(config.string()), config.string());
    }
    return side;
  }
  if (schema != "oomcast.record/1" || !json.contains("plan")) {
    throw ConfigError(Problem{file, "schema", schema, "oomcast.record/1 or oomcast.plan/1", ""});
  }
  ComparedSide side = compared_side(json.at("plan"), file);
  if (json.contains("config")) {
    side.launch = launch_of(json.at("config"), file);
  }
  if (json.contains("totals") && json.at("totals").is_object()) {
    side.totals = json.at("totals");
  }
  if (json.contains("outcome") && json.at("outcome").is_object()) {
    // The run may have died after a startup that was served.
    side.kind = text_at(json.at("outcome"), "kind", side.kind);
  }
  return side;
}

}  // namespace oomcast
