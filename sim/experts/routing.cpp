#include "sim/experts/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/core/random.hpp"

namespace oomcast::experts {
namespace {

constexpr std::string_view kForms =
    "uniform, zipf:SKEW[,burst=FACTOR][,windows=N][,seed=N] or file:PATH";
constexpr double kMostSkew = 8;
constexpr double kMostBurst = 1000;
constexpr int kMostWindows = 1024;
constexpr std::size_t kMostLayers = 4096;
constexpr std::size_t kMostExperts = 1 << 16;
constexpr double kMostCount = 1e15;
// The share of experts that a burst is about.
constexpr std::int64_t kBurstOneIn = 16;

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

class RoutingReader {
 public:
  explicit RoutingReader(const std::string& text) : text_(text) {}

  Routing read() {
    if (text_ == "uniform") {
      return out_;
    }
    if (text_.rfind("file:", 0) == 0) {
      const std::string path = text_.substr(5);
      return routing_of_table(read_json_file(path), path);
    }
    if (text_.rfind("zipf:", 0) == 0) {
      out_.kind = Routing::Kind::kZipf;
      read_zipf(std::string_view(text_).substr(5));
    } else {
      complain(text_, std::string{kForms});
    }
    problems_.raise_if_any();
    return out_;
  }

 private:
  void complain(std::string value, std::string expected) {
    problems_.add({"command line", "expert routing", std::move(value), std::move(expected), ""});
  }

  void read_zipf(std::string_view rest) {
    bool first = true;
    while (first || !rest.empty()) {
      const auto comma = rest.find(',');
      const std::string_view item = rest.substr(0, comma);
      rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
      first ? read_skew(item) : read_option(item);
      first = false;
    }
  }

  void read_skew(std::string_view item) {
    const auto skew = number<double>(item);
    if (!skew || !(*skew >= 0 && *skew <= kMostSkew)) {
      complain(std::string{item}, fmt::format("a skew of 0 (uniform) to {}", kMostSkew));
      return;
    }
    out_.skew = *skew;
  }

  void read_option(std::string_view item) {
    const auto equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    if (name == "burst") {
      const auto burst = number<double>(value);
      burst&&* burst >= 1 && *burst <= kMostBurst
          ? void(out_.burst = *burst)
          : complain(std::string{item}, fmt::format("burst=1 to {}", kMostBurst));
    } else if (name == "windows") {
      const auto windows = number<int>(value);
      windows&&* windows >= 1 && *windows <= kMostWindows
          ? void(out_.windows = *windows)
          : complain(std::string{item}, fmt::format("windows=1 to {}", kMostWindows));
    } else if (name == "seed") {
      const auto seed = number<std::uint64_t>(value);
      seed ? void(out_.seed = *seed) : complain(std::string{item}, "seed=<whole number>");
    } else {
      complain(std::string{item}, std::string{kForms});
    }
  }

  const std::string& text_;
  Routing out_;
  Problems problems_;
};

std::optional<std::vector<double>> counts_of(const Json& row) {
  const bool usable =
      row.is_array() && !row.empty() && row.size() <= kMostExperts &&
      std::all_of(row.begin(), row.end(), [](const Json& count) {
        return count.is_number() && count.get<double>() >= 0 && count.get<double>() <= kMostCount;
      });
  if (!usable) {
    return std::nullopt;
  }
  auto counts = row.get<std::vector<double>>();
  return std::accumulate(counts.begin(), counts.end(), 0.0) > 0 ? std::optional(std::move(counts))
                                                                : std::nullopt;
}

std::vector<double> zipf_weights(const Routing& routing, int layer, int window,
                                 std::int64_t experts) {
  std::vector<std::size_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), std::size_t{0});
  RandomStream stream =
      random_stream(routing.seed, fmt::format("expert popularity {} {}", layer, window));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(
        order[i - 1],
        order[static_cast<std::size_t>(uniform_int(stream, 0, static_cast<std::int64_t>(i) - 1))]);
  }
  const auto popular = static_cast<std::size_t>(std::max<std::int64_t>(1, experts / kBurstOneIn));
  std::vector<double> weights(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double burst = i < popular ? routing.burst : 1.0;
    weights[order[i]] = burst * std::pow(static_cast<double>(i + 1), -routing.skew);
  }
  return weights;
}

