// Comparison of a run with its recording, field by field and by the digest.
#include <fmt/format.h>

#include "sim/core/digest.hpp"
#include "tests/golden/recording.hpp"
#include "tests/golden/sglang_scenario.hpp"

namespace oomcast::golden {
namespace {

using sglang::FinishReason;
using sglang::Kind;

constexpr const char* kKinds[] = {"idle", "prefill", "decode", "mixed"};
constexpr const char* kReasons[] = {"length", "stop", "abort"};

const char* name_of(Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
const char* name_of(FinishReason reason) { return kReasons[static_cast<std::size_t>(reason)]; }

// Counters of the recording's last line.
struct Totals {
  std::int64_t retract = 0;
  std::int64_t preempt = 0;
  std::int64_t abort = 0;
  std::int64_t finish = 0;
  std::int64_t computed = 0;
  std::int64_t chunks = 0;
};

class Comparison {
 public:
  explicit Comparison(const SglangScenario& scenario)
      : run_(scenario, true),
        role_(scenario.config.role),
        windowed_(scenario.config.swa_pool_tokens.has_value()),
        has_states_(scenario.config.state_pool.has_value()) {}

  std::int64_t executed() const { return run_.executed; }
  std::string step(const Json* recorded);
  std::string trailer(const Json& recorded);

 private:
  [[nodiscard]] Json fields() const;
  [[nodiscard]] Json finished() const;
  [[nodiscard]] std::string pool_text() const;
  [[nodiscard]] std::string role_text() const;
  void extend_digest();
  void count();
  [[nodiscard]] std::string difference(const std::string& field, const std::string& expected,
                                       const std::string& got) const {
    return fmt::format("step {} field {}: expected {}, got {}", run_.executed - 1, field, expected,
                       got);
  }

  SglangRun run_;
  sglang::Role role_;
  bool windowed_;
  bool has_states_;
  Digest digest_;
  Totals totals_;
  Json kinds_ = Json::object();
};

// The engine's value as it was written down: rounded to nine decimals.
double written_ratio(double ratio) { return std::stod(fmt::format("{:.9f}", ratio)); }

Json Comparison::finished() const {
  Json list = Json::array();
  const auto add = [&](const std::vector<sglang::FinishedRequest>& requests) {
    for (const sglang::FinishedRequest& request : requests) {
      list.push_back({request.id, name_of(request.reason), request.output.count()});
    }
  };
  add(run_.plan->transfers.finished);
  if (run_.output != nullptr) {
    add(run_.output->finished);
  }
  return list;
}

// Our step in the recording's words; empty lists are left out.
Json Comparison::fields() const {
  const sglang::StepPlan& plan = *run_.plan;
  const sglang::PoolCounts end = run_.scheduler.slots();
  Json line = {{"step", run_.executed - 1},
               {"kind", name_of(plan.kind)},
               {"avail", plan.slots.free.count()},
               {"evict", plan.slots.cached.count()},
               {"avail_end", end.free.count()},
               {"evict_end", end.cached.count()},
               {"waiting", run_.scheduler.waiting()},
               {"running", run_.scheduler.running()},
               {"ratio", written_ratio(run_.scheduler.new_token_ratio())},
               {"digest", digest_.hex()}};
  if (windowed_) {
    const sglang::PoolCounts window_end = run_.scheduler.window_slots();
    line["swa_avail"] = plan.window_slots.free.count();
    line["swa_evict"] = plan.window_slots.cached.count();
    line["swa_avail_end"] = window_end.free.count();
    line["swa_evict_end"] = window_end.cached.count();
  }
  if (has_states_) {
    const sglang::StateCounts states_end = run_.scheduler.state_slots();
    line["state_avail"] = plan.state_slots.free;
    line["state_evict"] = plan.state_slots.cached;
    line["state_avail_end"] = states_end.free;
    line["state_evict_end"] = states_end.cached;
  }
  Json extend = Json::array();
  for (const sglang::ExtendedRequest& request : plan.extended) {
    extend.push_back({request.id, request.prefix.count(), request.tokens.count()});
  }
  const auto put = [&](const char* key, Json list) {
    if (!list.empty()) {
      line[key] = std::move(list);
    }
  };
  put("extend", std::move(extend));
  put("decode", plan.decoded);
  put("retracted", plan.retracted);
  put("preempted", plan.preempted);
  put("aborted", plan.aborted);
  put("finished", finished());
  if (plan.chunked) {
    line["chunked"] = *plan.chunked;
  }
  put("bootstrapped", plan.transfers.bootstrapped);
  put("resumed", plan.transfers.resumed);
  put("preallocated", plan.transfers.preallocated);
  put("arrived", plan.transfers.arrived);
  put("joined", plan.transfers.joined);
  if (role_ == sglang::Role::kPrefill) {
    line["bootstrap_queue"] = run_.scheduler.asking();
    line["inflight_queue"] = run_.scheduler.transferring();
  } else if (role_ == sglang::Role::kDecode) {
    line["prealloc_queue"] = run_.scheduler.asking();
    line["retracted_queue"] = run_.scheduler.parked();
    line["transfer_queue"] = run_.scheduler.transferring();
  }
  return line;
}

std::string Comparison::pool_text() const {
  const sglang::StepPlan& plan = *run_.plan;
  const sglang::PoolCounts end = run_.scheduler.slots();
  std::string text = fmt::format("{},{},{},{}", plan.slots.free.count(), plan.slots.cached.count(),
                                 end.free.count(), end.cached.count());
  if (windowed_) {
    const sglang::PoolCounts window_end = run_.scheduler.window_slots();
    text += fmt::format(",{},{},{},{}", plan.window_slots.free.count(),
                        plan.window_slots.cached.count(), window_end.free.count(),
                        window_end.cached.count());
  }
  if (has_states_) {
    const sglang::StateCounts states_end = run_.scheduler.state_slots();
    text += fmt::format(",{},{},{},{}", plan.state_slots.free, plan.state_slots.cached,
                        states_end.free, states_end.cached);
  }
  return text;
}

std::string Comparison::role_text() const {
  const sglang::TransferPlan& transfers = run_.plan->transfers;
  const sglang::Scheduler& scheduler = run_.scheduler;
  if (role_ == sglang::Role::kPrefill) {
    return fmt::format("|{}|{},{}", fmt::join(transfers.bootstrapped, ","), scheduler.asking(),
                       scheduler.transferring());
  }
  if (role_ == sglang::Role::kDecode) {
    return fmt::format("|{}|{}|{}|{}|{},{},{}", fmt::join(transfers.resumed, ","),
                       fmt::join(transfers.arrived, ","), fmt::join(transfers.preallocated, ","),
                       fmt::join(transfers.joined, ","), scheduler.asking(), scheduler.parked(),
                       scheduler.transferring());
  }
  return "";
}

void Comparison::extend_digest() {
  const sglang::StepPlan& plan = *run_.plan;
  std::vector<std::string> extend;
  for (const sglang::ExtendedRequest& request : plan.extended) {
    extend.push_back(
        fmt::format("{}:{}:{}", request.id, request.prefix.count(), request.tokens.count()));
  }
  std::vector<std::string> ended;
  for (const Json& request : finished()) {
    ended.push_back(fmt::format("{}:{}:{}", request[0].get<std::uint64_t>(),
                                request[1].get<std::string>(), request[2].get<std::int64_t>()));
  }
  digest_.add(fmt::format(
      "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{},{}|{:.6f}{}\n", run_.executed - 1, name_of(plan.kind),
      fmt::join(extend, ","), fmt::join(plan.decoded, ","), fmt::join(plan.retracted, ","),
      fmt::join(plan.preempted, ","), fmt::join(plan.aborted, ","), fmt::join(ended, ","),
      plan.chunked ? fmt::format("{}", *plan.chunked) : "-", pool_text(), run_.scheduler.waiting(),
      run_.scheduler.running(), written_ratio(run_.scheduler.new_token_ratio()), role_text()));
}

void Comparison::count() {
  const sglang::StepPlan& plan = *run_.plan;
  totals_.retract += static_cast<std::int64_t>(plan.retracted.size());
  totals_.preempt += static_cast<std::int64_t>(plan.preempted.size());
  totals_.abort += static_cast<std::int64_t>(plan.aborted.size());
  totals_.finish += static_cast<std::int64_t>(finished().size());
  totals_.computed += plan.prefill_tokens.count();
  totals_.chunks += plan.chunked && !plan.extended.empty() ? 1 : 0;
  Json& kind = kinds_[name_of(plan.kind)];
  kind = kind.is_null() ? 1 : kind.get<std::int64_t>() + 1;
}

std::string Comparison::step(const Json* recorded) {
  run_.step();
  if (run_.plan->error != sglang::EngineError::kNone) {
    return difference("kind", "a living engine", "an engine that stopped with an error");
  }
  extend_digest();
  count();
  if (recorded == nullptr) {
    return "";
  }
  const Json ours = fields();
  std::string digest;
  for (const auto& [field, expected] : recorded->items()) {
    if (ours.contains(field) && ours[field] == expected) {
      continue;
    }
    std::string found =
        difference(field, expected.dump(), ours.contains(field) ? ours[field].dump() : "nothing");
    if (field != "digest") {
      return found;
    }
    digest = std::move(found);  // says less than any other field
  }
  for (const auto& [field, got] : ours.items()) {
    if (!recorded->contains(field)) {
      return difference(field, "nothing", got.dump());
    }
  }
  return digest;
}

std::string Comparison::trailer(const Json& recorded) {
  const Json ours = {{"end", true},
                     {"steps", run_.executed},
                     {"digest", digest_.hex()},
                     {"kinds", kinds_},
                     {"totals",
                      {{"retract", totals_.retract},
                       {"preempt", totals_.preempt},
                       {"abort", totals_.abort},
                       {"finish", totals_.finish},
                       {"cached", run_.scheduler.prefix_hit_tokens().count()},
                       {"computed", totals_.computed},
                       {"chunks", totals_.chunks}}}};
  for (const auto& [field, expected] : recorded.items()) {
    if (!ours.contains(field) || ours[field] != expected) {
      return fmt::format("trailer field {}: expected {}, got {}", field, expected.dump(),
                         ours.contains(field) ? ours[field].dump() : "nothing");
    }
  }
  return "";
}

}  // namespace

std::string check_sglang_recording(std::istream& in, const std::string& path,
                                   const SglangScenario& scenario) {
  constexpr std::int64_t kMaxSteps = 10'000'000;  // idle steps count, so a number could mean hours
  Comparison comparison(scenario);
  std::int64_t number = 1;
  const auto refuse = [&](std::int64_t steps, const std::string& expected) {
    throw ConfigError(
        Problem{path, fmt::format("line {}", number), fmt::format("step {}", steps), expected, {}});
  };
  const auto run_to = [&](std::int64_t steps, const Json* recorded) -> std::string {
    while (comparison.executed() < steps) {
      const bool due = comparison.executed() == steps - 1;
      if (std::string found = comparison.step(due ? recorded : nullptr); !found.empty()) {
        return found;
      }
    }
    return "";
  };
  std::string line;
  while (next_line(in, path, line)) {
    ++number;
    const Json recorded = Json::parse(line, nullptr, false);
    if (!recorded.is_object()) {
      throw ConfigError(Problem{path, fmt::format("line {}", number), "", "a JSON object", {}});
    }
    if (recorded.contains("end") && recorded["end"].is_boolean()) {
      const std::int64_t steps = recorded.value("steps", std::int64_t{0});
      if (steps > kMaxSteps) {
        refuse(steps, fmt::format("at most {} steps", kMaxSteps));
      }
      std::string found = run_to(steps, nullptr);
      return found.empty() ? comparison.trailer(recorded) : found;
    }
    const std::int64_t step = recorded.value("step", std::int64_t{-1});
    if (step < comparison.executed() || step >= kMaxSteps) {
      refuse(step, fmt::format("steps in order, below {}", kMaxSteps));
    }
    if (std::string found = run_to(step + 1, &recorded); !found.empty()) {
      return found;
    }
  }
  throw ConfigError(Problem{path, "end of file", "", "a trailer", "the recording is cut off"});
}

}  // namespace oomcast::golden
