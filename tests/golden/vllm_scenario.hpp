// Recordings of vLLM's scheduler: reading one, and running our scheduler through it.
// Format: README.md beside the recordings.
#pragma once

#include <cstdint>
#include <deque>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/engines/vllm/scheduler.hpp"

namespace oomcast::golden {

// What the workers of a connector do, step by step.
struct TransferScript {
  std::vector<std::int64_t> receive_delays{1};
  std::vector<std::int64_t> send_delays{1};  // kNever: nobody fetches
  std::vector<std::int64_t> load_delays{1};
  std::vector<std::int64_t> store_delays{1};
  std::int64_t lease_steps = 1;

  static constexpr std::int64_t kNever = -1;
};

struct ScenarioRequest {
  std::string id;
  std::int64_t arrival_step = 0;
  std::int64_t abort_step = -1;
  vllm::RequestSpec spec;  // id = position in the file
  std::vector<ContentSegment> prompt;
  std::vector<std::int32_t> accept;
  std::vector<std::int32_t> drafts;
  // With a connector: instead of the script's; whether the receive fails, and how.
  std::optional<std::int64_t> receive_delay;
  std::optional<std::int64_t> send_delay;
  bool receive_fails = false;
  std::vector<std::size_t> bad_blocks;  // indices into the pulled blocks
};

struct Scenario {
  std::string name;
  vllm::SchedulerConfig config;
  TransferScript script;
  Json derived;
  std::optional<std::int64_t> max_steps;
  std::vector<ScenarioRequest> requests;  // spans in `spec` point into the same element
  std::unordered_map<std::string, std::size_t> by_id;
};

// Throws ConfigError if the header is not one of this format.
Scenario read_scenario(const Json& header, const std::string& path);

// The scripted workers: they end each transfer so many steps after it was handed to them.
class ScriptedWorkers {
 public:
  explicit ScriptedWorkers(const Scenario& scenario) : scenario_(scenario) {}

  void start(const vllm::StepTransfers& transfers, std::int64_t step);
  // What is due with the output of a batch of this step, in order of issue.
  const vllm::TransferReport& report(std::int64_t step);
  // Of that report: all that was received, asynchronous loads included.
  [[nodiscard]] const std::vector<vllm::TransferReport::Received>& received() const {
    return received_;
  }

 private:
  struct Pending {
    enum class Kind { kReceive, kSend, kLoad, kJob };
    Kind kind = Kind::kJob;
    std::int64_t due = 0;
    vllm::TransferReport::Received received;  // or the request that is sent or loaded
    vllm::JobId job = 0;
  };
  void receive(const vllm::Receive& receive, std::int64_t step);
  void send(RequestId id, std::int64_t step);

  const Scenario& scenario_;
  std::deque<Pending> pending_;
  std::size_t receives_ = 0;
  std::size_t sends_ = 0;
  vllm::TransferReport report_;
  std::vector<vllm::TransferReport::Received> received_;
};

// The recorded loop around a scheduler.
class ScenarioRun {
 public:
  ScenarioRun(const Scenario& scenario, bool detail);

  // Runs one step; false when the recording ends here.
  bool step();
  // Further steps that are certain to be alike, up to the next arrival or abort; performs them.
  std::int64_t jump();

  std::int64_t executed = 0;  // steps so far
  std::int64_t now = 0;       // step number of the latest step
  std::vector<std::size_t> rejected;
  std::vector<std::size_t> aborted;
  const vllm::StepPlan* plan = nullptr;
  const vllm::StepOutput* output = nullptr;      // null: no output was due in this step
  const vllm::SteadyJump* steady = nullptr;      // of the latest jump
  const vllm::TransferReport* report = nullptr;  // what came with the output
  vllm::TransferCounts while_running;            // with a connector: while the step executes
  ScriptedWorkers workers;
  vllm::Scheduler scheduler;

 private:
  void arrivals_and_aborts();

  const Scenario& scenario_;
  std::vector<std::size_t> by_arrival_;
  std::vector<std::size_t> by_abort_;
  std::size_t next_arrival_ = 0;
  std::size_t next_abort_ = 0;
  std::int64_t next_step_ = 0;
  std::deque<std::int64_t> batch_steps_;  // of the batches in flight
};

// "" if every recorded field and both digests agree, else the first difference. The stream stands
// behind the header.
std::string check_recording(std::istream& in, const std::string& path, const Scenario& scenario);
// "" if single steps without detail and with fast-forward give what detailed steps give.
std::string check_fast_forward(const Scenario& scenario);

}  // namespace oomcast::golden
