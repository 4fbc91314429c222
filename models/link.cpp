#include "models/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/case_conv.hpp>
#include <cmath>

#include "models/data.hpp"

namespace oomcast::models {
namespace {

constexpr double kMostGb = 1e5;
constexpr double kMostMicros = 1e6;

// The value of an object {"value": …, "source": …}.
double figure(const JsonView& view, std::string_view key, double low, double high) {
  const auto object = view.object(key);
  const auto value = object ? object->number("value") : std::nullopt;
  if (!value || !(*value >= low && *value <= high)) {
    view.complain(key, fmt::format("an object with a value from {} to {}", low, high));
    return low;
  }
  return *value;
}

Nanos micros(double value) { return Nanos{std::llround(value * 1e3)}; }

LinkSpec read_link(const Json& json, const std::string& source) {
  Problems problems;
  const JsonView view(json, source, "", problems);
  LinkSpec link;
  link.name = view.text("name").value_or("");
  const std::string kind = view.text("kind").value_or("");
  link.kind = kind == "nvlink" ? LinkSpec::Kind::kNvlink
              : kind == "pcie" ? LinkSpec::Kind::kPcie
                               : LinkSpec::Kind::kNic;
  if (link.name.empty()) {
    view.complain("name", "the link's name");
  }
  if (link.kind == LinkSpec::Kind::kNic && kind != "nic") {
    view.complain("kind", "nic, nvlink or pcie");
  }
  link.rdma = view.boolean("rdma").value_or(true);
  constexpr double kLeastGb = 1e-3;
  link.bytes_per_second =
      figure(view, "gb_s", link.kind == LinkSpec::Kind::kNvlink ? 0 : kLeastGb, kMostGb) * 1e9;
  link.efficiency = figure(view, "efficiency", 1e-3, 1);
  link.latency = micros(figure(view, "latency_us", 0, kMostMicros));
  link.setup = micros(figure(view, "setup_us", 0, kMostMicros));
  problems.raise_if_any();
  return link;
}

}  // namespace

std::vector<std::string> link_names() {
  std::vector<std::string> names;
  for (const std::string& file : embedded_names("links/")) {
    names.push_back(read_link(embedded_json(file), file).name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

LinkSpec find_link(std::string_view name) {
  const std::string wanted = boost::to_lower_copy(std::string(name));
  std::vector<std::string> known;
  for (const std::string& file : embedded_names("links/")) {
    const Json& json = embedded_json(file);
    LinkSpec link = read_link(json, file);
    std::vector<std::string> names = {link.name};
    if (json.contains("aliases") && json["aliases"].is_array()) {
      for (const Json& alias : json["aliases"]) {
        names.push_back(alias.is_string() ? alias.get<std::string>() : "");
      }
    }
    if (!wanted.empty() && std::find(names.begin(), names.end(), wanted) != names.end()) {
      return link;
    }
    known.insert(known.end(), names.begin(), names.end());
  }
  throw ConfigError(Problem{"command line", "--interconnect", std::string(name),
                            fmt::format("one of: {}", fmt::join(link_names(), ", ")),
                            did_you_mean(name, known)});
}

}  // namespace oomcast::models
