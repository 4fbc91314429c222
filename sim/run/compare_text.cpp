// compare_json() for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/core/units_text.hpp"
#include "sim/run/compare.hpp"

namespace oomcast {
namespace {

std::int64_t count_at(const OrderedJson& json, const char* key) {
  return json.at(key).get<std::int64_t>();
}

std::string signed_bytes(std::int64_t bytes) {
  return bytes == 0 ? "-" : (bytes < 0 ? "-" : "+") + format_bytes(Bytes{std::abs(bytes)});
}

std::string signed_count(const OrderedJson& count) {
  if (count.is_null()) {
    return "not known";
  }
  const auto value = count.get<std::int64_t>();
  return value == 0 ? "-" : (value < 0 ? "-" : "+") + format_count(std::abs(value));
}

std::string head(const char* name, const OrderedJson& side) {
  return fmt::format("{}  {}\n   {} on {}, {} {}, rank {} of {}: {}\n", name,
                     side.at("source").get<std::string>(), side.at("model").get<std::string>(),
                     side.at("gpu").get<std::string>(), side.at("engine").get<std::string>(),
                     side.at("engine_version").get<std::string>(), count_at(side, "rank"),
                     count_at(side, "ranks"), side.at("outcome").get<std::string>());
}

std::string row(const std::string& name, std::int64_t a, std::int64_t b) {
  return a == 0 && b == 0
             ? ""
             : fmt::format("  {:<26}{:>14}{:>14}{:>16}\n", name, format_bytes(Bytes{a}),
                           format_bytes(Bytes{b}), signed_bytes(b - a));
}

std::string table(const OrderedJson& a, const OrderedJson& b, const OrderedJson& difference) {
  std::string out =
      fmt::format("\n  {:<26}{:>14}{:>14}{:>16}\n", "the fullest rank", "A", "B", "B - A");
  for (const auto& [name, bytes] : a.at("classes").items()) {
    out += row(name, bytes.get<std::int64_t>(), count_at(b.at("classes"), name.c_str()));
  }
  out += row("free at ready", count_at(a, "free_bytes"), count_at(b, "free_bytes"));
  out += row("highest of the startup", count_at(a, "device_peak_bytes"),
             count_at(b, "device_peak_bytes"));
  const auto tokens = [](const OrderedJson& side) {
    return side.at("kv_tokens").is_null() ? std::string("none")
                                          : format_count(count_at(side, "kv_tokens"));
  };
  return out + fmt::format("  {:<26}{:>14}{:>14}{:>16}\n", "KV tokens", tokens(a), tokens(b),
                           signed_count(difference.at("kv_tokens")));
}

// Of a replay: what differs in serving. Records of other versions may lack a figure.
std::string serving(const OrderedJson& a, const OrderedJson& b) {
  std::string out;
  const auto number = [](const OrderedJson& totals, const char* key, const char* inner) {
    const auto found = totals.find(key);
    const OrderedJson* value = found == totals.end() ? nullptr : &*found;
    if (value != nullptr && inner[0] != '\0') {
      const auto part = value->is_object() ? value->find(inner) : value->end();
      value = value->is_object() && part != value->end() ? &*part : nullptr;
    }
    return value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
  };
  struct Figure {
    const char* label;
    const char* key;
    const char* inner;
  };
  for (const Figure& figure :
       {Figure{"requests finished", "finished", ""}, Figure{"requests given up", "aborted", ""},
        Figure{"preemptions", "preemptions", ""}, Figure{"steps", "steps", ""},
        Figure{"makespan, s", "makespan_s", ""}, Figure{"first token p99, s", "ttft_s", "p99"},
        Figure{"output token p99, s", "tpot_s", "p99"}}) {
    const double left = number(a, figure.key, figure.inner);
    const double right = number(b, figure.key, figure.inner);
    out += fmt::format("  {:<26}{:>14.6g}{:>14.6g}{:>+16.6g}\n", figure.label, left, right,
                       right - left);
  }
  return "\n" + out;
}

bool changes_nothing(const OrderedJson& figures) {
  const OrderedJson& classes = figures.at("classes");
  return (figures.at("kv_tokens").is_null() || count_at(figures, "kv_tokens") == 0) &&
         count_at(figures, "free_bytes") == 0 && count_at(figures, "device_peak_bytes") == 0 &&
         std::all_of(classes.begin(), classes.end(),
                     [](const OrderedJson& bytes) { return bytes.get<std::int64_t>() == 0; });
}

// The classes that change most, largest first.
std::string moved(const OrderedJson& figures) {
  constexpr std::size_t kShown = 4;
  constexpr std::int64_t kWorthSaying = std::int64_t{1} << 20;
  std::vector<std::pair<std::int64_t, std::string>> classes;
  for (const auto& [name, bytes] : figures.at("classes").items()) {
    if (std::abs(bytes.get<std::int64_t>()) >= kWorthSaying) {
      classes.emplace_back(bytes.get<std::int64_t>(), name);
    }
  }
  std::stable_sort(classes.begin(), classes.end(), [](const auto& left, const auto& right) {
    return std::abs(left.first) > std::abs(right.first);
  });
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, classes.size()); ++i) {
    out += fmt::format("{}{} {}", i == 0 ? "" : ", ", classes[i].second,
                       signed_bytes(classes[i].first));
  }
  return out.empty() ? "less than 1 MiB in any class" : out;
}

