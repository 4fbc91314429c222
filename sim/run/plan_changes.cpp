#include "sim/run/plan_changes.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>

#include "sim/core/units_text.hpp"
#include "sim/run/compare_side.hpp"

namespace oomcast {
namespace {

ComparedFigures figures_of(const Plan& plan) {
  return compared_side(Json::parse(plan_json(plan).dump()), "plan").figures;
}

OrderedJson count_or_null(const std::optional<std::int64_t>& count) {
  return count ? OrderedJson(*count) : OrderedJson(nullptr);
}

std::string shown_count(const OrderedJson& value, bool bytes) {
  if (value.is_null()) {
    return "none";
  }
  const auto count = value.get<std::int64_t>();
  return bytes ? format_bytes(Bytes{count}) : format_count(count);
}

std::string signed_change(const OrderedJson& pair, bool bytes) {
  if (pair.at(0).is_null() || pair.at(1).is_null()) {
    return "";
  }
  const auto difference = pair.at(1).get<std::int64_t>() - pair.at(0).get<std::int64_t>();
  return (difference < 0 ? "-" : "+") + shown_count(OrderedJson(std::abs(difference)), bytes);
}

std::string changed_row(const std::string& name, const OrderedJson& pair, bool bytes = true) {
  return pair.at(0) == pair.at(1)
             ? ""
             : fmt::format("  {:<22}{:>14}{:>14}{:>14}\n", name, shown_count(pair.at(0), bytes),
                           shown_count(pair.at(1), bytes), signed_change(pair, bytes));
}

}  // namespace

OrderedJson plan_changes_json(const Plan& before, const Plan& after, const std::string& source) {
  const ComparedFigures a = figures_of(before);
  const ComparedFigures b = figures_of(after);
  OrderedJson json;
  json["source"] = source;
  json["classes"] = OrderedJson::object();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    if (a.classes[leaf] != b.classes[leaf]) {
      json["classes"][std::string(kLeafNames[leaf])] = {a.classes[leaf].count(),
                                                        b.classes[leaf].count()};
    }
  }
  json["free_bytes"] = {a.free.count(), b.free.count()};
  json["kv_tokens"] = {count_or_null(a.kv_tokens), count_or_null(b.kv_tokens)};
  return json;
}

std::string plan_changes_text(const OrderedJson& changes) {
  std::string rows;
  for (const auto& [name, pair] : changes.at("classes").items()) {
    rows += changed_row(name, pair);
  }
  rows += changed_row("free at ready", changes.at("free_bytes"));
  rows += changed_row("KV tokens", changes.at("kv_tokens"), false);
  const std::string source = changes.at("source").get<std::string>();
  if (rows.empty()) {
    return fmt::format("{} changes nothing of this plan.\n", source);
  }
  return fmt::format("Changes by {}\n  {:<22}{:>14}{:>14}{:>14}\n", source, "class, fullest rank",
                     "presets", "calibrated", "change") +
         rows;
}

}  // namespace oomcast
