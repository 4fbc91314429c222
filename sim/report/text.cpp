#include "sim/report/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/units_text.hpp"
#include "sim/report/cluster_text.hpp"
#include "sim/report/strips.hpp"

namespace oomcast {
namespace {

constexpr std::size_t kBarWidth = 36;

Bytes bytes_at(const OrderedJson& json, const char* key) {
  return Bytes{json.at(key).get<std::int64_t>()};
}

double share(Bytes part, Bytes whole) {
  return whole > Bytes{0} ? static_cast<double>(part.count()) / static_cast<double>(whole.count())
                          : 0.0;
}

// Eighths of a cell, so that small classes still show.
std::string bar(double fraction) {
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(
      std::lround(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(kBarWidth) * 8));
  std::string out;
  for (std::size_t i = 0; i < eighths / 8; ++i) {
    out += "█";
  }
  return out + kEighths[eighths % 8];
}

std::string budget(const OrderedJson& rank) {
  const Bytes total = bytes_at(rank, "total_bytes");
  std::string out =
      fmt::format("  {:<24}{:>12}  of {}\n", "class, at ready", "bytes", format_bytes(total));
  Bytes standing;
  for (const auto& [name, value] : rank.at("at_ready").items()) {
    const Bytes bytes{value.get<std::int64_t>()};
    if (bytes == Bytes{0}) {
      continue;
    }
    standing += bytes;
    out += fmt::format("  {:<24}{:>12}  {}\n", name, format_bytes(bytes), bar(share(bytes, total)));
  }
  const Bytes free = total - standing;
  out += fmt::format("  {:<24}{:>12}  {}\n", "free", format_bytes(free), bar(share(free, total)));
  return out;
}

// What the rank pins on the host, by class; records of older runs do not say.
std::string pinned_host(const OrderedJson& rank) {
  std::string classes;
  if (!rank.contains("pinned_host")) {
    return classes;
  }
  for (const auto& [name, value] : rank.at("pinned_host").items()) {
    classes += fmt::format("{}{} {}", classes.empty() ? "" : ", ", name,
                           format_bytes(Bytes{value.get<std::int64_t>()}));
  }
  return classes.empty() ? ""
                         : fmt::format("  {:<24}{:>12}  {}\n", "pinned on the host",
                                       format_bytes(bytes_at(rank, "pinned_host_bytes")), classes);
}

std::string profile_peak(const OrderedJson& rank) {
  const OrderedJson& peak = rank.at("profile_peak");
  std::string out;
  Bytes sum;
  for (const OrderedJson& tensor : peak.at("tensors")) {
    const Bytes bytes = bytes_at(tensor, "bytes");
    sum += bytes;
    out += fmt::format("    {:<44}{:>12}  {}\n", tensor.at("name").get<std::string>(),
                       format_bytes(bytes), tensor.at("formula").get<std::string>());
  }
  return out.empty() ? ""
                     : fmt::format("\nPeak of the profile run: {}, {} of tensors\n{}",
                                   peak.at("moment").get<std::string>(), format_bytes(sum), out);
}

std::string phases(const OrderedJson& rank) {
  std::string out = fmt::format("\n  {:<16}{:>12}{:>14}{:>18}{:>17}\n", "startup phase", "used",
                                "highest", "torch allocated", "torch reserved");
  for (const OrderedJson& phase : rank.at("phases")) {
    out += fmt::format("  {:<16}{:>12}{:>14}{:>18}{:>17}\n", phase.at("phase").get<std::string>(),
                       format_bytes(bytes_at(phase, "device_used_bytes")),
                       format_bytes(bytes_at(phase, "device_peak_bytes")),
                       format_bytes(bytes_at(phase, "torch_allocated_bytes")),
                       format_bytes(bytes_at(phase, "torch_reserved_bytes")));
  }
  return out;
}

std::string capacity(const OrderedJson& report, int groups) {
  if (report.at("kv_tokens").is_null()) {
    return "";
  }
  const auto count = [&report](const char* key) {
    return format_count(report.at(key).get<std::int64_t>());
  };
  std::string out = fmt::format("\nKV cache: {} tokens", count("kv_tokens"));
  if (!report.at("kv_blocks").is_null() && !report.at("block_size").is_null()) {
    out += fmt::format(" in {} blocks of {}", count("kv_blocks"), count("block_size"));
  }
  if (groups > 1) {
    out += fmt::format(" shared by {} groups of layers", groups);
  }
  if (!report.at("swa_tokens").is_null()) {
    out += fmt::format(", {} of sliding windows", count("swa_tokens"));
  }
  if (!report.at("available_kv_gib").is_null()) {
    out += fmt::format(", {:.2f} GiB", report.at("available_kv_gib").get<double>());
  }
  if (!report.at("state_slots").is_null()) {
    out += fmt::format("; recurrent state of {} requests", count("state_slots"));
  }
  if (!report.at("max_concurrency").is_null()) {
    out += fmt::format("; {:.2f} requests of full length at once",
                       report.at("max_concurrency").get<double>());
  } else if (!report.at("max_running_requests").is_null()) {
    out += fmt::format("; at most {} requests running", count("max_running_requests"));
  }
  return out + "\n";
}

std::string expert_exchange(const OrderedJson& plan) {
  if (!plan.contains("experts")) {
    return "";
  }
  const OrderedJson& experts = plan.at("experts");
  std::string out = fmt::format(
      "\nExperts: {} on {} ranks, tokens by {}", experts.at("experts").get<std::int64_t>(),
      experts.at("ranks").get<std::int64_t>(), experts.at("backend").get<std::string>());
  if (const Bytes buffers = bytes_at(experts, "buffer_bytes"); buffers > Bytes{0}) {
    out += fmt::format(", buffers {} for {} tokens a rank", format_bytes(buffers),
                       format_count(experts.at("dispatch_tokens").get<std::int64_t>()));
  }
  if (const double imbalance = experts.at("imbalance").get<double>(); imbalance > 1) {
    const std::size_t worst = experts.at("worst_rank").get<std::size_t>();
    out += fmt::format("; rank {} gets {:.2f} times the mean load, in layer of experts {}", worst,
                       imbalance, experts.at("ranks_load").at(worst).at("layer").get<int>());
  }
  return out + "\n";
}

std::string engine_log(const OrderedJson& report) {
  if (report.at("weights_gib").is_null()) {
    return "";  // it died before it logged any of this
  }
  std::string out = "\nThe engine's log would say:";
  const auto add = [&](const char* key, const char* label) {
    if (!report.at(key).is_null()) {
      out += fmt::format(" {} {:.2f} GiB;", label, report.at(key).get<double>());
    }
  };
  add("weights_gib", "weights");
  add("activation_peak_gib", "peak activation");
  add("non_torch_gib", "non-torch");
  add("consumed_gib", "consumed");
  add("cudagraph_estimate_gib", "CUDA graphs estimated");
  add("cudagraph_gib", "CUDA graphs took");
  add("available_kv_gib", "available for KV cache");
  add("state_pool_gib", "recurrent state");
  add("avail_after_load_gib", "free after loading");
  add("avail_after_pool_gib", "free after the pools");
  add("avail_mem_after_gib", "free at the end");
  out.back() = '\n';
  return out;
}

std::string outcome_text(const OrderedJson& outcome) {
  if (outcome.at("fits").get<bool>()) {
    return "\nIt fits.\n";
  }
  std::string out = fmt::format(
      "\nIt does not fit: {} in phase {}, rank {}, {} short by {}\n  {}\n",
      outcome.at("kind").get<std::string>(), outcome.at("phase").get<std::string>(),
      outcome.at("rank").is_null() ? 0 : outcome.at("rank").get<int>(),
      outcome.at("class").is_null() ? "memory" : outcome.at("class").get<std::string>(),
      format_bytes(bytes_at(outcome, "short_by_bytes")), outcome.at("message").get<std::string>());
  const bool running = outcome.at("kind") == "runtime_oom";
  if (outcome.at("fixes").empty()) {
    return out + (running ? "No single change of the usual knobs was found that serves it.\n"
                          : "No single change of the usual knobs makes it start.\n");
  }
  out += running ? "Changes with which it serves the trace (each replayed):\n"
                 : "Changes that make it start (each simulated):\n";
  for (const OrderedJson& fix : outcome.at("fixes")) {
    const Bytes gain = bytes_at(fix, "frees_bytes");
    out += fmt::format("  {:<40} {}\n", fix.at("change").get<std::string>(),
                       gain > Bytes{0} ? "gains " + format_bytes(gain) : "needs less");
  }
  return out;
}

std::string warnings(const OrderedJson& plan) {
  std::string out;
  for (const OrderedJson& warning : plan.at("warnings")) {
    out += "  warning: " + warning.get<std::string>() + "\n";
  }
  for (const OrderedJson& note : plan.at("notes")) {
    out += "  note: " + note.get<std::string>() + "\n";
  }
  return out.empty() ? out : "\n" + out;
}

std::string title(const OrderedJson& plan) {
  const OrderedJson& world = plan.at("world");
  const int ranks = world.at("tp").get<int>() * world.at("pp").get<int>();
  const int replicas = world.at("dp").get<int>();
  return fmt::format(
      "{} on {}{}{}, {} {}\n\n", plan.at("model").get<std::string>(),
      ranks > 1 ? fmt::format("{} x ", ranks) : "", plan.at("gpu").get<std::string>(),
      replicas > 1 ? fmt::format(" (one of {} replicas)", replicas) : "",
      plan.at("engine").get<std::string>(), plan.at("engine_version").get<std::string>());
}

std::string percentile_row(const char* name, const LogHistogram& nanos) {
  const auto span = [](std::int64_t value) { return format_span(Nanos{value}); };
  return fmt::format("  {:<22}{:>12}{:>12}{:>12}{:>12}{:>12}\n", name,
                     span(static_cast<std::int64_t>(nanos.mean())), span(nanos.quantile(0.5)),
                     span(nanos.quantile(0.9)), span(nanos.quantile(0.99)), span(nanos.largest()));
}

std::string host_tier(const HostTierTotals& totals) {
  return fmt::format(
      "  host tier of {}, at most {} used: {} tokens were loaded instead of computed; {} loaded in "
      "{} and {} stored, for which steps waited {}\n",
      format_bytes(totals.pool), format_bytes(totals.used_peak),
      format_count(totals.hit_tokens.count()), format_bytes(totals.loaded),
      format_span(totals.loads_took), format_bytes(totals.stored),
      format_span(totals.steps_waited));
}

std::string serving(const RunRecord& record) {
  const RunTotals& totals = record.totals;
  const double seconds = static_cast<double>(totals.makespan.count()) * 1e-9;
  const auto rate = [seconds](std::int64_t count) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  std::string out = fmt::format(
      "\nServed {} of {} requests in {} ({} rejected, {}{} unfinished), {} steps, {} preemptions\n",
      format_count(totals.finished), format_count(totals.requests), format_span(totals.makespan),
      totals.rejected,
      totals.aborted > 0 ? fmt::format("{} given up, ", format_count(totals.aborted)) : "",
      totals.unfinished, format_count(totals.steps), format_count(totals.preemptions));
  out += fmt::format(
      "  {:.1f} requests/s, {:.0f} prompt and {:.0f} output tokens/s; {:.1f} % of "
      "prompt tokens from the prefix cache\n",
      rate(totals.finished), rate(totals.prompt_tokens.count()), rate(totals.output_tokens.count()),
      totals.prompt_tokens > Tokens{0} ? 100.0 * static_cast<double>(totals.cached_tokens.count()) /
                                             static_cast<double>(totals.prompt_tokens.count())
                                       : 0.0);
  if (totals.host_tier) {
    out += host_tier(*totals.host_tier);
  }
  if (totals.rejected > 0) {
    out += fmt::format("  {} requests were rejected; requests.csv says why for each\n",
                       format_count(totals.rejected));
  }
  out += fmt::format("\n  {:<22}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "", "mean", "p50", "p90", "p99",
                     "max");
  out += percentile_row("time to first token", totals.ttft);
  out += percentile_row("time per output token", totals.tpot);
  out += percentile_row("latency", totals.latency);
  if (!record.cluster.is_null()) {
    return out + cluster_serving(record);
  }
  out += strips(record);
  if (!record.ranks.empty()) {
    const RankRecord& rank = record.ranks.front();
    const Peak& peak = rank.device_peak;
    out += fmt::format("\nDevice peak {} of {} ({:.2f} GiB headroom), during {}\n",
                       format_bytes(peak.bytes), format_bytes(rank.device_total),
                       to_gib(rank.device_total - peak.bytes), peak.during);
  }
  return out;
}

std::string workload(const OrderedJson& workload) {
  std::string out;
  for (const OrderedJson& source : workload) {
    out += fmt::format(
        "Trace {}: format {}, {} rows read, {} kept\n", source.at("source").get<std::string>(),
        source.at("format").get<std::string>(), format_count(source.at("read").get<std::int64_t>()),
        format_count(source.at("kept").get<std::int64_t>()));
    for (const char* kind : {"dropped", "changed"}) {
      for (const auto& [reason, entry] : source.at(kind).items()) {
        out += fmt::format("  {} {}: {} (first: {})\n", kind,
                           format_count(entry.at("count").get<std::int64_t>()), reason,
                           entry.at("first").get<std::string>());
      }
    }
  }
  return out.empty() ? out : out + "\n";
}

std::string explained_moment(const OrderedJson& moment) {
  std::string out =
      fmt::format("\n  {}: {} at `{}`\n", moment.at("of").get<std::string>(),
                  format_bytes(bytes_at(moment, "bytes")), moment.at("op").get<std::string>());
  for (const OrderedJson& tensor : moment.at("tensors")) {
    out += fmt::format("    {:>15}  {:<42}{:<14}{}\n", bytes_at(tensor, "bytes").count(),
                       tensor.at("name").get<std::string>(), tensor.at("scope").get<std::string>(),
                       tensor.at("formula").get<std::string>());
  }
  return out + fmt::format("    {:>15}  sum\n", bytes_at(moment, "bytes").count());
}

std::string explained_peaks(const OrderedJson& stages) {
  std::string out;
  for (const OrderedJson& stage : stages) {
    out += fmt::format("\nProfile run of rank {}: {} tokens, {} rows with logits\n",
                       stage.at("rank").get<int>(), stage.at("tokens").get<std::int64_t>(),
                       stage.at("rows").get<std::int64_t>());
    for (const OrderedJson& moment : stage.at("moments")) {
      out += explained_moment(moment);
    }
    out += fmt::format(
        "\n  tensors alone {}, in blocks of PyTorch's allocator {}\n\n  live ranges, first op to "
        "last\n",
        format_bytes(bytes_at(stage, "tensors_bytes")),
        format_bytes(bytes_at(stage, "blocks_bytes")));
    for (const OrderedJson& row : stage.at("live_ranges")) {
      out += "  " + row.get<std::string>() + "\n";
    }
  }
  return out;
}

std::string budget_part(const OrderedJson& plan) {
  if (plan.at("ranks").empty()) {
    return title(plan);
  }
  const OrderedJson& rank = plan.at("ranks").front();
  return title(plan) + budget(rank) + pinned_host(rank);
}

std::string startup_part(const OrderedJson& plan) {
  if (plan.at("ranks").empty()) {
    return "";
  }
  const OrderedJson& rank = plan.at("ranks").front();
  return phases(rank) + profile_peak(rank);
}

std::string capacity_part(const OrderedJson& plan) {
  return capacity(plan.at("engine_report"), plan.at("kv_groups").get<int>());
}

}  // namespace

std::string plan_text(const OrderedJson& plan) {
  if (plan.contains("explain_peak")) {
    return title(plan) + explained_peaks(plan.at("explain_peak")) + warnings(plan) +
           outcome_text(plan.at("outcome"));
  }
  return budget_part(plan) + startup_part(plan) + capacity_part(plan) + expert_exchange(plan) +
         engine_log(plan.at("engine_report")) + warnings(plan) + outcome_text(plan.at("outcome"));
}

std::string record_text(const RunRecord& record) {
  if (!record.cluster.is_null()) {
    return workload(record.workload) + cluster_budget(record) + serving(record) +
           warnings(record.plan) + outcome_text(record.outcome_json) +
           fmt::format("\nDigest {}\n", record.digest);
  }
  std::string out = workload(record.workload) + budget_part(record.plan);
  // What served needs no account of its startup: one screen is enough. `plan` has it.
  if (!record.plan.at("outcome").at("fits").get<bool>()) {
    out += startup_part(record.plan);
  }
  out += capacity_part(record.plan) + serving(record) + warnings(record.plan) +
         outcome_text(record.outcome_json);
  return out + fmt::format("\nDigest {}\n", record.digest);
}

}  // namespace oomcast
