#include "sim/search/boundary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace oomcast::search {
namespace {

constexpr int kLooks = 6;
constexpr double kNearlyFull = 0.99;
// Percent of the requests that may lie above a percentile.
constexpr std::int64_t kAboveP99 = 1;
constexpr std::int64_t kAboveMedian = 50;

std::optional<double> parse_seconds(std::string text) {
  double unit = 1;
  if (text.ends_with("ms")) {
    unit = 1e-3;
    text.resize(text.size() - 2);
  } else if (text.ends_with('s')) {
    text.pop_back();
  }
  const auto number = parse_decimal(text);
  return number && number->units > 0 ? std::optional(number->value() * unit) : std::nullopt;
}

// Where to look first: the ends, the anchor, and between them at equal ratios and at equal steps.
std::vector<std::int64_t> looks(const Range& range, std::optional<double> anchor) {
  const std::int64_t last = range.count() - 1;
  const double low = static_cast<double>(range.low.units);
  const double high = static_cast<double>(range.high.units);
  const double step = static_cast<double>(range.step.units);
  std::set<std::int64_t> out = {0, last};
  const auto look_at = [&](double units) {
    out.insert(std::clamp<std::int64_t>(std::llround((units - low) / step), 0, last));
  };
  for (int i = 1; i < kLooks; ++i) {
    const double share = static_cast<double>(i) / kLooks;
    look_at(low + share * (high - low));
    if (low > 0) {
      look_at(low * std::pow(high / low, share));
    }
  }
  if (anchor) {
    look_at(*anchor * std::pow(10.0, range.low.places));
  }
  return {out.begin(), out.end()};
}

}  // namespace

Criterion::Criterion(const std::string& text) : text_(text) {
  const auto above = text.find('>');
  name_ = text.substr(0, above);
  if (text == "oom") {
    return;
  }
  needs_workload_ = true;
  if (text == "preemption") {
    holds_ = [](const ServingFigures& on) { return on.preemptions == 0; };
    return;
  }
  if (text == "kv_full") {
    holds_ = [](const ServingFigures& on) {
      return static_cast<double>(on.kv_peak.count()) <
             kNearlyFull * static_cast<double>(on.kv_pool.count());
    };
    return;
  }
  // Without a percentile: the 99th.
  const auto found =
      std::find_if(kServingTimes.begin(), kServingTimes.end(), [this](const ServingTime& time) {
        return time.name == name_ || time.name == name_ + "_p99";
      });
  const auto bound =
      above == std::string::npos ? std::nullopt : parse_seconds(text.substr(above + 1));
  if (found == kServingTimes.end() || !bound) {
    std::vector<std::string> names = {"oom",     "preemption", "kv_full",
                                      "ttft>2s", "tpot>2s",    "latency>2s"};
    for (const ServingTime& time : kServingTimes) {
      names.push_back(std::string(time.name) + ">2s");
    }
    throw ConfigError(Problem{kCommandLine, "--until", text,
                              "oom, preemption, kv_full, or a time with its bound (ttft>2s, "
                              "tpot_p50>50ms, latency>30s)",
                              did_you_mean(text, names)});
  }
  // Who gave up waited longer than any bound; where nothing finished there is no time to hold.
  const std::int64_t above_percentile =
      std::string_view(found->name).ends_with("_p50") ? kAboveMedian : kAboveP99;
  holds_ = [figure = found->figure, bound = *bound, above_percentile](const ServingFigures& on) {
    return on.*figure <= bound && (on.finished > 0 || on.requests == 0) &&
           on.aborted * 100 <= above_percentile * (on.finished + on.aborted);
  };
}

bool Criterion::holds(const PointResult& point) const {
  return point.fits() && (!holds_ || (point.serving && holds_(*point.serving)));
}

std::string Criterion::broken_by(const PointResult& point) const {
  return point.fits() ? name_ : std::string(name_of(point.kind));
}

std::int64_t Range::count() const { return (high.units - low.units) / step.units + 1; }

std::string Range::at(std::int64_t index) const {
  return to_text({low.units + index * step.units, low.places});
}

std::optional<Range> parse_range(std::string_view text, const Decimal& step, Problems& problems) {
  const auto complain = [&](const std::string& expected) {
    problems.add(
        {kCommandLine, "--between", std::string(text), expected, "e.g. 64:4096 or 0.5:0.99+0.01"});
    return std::nullopt;
  };
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) {
    return complain("LOW:HIGH or LOW:HIGH+STEP");
  }
  const auto plus = text.find('+', colon);
  const auto low = parse_decimal(text.substr(0, colon));
  const auto high = parse_decimal(text.substr(colon + 1, plus - colon - 1));
  const auto given = plus == std::string_view::npos ? step : parse_decimal(text.substr(plus + 1));
  if (!low || !high || !given) {
    return complain("plain decimal numbers");
  }
  try {
    const int places = std::max({low->places, high->places, given->places});
    const Range range{low->with_places(places), high->with_places(places),
                      given->with_places(places)};
    if (range.step.units <= 0 || range.low.units < 0 || range.high.units <= range.low.units) {
      return complain("a rising range from 0 up with a step above 0");
    }
    return range;
  } catch (const ArithmeticOverflow&) {
    return complain("smaller numbers");
  }
}

const Edge* Boundary::upper() const {
  const auto found =
      std::find_if(edges.rbegin(), edges.rend(), [](const Edge& edge) { return edge.is_upper; });
  return found == edges.rend() ? nullptr : &*found;
}

Boundary find_boundary(const Range& range, const Criterion& criterion, const Evaluate& evaluate,
                       std::optional<double> anchor) {
  std::map<std::int64_t, PointResult> seen;
  const auto holds = [&](std::int64_t index) {
    auto at = seen.find(index);
    if (at == seen.end()) {
      at = seen.emplace(index, evaluate(range.at(index))).first;
    }
    return criterion.holds(at->second);
  };
  const std::vector<std::int64_t> first = looks(range, anchor);
  Boundary out;
  out.low_holds = holds(first.front());
  out.high_holds = holds(first.back());
  for (std::size_t i = 1; i < first.size(); ++i) {
    std::int64_t low = first[i - 1];
    std::int64_t high = first[i];
    const bool low_holds = holds(low);
    if (low_holds == holds(high)) {
      continue;
    }
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (holds(middle) == low_holds ? low : high) = middle;
    }
    const std::int64_t good = low_holds ? low : high;
    const std::int64_t bad = low_holds ? high : low;
    out.edges.push_back({range.at(good), range.at(bad), low_holds, seen.at(bad)});
  }
  out.at_low = seen.at(first.front());
  out.evaluations = static_cast<int>(seen.size());
  return out;
}

}  // namespace oomcast::search
