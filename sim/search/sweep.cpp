#include "sim/search/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "sim/core/units_text.hpp"

namespace oomcast::search {
namespace {

template <typename Of>
Measure serving_measure(std::string name, bool more_is_better, Of of) {
  return {std::move(name), more_is_better, [of](const PointResult& point) -> std::optional<double> {
            return point.serving ? std::optional(of(*point.serving)) : std::nullopt;
          }};
}

bool dominates(const std::vector<double>& left, const std::vector<double>& right) {
  bool better = false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i] < right[i]) {
      return false;
    }
    better |= left[i] > right[i];
  }
  return better;
}

std::string csv_text(const OrderedJson& value) {
  if (value.is_null()) {
    return "";
  }
  if (!value.is_string()) {
    return value.dump();
  }
  std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n\r") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char letter : text) {
    quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  }
  return quoted + "\"";
}

std::string by_rank(const PointResult& point, Bytes RankFigures::*figure) {
  std::string text;
  for (const RankFigures& rank : point.ranks) {
    text += fmt::format("{}{}", text.empty() ? "" : ";", (rank.*figure).count());
  }
  return text;
}

template <typename Of>
Column serving_column(std::string name, Of of) {
  return {std::move(name), [of](const PointResult& point) {
            return point.serving ? OrderedJson(of(*point.serving)) : OrderedJson();
          }};
}

void add_serving_columns(std::vector<Column>& out) {
  out.push_back(serving_column("requests", [](const auto& on) { return on.requests; }));
  out.push_back(serving_column("finished", [](const auto& on) { return on.finished; }));
  out.push_back(serving_column("aborted", [](const auto& on) { return on.aborted; }));
  out.push_back(serving_column("preemptions", [](const auto& on) { return on.preemptions; }));
  out.push_back(serving_column("makespan_s", [](const auto& on) { return on.makespan; }));
  out.push_back(serving_column("goodput_tokens_per_s", [](const auto& on) { return on.goodput; }));
  for (const ServingTime& time : kServingTimes) {
    out.push_back(serving_column(std::string(time.name) + "_s",
                                 [figure = time.figure](const auto& on) { return on.*figure; }));
  }
  out.push_back(serving_column("kv_peak_bytes", [](const auto& on) { return on.kv_peak.count(); }));
}

}  // namespace

std::vector<Measure> measures(bool replays, std::optional<double> cost_per_gpu_hour) {
  std::vector<Measure> out;
  if (replays) {
    out.push_back(serving_measure("goodput_tokens_per_s", true,
                                  [](const ServingFigures& on) { return on.goodput; }));
    out.push_back({"ttft_p99_s", false, [](const PointResult& point) -> std::optional<double> {
                     return point.serving && point.serving->finished > 0
                                ? std::optional(point.serving->ttft_p99)
                                : std::nullopt;
                   }});
  } else {
    out.push_back({"kv_tokens_total", true, [](const PointResult& point) {
                     const auto tokens = point.kv_tokens_total();
                     return tokens ? std::optional(static_cast<double>(*tokens)) : std::nullopt;
                   }});
  }
  out.push_back({"headroom_bytes", true, [](const PointResult& point) {
                   return std::optional(static_cast<double>(point.headroom().count()));
                 }});
  if (cost_per_gpu_hour) {
    out.push_back({"cost_per_hour", false, [cost = *cost_per_gpu_hour](const PointResult& point) {
                     return std::optional(cost * point.gpus);
                   }});
  } else {
    out.push_back({"gpus", false, [](const PointResult& point) {
                     return std::optional(static_cast<double>(point.gpus));
                   }});
  }
  return out;
}

std::vector<std::size_t> pareto_front(const std::vector<PointResult>& results,
                                      const std::vector<Measure>& measures) {
  struct Candidate {
    std::vector<double> worth;  // more is better
    std::size_t point = 0;
  };
  std::vector<Candidate> candidates;
  for (std::size_t point = 0; point < results.size(); ++point) {
    Candidate candidate{{}, point};
    for (const Measure& measure : measures) {
      const auto value = results[point].fits() ? measure.of(results[point]) : std::nullopt;
      if (value) {
        candidate.worth.push_back(measure.more_is_better ? *value : -*value);
      }
    }
    if (candidate.worth.size() == measures.size()) {
      candidates.push_back(std::move(candidate));
    }
  }
  // The best first: what comes later dominates nothing before it.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.worth > b.worth; });
  std::vector<const Candidate*> kept;
  for (const Candidate& candidate : candidates) {
    if (std::none_of(kept.begin(), kept.end(), [&](const Candidate* other) {
          return dominates(other->worth, candidate.worth);
        })) {
      kept.push_back(&candidate);
    }
  }
  std::vector<std::size_t> front;
  for (const Candidate* candidate : kept) {
    front.push_back(candidate->point);
  }
  std::sort(front.begin(), front.end());
  return front;
}

