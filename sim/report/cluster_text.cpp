#include "sim/report/cluster_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/core/units_text.hpp"
#include "sim/ledger/classes.hpp"
#include "sim/report/strips.hpp"

namespace oomcast {
namespace {

constexpr std::array<const char*, 2> kRoles = {"prefill", "decode"};

// The rank of a role that comes nearest to its card's end; nullptr if there is none.
const RankRecord* fullest(const RunRecord& record, const std::string& role) {
  const RankRecord* found = nullptr;
  for (const RankRecord& rank : record.ranks) {
    if (rank.role == role &&
        (found == nullptr || rank.device_peak.bytes > found->device_peak.bytes)) {
      found = &rank;
    }
  }
  return found;
}

std::string pool_line(const OrderedJson& pool) {
  const OrderedJson& launch = pool.at("launch");
  return fmt::format("  {:<8}{:>4} x {:>2} x {}, {} {}; {} KV tokens and {} requests a server\n",
                     pool.at("role").get<std::string>(), pool.at("servers").get<std::int64_t>(),
                     pool.at("ranks_per_server").get<std::int64_t>(),
                     pool.at("gpu").get<std::string>(), launch.at("engine").get<std::string>(),
                     launch.at("version").get<std::string>(),
                     format_count(pool.at("kv_tokens").get<std::int64_t>()),
                     format_count(pool.at("max_running_requests").get<std::int64_t>()));
}

std::string cell(Bytes bytes) { return bytes == Bytes{0} ? "" : format_bytes(bytes); }

std::string span(const OrderedJson& seconds) {
  return format_span(Nanos{static_cast<std::int64_t>(seconds.get<double>() * 1e9)});
}

std::string spans_line(const char* name, const OrderedJson& spans) {
  return fmt::format("  {:<34}{:>12}{:>12}{:>12}{:>12}\n", name, span(spans.at("mean")),
                     span(spans.at("p50")), span(spans.at("p99")), span(spans.at("max")));
}

LeafBytes at_ready(const RankRecord& rank) {
  return rank.startup.empty() ? LeafBytes{} : rank.startup.back().device;
}

// The most of each class in any row that the timeline kept.
LeafBytes highest_serving(const RankRecord& rank) {
  LeafBytes most{};
  for (const TimelineRow& row : rank.timeline) {
    for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
      most[leaf] = std::max(most[leaf], row.device[leaf]);
    }
  }
  return most;
}

std::string lost_line(const OrderedJson& cluster) {
  const OrderedJson& transfers = cluster.at("transfers");
  std::string out;
  if (transfers.at("lost").get<std::int64_t>() > 0) {
    out += fmt::format("  {} lost on the way, {} requests sent anew\n",
                       format_count(transfers.at("lost").get<std::int64_t>()),
                       format_count(transfers.at("requests_sent_anew").get<std::int64_t>()));
  }
  for (const OrderedJson& fault : cluster.at("faults")) {
    out += fmt::format("  injected: {}\n", fault.get<std::string>());
  }
  return out;
}

}  // namespace

std::string cluster_budget(const RunRecord& record) {
  std::string out = record.plan.at("model").get<std::string>() + ", prefill and decode apart\n";
  for (const OrderedJson& pool : record.cluster.at("pools")) {
    out += pool_line(pool);
  }
  out += fmt::format("\n  {:<24}{:>12}{:>12}{:>12}{:>12}\n", "a rank of each, bytes", "prefill", "",
                     "decode", "");
  out += fmt::format("  {:<24}{:>12}{:>12}{:>12}{:>12}\n", "class", "ready", "serving", "ready",
                     "serving");
  std::array<const RankRecord*, 2> ranks{};
  for (std::size_t i = 0; i < kRoles.size(); ++i) {
    ranks[i] = fullest(record, kRoles[i]);
    if (ranks[i] == nullptr) {
      return out;
    }
  }
  const auto row = [&](std::string_view name, std::array<Bytes, 4> bytes) {
    if (std::any_of(bytes.begin(), bytes.end(), [](Bytes value) { return value > Bytes{0}; })) {
      out += fmt::format("  {:<24}{:>12}{:>12}{:>12}{:>12}\n", name, cell(bytes[0]), cell(bytes[1]),
                         cell(bytes[2]), cell(bytes[3]));
    }
  };
  const std::array<LeafBytes, 4> columns = {at_ready(*ranks[0]), highest_serving(*ranks[0]),
                                            at_ready(*ranks[1]), highest_serving(*ranks[1])};
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    row(kLeafNames[leaf], {columns[0][leaf], columns[1][leaf], columns[2][leaf], columns[3][leaf]});
  }
  const auto used = [](const RankRecord& rank) {
    return rank.startup.empty() ? Bytes{} : rank.startup.back().views.device_used;
  };
  const auto pinned = [](const RankRecord& rank) {
    return rank.startup.empty() ? Bytes{} : rank.startup.back().views.pinned_host;
  };
  row("used",
      {used(*ranks[0]), ranks[0]->device_peak.bytes, used(*ranks[1]), ranks[1]->device_peak.bytes});
  row("of", {ranks[0]->device_total, ranks[0]->device_total, ranks[1]->device_total,
             ranks[1]->device_total});
  row("pinned on the host",
      {pinned(*ranks[0]), pinned(*ranks[0]), pinned(*ranks[1]), pinned(*ranks[1])});
  return out;
}

std::string cluster_serving(const RunRecord& record) {
  const OrderedJson& transfers = record.cluster.at("transfers");
  std::string out = fmt::format("\nTransfers over {}: {} done, {}, at most {} at once\n",
                                record.cluster.at("interconnect").at("name").get<std::string>(),
                                format_count(transfers.at("done").get<std::int64_t>()),
                                format_bytes(Bytes{transfers.at("bytes").get<std::int64_t>()}),
                                format_count(transfers.at("most_at_once").get<std::int64_t>()));
  out += lost_line(record.cluster);
  out += fmt::format("  {:<34}{:>12}{:>12}{:>12}{:>12}\n", "", "mean", "p50", "p99", "max");
  out += spans_line("arrival to room on decode", transfers.at("wait_for_room_s"));
  out += spans_line("arrival to prompt done", transfers.at("prompt_done_s"));
  out += spans_line("prompt done to KV handed over", transfers.at("handed_over_after_s"));
  for (const char* role : kRoles) {
    if (const RankRecord* rank = fullest(record, role)) {
      out += fmt::format("\nRank {}, {}", rank->rank, role);
      out += strips(*rank);
    }
  }
  return out;
}

}  // namespace oomcast
