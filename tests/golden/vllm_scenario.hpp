// Recordings of vLLM's scheduler: reading one, and running our scheduler through it.
// Format: README.md beside the recordings.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/engines/vllm/scheduler.hpp"

namespace oomcast::golden {

struct ScenarioRequest {
  std::string id;
  std::int64_t arrival_step = 0;
  std::int64_t abort_step = -1;
  vllm::RequestSpec spec;  // id = position in the file
  std::vector<ContentSegment> prompt;
  std::vector<std::int32_t> accept;
  std::vector<std::int32_t> drafts;
};

struct Scenario {
  std::string name;
  vllm::SchedulerConfig config;
  Json derived;
  std::optional<std::int64_t> max_steps;
  std::vector<ScenarioRequest> requests;  // spans in `spec` point into the same element
  std::unordered_map<std::string, std::size_t> by_id;
};

// Throws ConfigError if the header is not one of this format; `unsupported` is set instead for a
// scenario that this scheduler does not cover.
Scenario read_scenario(const Json& header, const std::string& path, std::string& unsupported);

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
  const vllm::StepOutput* output = nullptr;  // null: no output was due in this step
  const vllm::SteadyJump* steady = nullptr;  // of the latest jump
  vllm::Scheduler scheduler;

 private:
  void arrivals_and_aborts();

  const Scenario& scenario_;
  std::vector<std::size_t> by_arrival_;
  std::vector<std::size_t> by_abort_;
  std::size_t next_arrival_ = 0;
  std::size_t next_abort_ = 0;
  std::int64_t next_step_ = 0;
};

// "" if every recorded field and both digests agree, else the first difference. The stream stands
// behind the header.
std::string check_recording(std::istream& in, const std::string& path, const Scenario& scenario);
// "" if single steps without detail and with fast-forward give what detailed steps give.
std::string check_fast_forward(const Scenario& scenario);

}  // namespace oomcast::golden