std::vector<Column> columns(const Sweep& sweep) {
  std::vector<Column> out = {
      {"outcome", [](const PointResult& on) { return OrderedJson(name_of(on.kind)); }},
      {"phase", [](const PointResult& on) { return OrderedJson(on.phase); }},
      {"class", [](const PointResult& on) { return OrderedJson(on.leaf); }},
      {"short_by_bytes", [](const PointResult& on) { return OrderedJson(on.short_by.count()); }},
      {"kv_tokens", [](const PointResult& on) { return or_null(on.kv_tokens); }},
      {"kv_tokens_total", [](const PointResult& on) { return or_null(on.kv_tokens_total()); }},
      {"kv_blocks", [](const PointResult& on) { return or_null(on.kv_blocks); }},
      {"max_concurrency", [](const PointResult& on) { return or_null(on.max_concurrency); }},
      {"gpus", [](const PointResult& on) { return OrderedJson(on.gpus); }},
      {"peak_bytes", [](const PointResult& on) { return OrderedJson(on.peak().count()); }},
      {"headroom_bytes", [](const PointResult& on) { return OrderedJson(on.headroom().count()); }},
      {"peak_bytes_by_rank",
       [](const PointResult& on) { return OrderedJson(by_rank(on, &RankFigures::peak)); }},
      {"headroom_bytes_by_rank",
       [](const PointResult& on) { return OrderedJson(by_rank(on, &RankFigures::headroom)); }}};
  if (sweep.cost_per_gpu_hour) {
    out.push_back({"cost_per_hour", [cost = *sweep.cost_per_gpu_hour](const PointResult& on) {
                     return OrderedJson(cost * on.gpus);
                   }});
  }
  if (sweep.replays) {
    add_serving_columns(out);
  }
  out.push_back({"reason", [](const PointResult& on) { return OrderedJson(on.message); }});
  return out;
}

std::string points_csv(const Sweep& sweep) {
  std::string out = fmt::format("{}", fmt::join(sweep.grid.names(), ","));
  const std::vector<Column> all = columns(sweep);
  for (const Column& column : all) {
    out += "," + column.name;
  }
  out += ",pareto\n";
  const std::set<std::size_t> front(sweep.front.begin(), sweep.front.end());
  for (std::size_t point = 0; point < sweep.results.size(); ++point) {
    for (const auto& [name, value] : sweep.grid.at(point)) {
      out += csv_text(OrderedJson(value)) + ",";
    }
    for (const Column& column : all) {
      out += csv_text(column.value(sweep.results[point])) + ",";
    }
    out += front.count(point) != 0 ? "yes\n" : "no\n";
  }
  return out;
}

OrderedJson sweep_json(const Sweep& sweep) {
  OrderedJson json;
  json["schema"] = "oomcast.sweep/1";
  json["varied"] = sweep.grid.names();
  json["judged_by"] = OrderedJson::array();
  for (const Measure& measure : sweep.judged_by) {
    json["judged_by"].push_back(
        {{"name", measure.name}, {"better", measure.more_is_better ? "more" : "less"}});
  }
  const std::vector<Column> all = columns(sweep);
  const std::set<std::size_t> front(sweep.front.begin(), sweep.front.end());
  json["points"] = OrderedJson::array();
  for (std::size_t point = 0; point < sweep.results.size(); ++point) {
    OrderedJson row;
    OrderedJson& settings = row["settings"] = OrderedJson::object();
    for (const auto& [name, value] : sweep.grid.at(point)) {
      settings[name] = value;
    }
    for (const Column& column : all) {
      row[column.name] = column.value(sweep.results[point]);
    }
    row["pareto"] = front.count(point) != 0;
    json["points"].push_back(std::move(row));
  }
  return json;
}

}  // namespace oomcast::search
