#include "sim/report/record_json.hpp"

#include <cmath>

namespace oomcast {
namespace {

// Written values carry what the digest covers; rounding keeps the text short and equal everywhere.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

OrderedJson peak_json(const Peak& peak) {
  OrderedJson json;
  json["bytes"] = peak.bytes.count();
  json["time_s"] = rounded(peak.at.seconds());
  json["during"] = peak.during;
  OrderedJson live;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    if (peak.live[leaf] > Bytes{0}) {
      live[std::string(kLeafNames[leaf])] = peak.live[leaf].count();
    }
  }
  json["live"] = std::move(live);
  return json;
}

OrderedJson failure_json(const AllocatorRecord::Failure& failure) {
  OrderedJson json;
  json["time_s"] = rounded(failure.at.seconds());
  json["tensor"] = failure.site.tensor;
  json["op"] = failure.site.op;
  json["scope"] = failure.site.scope;
  json["class"] = name_of(failure.site.leaf);
  json["step_tokens"] = failure.tokens.count();
  json["step_rows"] = failure.rows;
  json["requested_bytes"] = failure.requested.count();
  json["device_free_bytes"] = failure.device_free.count();
  json["cached_free_bytes"] = failure.cached.count();
  json["fragmented"] = failure.is_fragmented();
  json["live"] = OrderedJson::array();
  for (const AllocatorRecord::Failure::Live& live : failure.live) {
    OrderedJson entry;
    entry["tensor"] = live.site.tensor;
    entry["formula"] = live.site.formula;
    entry["scope"] = live.site.scope;
    entry["class"] = name_of(live.site.leaf);
    entry["bytes"] = live.bytes.count();
    json["live"].push_back(std::move(entry));
  }
  return json;
}

OrderedJson allocator_json(const AllocatorRecord& record) {
  const allocator::AllocatorStats& stats = record.stats;
  OrderedJson json;
  json["settings"] = record.history.settings.text;
  json["allocated_bytes"] = stats.allocated.count();
  json["reserved_bytes"] = stats.reserved.count();
  json["cached_bytes"] = (stats.reserved - stats.active).count();
  json["inactive_split_bytes"] = stats.inactive_split.count();
  json["segments"] = stats.segments;
  json["retries"] = stats.alloc_retries;
  json["ooms"] = stats.ooms;
  json["device_allocs"] = stats.device_allocs;
  json["device_frees"] = stats.device_frees;
  json["highest_reserved"] = {{"bytes", record.highest_reserved.count()},
                              {"time_s", rounded(record.highest_reserved_at.seconds())}};
  json["out_of_memory"] = record.failure ? failure_json(*record.failure) : OrderedJson(nullptr);
  return json;
}

OrderedJson percentiles(const LogHistogram& nanos) {
  const auto seconds = [](std::int64_t value) {
    return rounded(static_cast<double>(value) * 1e-9);
  };
  OrderedJson json;
  json["mean"] = rounded(nanos.mean() * 1e-9);
  json["p50"] = seconds(nanos.quantile(0.5));
  json["p90"] = seconds(nanos.quantile(0.9));
  json["p99"] = seconds(nanos.quantile(0.99));
  json["max"] = seconds(nanos.largest());
  return json;
}

OrderedJson host_tier_json(const HostTierTotals& totals) {
  const auto seconds = [](Nanos span) { return rounded(static_cast<double>(span.count()) * 1e-9); };
  OrderedJson json;
  json["pool_bytes"] = totals.pool.count();
  json["used_peak_bytes"] = totals.used_peak.count();
  json["hit_tokens"] = totals.hit_tokens.count();
  json["loads"] = totals.loads;
  json["stores"] = totals.stores;
  json["loaded_bytes"] = totals.loaded.count();
  json["stored_bytes"] = totals.stored.count();
  json["loads_took_s"] = seconds(totals.loads_took);
  json["steps_waited_s"] = seconds(totals.steps_waited);
  return json;
}

OrderedJson totals_json(const RunTotals& totals) {
  OrderedJson json;
  json["requests"] = totals.requests;
  json["finished"] = totals.finished;
  json["rejected"] = totals.rejected;
  json["aborted"] = totals.aborted;
  json["unfinished"] = totals.unfinished;
  json["steps"] = totals.steps;
  json["preemptions"] = totals.preemptions;
  json["prompt_tokens"] = totals.prompt_tokens.count();
  json["output_tokens"] = totals.output_tokens.count();
  json["cached_tokens"] = totals.cached_tokens.count();
  json["prefix_hit_tokens"] = totals.prefix_hit_tokens.count();
  json["makespan_s"] = rounded(static_cast<double>(totals.makespan.count()) * 1e-9);
  json["kv_pool_bytes"] = totals.kv_pool.count();
  json["kv_peak_bytes"] = totals.kv_peak.count();
  json["kv_peak_time_s"] = rounded(totals.kv_peak_at.seconds());
  if (totals.host_tier) {
    json["host_tier"] = host_tier_json(*totals.host_tier);
  }
  json["ttft_s"] = percentiles(totals.ttft);
  json["tpot_s"] = percentiles(totals.tpot);
  json["latency_s"] = percentiles(totals.latency);
  return json;
}

}  // namespace

OrderedJson record_json(const RunRecord& record, const OrderedJson& meta) {
  OrderedJson json;
  json["schema"] = "oomcast.record/1";
  json["config"] = record.config;
  if (!record.cluster.is_null()) {
    json["cluster"] = record.cluster;
  }
  json["workload"] = record.workload;
  json["plan"] = record.plan;
  json["totals"] = totals_json(record.totals);
  json["ranks"] = OrderedJson::array();
  for (const RankRecord& rank : record.ranks) {
    OrderedJson entry;
    entry["rank"] = rank.rank;
    entry["alike"] = rank.alike;
    if (!rank.role.empty()) {
      entry["role"] = rank.role;
    }
    entry["device_total_bytes"] = rank.device_total.count();
    entry["device_peak"] = peak_json(rank.device_peak);
    OrderedJson leaves;
    for (std::size_t leaf = 0; leaf < rank.leaf_peaks.size(); ++leaf) {
      if (rank.leaf_peaks[leaf].bytes > Bytes{0}) {
        leaves[std::string(kLeafNames[leaf])] = peak_json(rank.leaf_peaks[leaf]);
      }
    }
    entry["class_peaks"] = std::move(leaves);
    if (rank.allocator) {
      entry["allocator"] = allocator_json(*rank.allocator);
    }
    json["ranks"].push_back(std::move(entry));
  }
  json["outcome"] = record.outcome_json;
  json["digest"] = record.digest;
  json["meta"] = meta;
  return json;
}

}  // namespace oomcast