const std::vector<double>& table_row(const Routing& routing, int layer, std::int64_t experts) {
  const std::size_t row = routing.table.size() == 1 ? 0 : static_cast<std::size_t>(layer);
  if (row >= routing.table.size() ||
      routing.table[row].size() != static_cast<std::size_t>(experts)) {
    throw ConfigError(Problem{
        "command line", "expert routing",
        fmt::format("{} rows of {} counts", routing.table.size(), routing.table.front().size()),
        fmt::format("a row for each layer of experts, this one is {}, with "
                    "{} counts",
                    layer, experts),
        ""});
  }
  return routing.table[row];
}

// min(1, scale x weight) summing to `picks`: experts that reach 1 are fixed there and the rest
// share what is left.
std::vector<double> capped(std::vector<double> weights, std::int64_t picks) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return weights[left] > weights[right] || (weights[left] == weights[right] && left < right);
  });
  // Summed from the smallest on, so that the last one's part is exact.
  std::vector<double> left(order.size());
  double sum = 0;
  for (std::size_t i = order.size(); i > 0; --i) {
    sum += weights[order[i - 1]];
    left[i - 1] = sum;
  }
  auto open = static_cast<double>(picks);
  for (std::size_t i = 0; i < order.size(); ++i) {
    double& weight = weights[order[i]];
    weight = left[i] > 0 ? std::min(1.0, open * weight / left[i]) : 0.0;
    open -= weight;
  }
  return weights;
}

}  // namespace

std::string Routing::text() const {
  switch (kind) {
    case Kind::kUniform:
      return "uniform";
    case Kind::kZipf:
      return fmt::format("zipf:{},burst={},windows={},seed={}", skew, burst, windows, seed);
    case Kind::kTable:
      break;
  }
  return fmt::format("table of {} rows", table.size());
}

Routing parse_routing(const std::string& text) { return RoutingReader(text).read(); }

Routing routing_of_table(const Json& table, const std::string& source) {
  const bool one_row = table.is_array() && !table.empty() && !table.front().is_array();
  const Json rows = one_row ? Json::array({table}) : table;
  Routing out;
  out.kind = Routing::Kind::kTable;
  Problems problems;
  if (!rows.is_array() || rows.empty() || rows.size() > kMostLayers) {
    problems.add({source, "", rows.dump().substr(0, 40), "a list of lists of counts, one a layer",
                  "or one list for all layers"});
    problems.raise_if_any();
  }
  for (std::size_t layer = 0; layer < rows.size(); ++layer) {
    if (auto counts = counts_of(rows[layer])) {
      out.table.push_back(std::move(*counts));
    } else {
      problems.add({source, fmt::format("layer {}", layer), rows[layer].dump().substr(0, 40),
                    "counts of at least 0, one of them above 0", ""});
    }
  }
  problems.raise_if_any();
  return out;
}

std::vector<double> expert_shares(const Routing& routing, int layer, int window,
                                  std::int64_t experts, std::int64_t picks) {
  OOMCAST_CHECK(experts >= 1 && picks >= 1 && picks <= experts, "{} of {} experts", picks, experts);
  switch (routing.kind) {
    case Routing::Kind::kUniform:
      break;
    case Routing::Kind::kZipf:
      return capped(zipf_weights(routing, layer, window, experts), picks);
    case Routing::Kind::kTable:
      return capped(table_row(routing, layer, experts), picks);
  }
  return std::vector<double>(static_cast<std::size_t>(experts),
                             static_cast<double>(picks) / static_cast<double>(experts));
}

}  // namespace oomcast::experts
