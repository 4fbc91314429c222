// One point of a search: a deployment with some settings changed, started or run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/run/calibration.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"
#include "workloads/recorded.hpp"

namespace oomcast::search {

// A setting and its value: a flag of the engine by its canonical name, or one of kOwnKnobs.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Settings that are no flags: the card, and what the requests do (replays only).
inline constexpr const char* kGpuKnob = "gpu";
inline constexpr const char* kScaleKnob = "rate-scale";
inline constexpr const char* kRateKnob = "request-rate";  // a second, on average
inline constexpr const char* kPromptKnob = "prompt-scale";
inline constexpr const char* kRequestsKnob = "requests";
inline constexpr const char* kClientsKnob = "closed-loop";
inline constexpr const char* kContextKnob = "context-length";  // of the worst case
bool is_workload_knob(std::string_view name);
// Canonical name of any setting. Throws ConfigError, naming the choices.
std::string canonical_knob(const launch::Launch& launch, std::string_view name);

// Ranks that behave alike are one entry.
struct RankFigures {
  int rank = 0;
  int alike = 1;
  Bytes peak;      // device memory in use at most
  Bytes headroom;  // the card's total less that
};

// Of finished requests; times in seconds.
struct ServingFigures {
  std::int64_t requests = 0;  // offered
  std::int64_t finished = 0;
  std::int64_t aborted = 0;  // given up by their clients
  std::int64_t preemptions = 0;
  double makespan = 0;
  double goodput = 0;  // output tokens of finished requests a second
  double ttft_p50 = 0;
  double ttft_p99 = 0;
  double tpot_p50 = 0;
  double tpot_p99 = 0;
  double latency_p50 = 0;
  double latency_p99 = 0;
  Bytes kv_peak;
  Bytes kv_pool;
};

// The times of ServingFigures by name; in columns and files with "_s" behind.
struct ServingTime {
  const char* name;
  double ServingFigures::*figure;
};
inline constexpr std::array<ServingTime, 6> kServingTimes = {
    {{"ttft_p50", &ServingFigures::ttft_p50},
     {"ttft_p99", &ServingFigures::ttft_p99},
     {"tpot_p50", &ServingFigures::tpot_p50},
     {"tpot_p99", &ServingFigures::tpot_p99},
     {"latency_p50", &ServingFigures::latency_p50},
     {"latency_p99", &ServingFigures::latency_p99}}};

struct PointResult {
  OutcomeKind kind = OutcomeKind::kServed;
  std::string phase;
  std::optional<int> rank;
  std::string leaf;  // class whose allocation did not fit
  Bytes short_by;
  std::string message;
  std::optional<std::int64_t> kv_tokens;  // of one replica
  std::optional<std::int64_t> kv_blocks;
  std::optional<double> max_concurrency;
  int gpus = 0;
  int replicas = 1;  // data-parallel ones
  std::vector<RankFigures> ranks;
  std::optional<ServingFigures> serving;

  [[nodiscard]] bool fits() const { return kind == OutcomeKind::kServed; }
  // Of all replicas.
  [[nodiscard]] std::optional<std::int64_t> kv_tokens_total() const {
    return kv_tokens ? std::optional(*kv_tokens * replicas) : std::nullopt;
  }
  // Of the fullest rank.
  [[nodiscard]] Bytes peak() const;
  [[nodiscard]] Bytes headroom() const;

  friend bool operator==(const PointResult&, const PointResult&);
};

// One line of a journal, and back. Reading throws ConfigError.
Json to_json(const PointResult& result);
PointResult point_from_json(const Json& json, const std::string& source);

// What the points of a search have in common. Safe to share between threads.
struct PointBase {
  AnyDeployment deployment;
  std::optional<Calibration> calibration;
  std::shared_ptr<const workloads::RecordedWorkload> workload;  // null: startups alone
  // The worst that can be asked instead: as many requests as run at once, all at time 0, each as
  // long as the model takes (or as kContextKnob says).
  bool worst_case = false;
  const volatile std::sig_atomic_t* stop = nullptr;

  [[nodiscard]] bool replays() const { return workload != nullptr || worst_case; }
};

// Runs points one after the other; what they share is done once. One thread.
class PointRunner {
 public:
  explicit PointRunner(const PointBase& base) : base_(base) {}

  // A setting that the engine refuses is a result: config_rejected.
  PointResult run(const Settings& settings);
  // The same with the whole plan, for fixes. Throws ConfigError for what the engine refuses.
  [[nodiscard]] AnyDeployment resolve(const Settings& settings);

 private:
  [[nodiscard]] std::unique_ptr<workloads::RequestStream> stream_for(
      const Plan& plan, const Settings& settings) const;
  void serve(AnyDeployment deployment, const Settings& settings, PointResult& result);
  // The launch line with these settings. Neighbours differ in few, so it starts from the last one.
  const launch::Launch& launch_with(const Settings& settings);

  const PointBase& base_;
  std::optional<Settings> last_settings_;  // of last_launch_
  launch::Launch last_launch_;
  StartMemo memo_;
};

}  // namespace oomcast::search
