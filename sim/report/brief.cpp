#include "sim/report/brief.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

std::string failure(const OrderedJson& outcome) {
  std::string out = "does not fit: " + outcome.at("kind").get<std::string>();
  if (!outcome.at("phase").is_null()) {
    out += " in phase " + outcome.at("phase").get<std::string>();
  }
  const Bytes short_by{outcome.at("short_by_bytes").get<std::int64_t>()};
  if (short_by > Bytes{0}) {
    out += fmt::format(
        ", {} short by {}",
        outcome.at("class").is_null() ? "memory" : outcome.at("class").get<std::string>(),
        format_bytes(short_by));
  } else {
    const auto message = outcome.at("message").get<std::string>();
    out += ": " + message.substr(0, message.find('\n'));
  }
  if (!outcome.at("fixes").empty()) {
    out += "; try " + outcome.at("fixes").front().at("change").get<std::string>();
  }
  return out;
}

// Of the rank with the least left once it is ready.
Bytes least_free(const OrderedJson& ranks) {
  Bytes least{std::numeric_limits<std::int64_t>::max()};
  for (const OrderedJson& rank : ranks) {
    Bytes free{rank.at("total_bytes").get<std::int64_t>()};
    for (const OrderedJson& bytes : rank.at("at_ready")) {
      free -= Bytes{bytes.get<std::int64_t>()};
    }
    least = std::min(least, free);
  }
  return least;
}

}  // namespace

std::string plan_brief(const OrderedJson& plan) {
  if (!plan.at("outcome").at("fits").get<bool>()) {
    return failure(plan.at("outcome"));
  }
  std::string out = "fits: ";
  const OrderedJson& tokens = plan.at("engine_report").at("kv_tokens");
  if (!tokens.is_null()) {
    out += format_count(tokens.get<std::int64_t>()) + " KV tokens, ";
  }
  return out + format_bytes(least_free(plan.at("ranks"))) + " free";
}

std::string record_brief(const RunRecord& record) {
  if (!record.outcome.fits()) {
    return failure(record.outcome_json);
  }
  const RunTotals& totals = record.totals;
  Bytes free{std::numeric_limits<std::int64_t>::max()};
  for (const RankRecord& rank : record.ranks) {
    free = std::min(free, rank.device_total - rank.device_peak.bytes);
  }
  return fmt::format("fits: {} of {} requests served, KV peak {} of {}, {} preemptions, {} free",
                     format_count(totals.finished), format_count(totals.requests),
                     format_bytes(totals.kv_peak), format_bytes(totals.kv_pool),
                     format_count(totals.preemptions), format_bytes(free));
}

}  // namespace oomcast
