// A point's result as a line of a journal.
#include <array>

#include "sim/search/point.hpp"

namespace oomcast::search {
namespace {

constexpr std::array<OutcomeKind, 5> kKinds = {OutcomeKind::kServed, OutcomeKind::kStartupOom,
                                               OutcomeKind::kKvTooSmall, OutcomeKind::kRuntimeOom,
                                               OutcomeKind::kConfigRejected};

template <typename T>
std::optional<T> optional_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

std::string key_of(const ServingTime& time) { return std::string(time.name) + "_s"; }

Json serving_json(const ServingFigures& serving) {
  Json json = {{"requests", serving.requests},
               {"finished", serving.finished},
               {"aborted", serving.aborted},
               {"preemptions", serving.preemptions},
               {"makespan_s", serving.makespan},
               {"goodput", serving.goodput},
               {"kv_peak_bytes", serving.kv_peak.count()},
               {"kv_pool_bytes", serving.kv_pool.count()}};
  for (const ServingTime& time : kServingTimes) {
    json[key_of(time)] = serving.*time.figure;
  }
  return json;
}

ServingFigures serving_from(const Json& json) {
  ServingFigures out;
  out.requests = json.at("requests").get<std::int64_t>();
  out.finished = json.at("finished").get<std::int64_t>();
  out.aborted = json.at("aborted").get<std::int64_t>();
  out.preemptions = json.at("preemptions").get<std::int64_t>();
  out.makespan = json.at("makespan_s").get<double>();
  out.goodput = json.at("goodput").get<double>();
  for (const ServingTime& time : kServingTimes) {
    out.*time.figure = json.at(key_of(time)).get<double>();
  }
  out.kv_peak = Bytes{json.at("kv_peak_bytes").get<std::int64_t>()};
  out.kv_pool = Bytes{json.at("kv_pool_bytes").get<std::int64_t>()};
  return out;
}

OutcomeKind kind_from(const std::string& name) {
  for (const OutcomeKind kind : kKinds) {
    if (name == name_of(kind)) {
      return kind;
    }
  }
  throw std::out_of_range("no outcome kind " + name);
}

}  // namespace

Json to_json(const PointResult& result) {
  Json json = {{"kind", name_of(result.kind)},
               {"phase", result.phase},
               {"rank", or_null(result.rank)},
               {"class", result.leaf},
               {"short_by_bytes", result.short_by.count()},
               {"message", result.message},
               {"kv_tokens", or_null(result.kv_tokens)},
               {"kv_blocks", or_null(result.kv_blocks)},
               {"max_concurrency", or_null(result.max_concurrency)},
               {"gpus", result.gpus},
               {"replicas", result.replicas},
               {"ranks", Json::array()},
               {"serving", result.serving ? serving_json(*result.serving) : Json()}};
  for (const RankFigures& rank : result.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"alike", rank.alike},
                             {"peak_bytes", rank.peak.count()},
                             {"headroom_bytes", rank.headroom.count()}});
  }
  return json;
}

PointResult point_from_json(const Json& json, const std::string& source) {
  try {
    PointResult result;
    result.kind = kind_from(json.at("kind").get<std::string>());
    result.phase = json.at("phase").get<std::string>();
    result.rank = optional_at<int>(json, "rank");
    result.leaf = json.at("class").get<std::string>();
    result.short_by = Bytes{json.at("short_by_bytes").get<std::int64_t>()};
    result.message = json.at("message").get<std::string>();
    result.kv_tokens = optional_at<std::int64_t>(json, "kv_tokens");
    result.kv_blocks = optional_at<std::int64_t>(json, "kv_blocks");
    result.max_concurrency = optional_at<double>(json, "max_concurrency");
    result.gpus = json.at("gpus").get<int>();
    result.replicas = json.at("replicas").get<int>();
    for (const Json& rank : json.at("ranks")) {
      result.ranks.push_back({rank.at("rank").get<int>(), rank.at("alike").get<int>(),
                              Bytes{rank.at("peak_bytes").get<std::int64_t>()},
                              Bytes{rank.at("headroom_bytes").get<std::int64_t>()}});
    }
    if (!json.at("serving").is_null()) {
      result.serving = serving_from(json.at("serving"));
    }
    return result;
  } catch (const std::exception& error) {
    throw ConfigError(Problem{source, "", error.what(), "a point of this version of oomcast", ""});
  }
}

}  // namespace oomcast::search
