// Recordings of SGLang's scheduler: reading one, and running our scheduler through it.
// Format: README.md beside the recordings.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/engines/sglang/scheduler.hpp"

namespace oomcast::golden {

struct SglangRequest {
  std::int64_t arrival_step = 0;
  sglang::RequestSpec spec;
  std::vector<ContentSegment> prompt;
};

struct SglangScenario {
  std::string name;
  sglang::SchedulerConfig config;
  std::vector<SglangRequest> requests;  // spans in `spec` point into the same element
  std::vector<std::pair<std::int64_t, RequestId>> aborts;  // (step, id)
};

// Throws ConfigError if the header is not one of this format.
SglangScenario read_sglang_scenario(const Json& header, const std::string& path);

// The engine's event loop around a scheduler: one turn a step.
class SglangRun {
 public:
  SglangRun(const SglangScenario& scenario, bool detail);

  void step();
  // Further steps that are certain to be alike, up to the next arrival or abort; performs them.
  std::int64_t jump();
  // Nothing lives, nothing comes.
  [[nodiscard]] bool over() const;

  std::int64_t executed = 0;  // steps so far
  const sglang::StepPlan* plan = nullptr;
  const sglang::StepOutput* output = nullptr;  // null: no result was due in this step
  const sglang::SteadyJump* steady = nullptr;  // of the latest jump
  sglang::Scheduler scheduler;

 private:
  const SglangScenario& scenario_;
  std::vector<std::size_t> by_arrival_;
  std::size_t next_arrival_ = 0;
  std::size_t next_abort_ = 0;
};

// "" if every recorded field and the digest agree, else the first difference. The stream stands
// behind the header.
std::string check_sglang_recording(std::istream& in, const std::string& path,
                                   const SglangScenario& scenario);
// "" if steps without detail and with fast-forward give what detailed single steps give, and no
// slot is lost on the way.
std::string check_sglang_fast_forward(const SglangScenario& scenario);

}  // namespace oomcast::golden
