// Fast-forward against single steps over a recorded scenario.
#include <fmt/format.h>

#include "tests/golden/sglang_scenario.hpp"

namespace oomcast::golden {
namespace {

class SideBySide {
 public:
  explicit SideBySide(const SglangScenario& scenario)
      : slow_(scenario, true), fast_(scenario, false) {}

  std::string run();

 private:
  // Both take a step, then the fast one jumps and the slow one follows step by step.
  std::string step();
  std::string follow(std::int64_t steps);
  [[nodiscard]] std::string differ(const char* what, auto expected, auto got) const {
    return fmt::format("step {} {}: expected {}, got {}", slow_.executed - 1, what, expected, got);
  }

  SglangRun slow_;
  SglangRun fast_;
};

std::string SideBySide::step() {
  slow_.step();
  fast_.step();
  const sglang::StepPlan& slow = *slow_.plan;
  const sglang::StepPlan& fast = *fast_.plan;
  if (slow.tokens != fast.tokens || slow.decode_context != fast.decode_context) {
    return differ("tokens", slow.tokens.count(), fast.tokens.count());
  }
  if (slow.retracted != fast.retracted || slow.preempted != fast.preempted) {
    return differ("retracted", slow.retracted.size(), fast.retracted.size());
  }
  if (slow_.output != nullptr && slow_.output->sampled != fast_.output->sampled) {
    return differ("sampled", slow_.output->sampled.count(), fast_.output->sampled.count());
  }
  slow_.scheduler.check_conservation();
  return slow_.scheduler.state_digest() == fast_.scheduler.state_digest()
             ? ""
             : differ("state", "one state", "another");
}

std::string SideBySide::follow(std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i) {
    slow_.step();
    const std::int64_t context =
        fast_.steady->first_context.count() + i * fast_.steady->decode_requests;
    if (slow_.plan->kind != sglang::Kind::kDecode ||
        slow_.plan->decode_context.count() != context ||
        (slow_.output != nullptr && !slow_.output->finished.empty())) {
      return differ("steady step", context, slow_.plan->decode_context.count());
    }
  }
  if (slow_.plan->slots.free != fast_.steady->last.free) {
    return differ("free", slow_.plan->slots.free.count(), fast_.steady->last.free.count());
  }
  return slow_.scheduler.state_digest() == fast_.scheduler.state_digest()
             ? ""
             : differ("state after steady steps", "one state", "another");
}

std::string SideBySide::run() {
  constexpr std::int64_t kMaxSteps = 20'000;  // a request that never fits would run for ever
  while (slow_.executed < kMaxSteps && !slow_.over()) {
    if (std::string found = step(); !found.empty()) {
      return found;
    }
    if (const std::int64_t steps = fast_.jump(); steps > 0) {
      if (std::string found = follow(steps); !found.empty()) {
        return found;
      }
    }
  }
  return "";
}

}  // namespace

std::string check_sglang_fast_forward(const SglangScenario& scenario) {
  return SideBySide(scenario).run();
}

}  // namespace oomcast::golden