std::string names(const OrderedJson& json) {
  std::string out = "\nWhat was given differently\n";
  for (const OrderedJson& change : json.at("changes")) {
    out += "  " + change.at("change").get<std::string>() + "\n";
  }
  return out;
}

std::string shares(const OrderedJson& json) {
  std::string out = fmt::format(
      "\nWhat each change does, one after another (version, card, model, environment and flags by "
      "name)\n  {:>14}{:>14}  {}\n",
      "KV tokens", "if alone", "change");
  std::string idle;
  for (const OrderedJson& change : json.at("changes")) {
    const auto name = change.at("change").get<std::string>();
    const OrderedJson& in_order = change.at("in_order");
    const OrderedJson& alone = change.at("alone");
    if (changes_nothing(in_order) && (alone.is_null() || changes_nothing(alone))) {
      idle += (idle.empty() ? "" : ", ") + name;
      continue;
    }
    out += fmt::format("  {:>14}{:>14}  {}\n  {:>28}  {}\n", signed_count(in_order.at("kv_tokens")),
                       alone.is_null() ? "refused" : signed_count(alone.at("kv_tokens")), name, "",
                       moved(in_order));
    if (change.at("outcome") != "served") {
      out += fmt::format("  {:>28}  up to here it does not fit: {}\n", "",
                         change.at("outcome").get<std::string>());
    }
  }
  if (!json.at("interaction").is_null() && !changes_nothing(json.at("interaction"))) {
    out += fmt::format(
        "  {:>14}{:>14}  interaction: what the changes do together beyond each alone\n"
        "  {:>28}  {}\n",
        signed_count(json.at("interaction").at("kv_tokens")), "", "",
        moved(json.at("interaction")));
  }
  return out + (idle.empty() ? "" : "  no effect on memory: " + idle + "\n");
}

}  // namespace

std::string compare_text(const OrderedJson& json) {
  const OrderedJson& a = json.at("a");
  const OrderedJson& b = json.at("b");
  std::string out = head("A", a) + head("B", b) + table(a, b, json.at("difference"));
  if (a.contains("totals") && b.contains("totals")) {
    out += serving(a.at("totals"), b.at("totals"));
  }
  if (json.at("changes").is_null()) {
    return out;
  }
  if (json.at("changes").empty()) {
    return out + "\nThe launches do not differ.\n";
  }
  return out + (json.at("changes").front().at("outcome").is_null() ? names(json) : shares(json));
}

}  // namespace oomcast
