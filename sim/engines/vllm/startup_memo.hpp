// What the startups of one search share. A sweep starts thousands of deployments that differ in a
// flag or two; most of what a startup does does not depend on them.
//
//   - Up to the KV budget nothing looks at some flags (is_budget_flag), so deployments that differ
//     in those alone have measured the same.
//   - Graph captures run on a stream and in a pool of their own: what they take follows from their
//     programs and sizes, whatever else is on the card, as long as memory does not run out. (Free
//     blocks are ordered by the age of their segment, never across streams and pools.)
//
// With and without a memo a startup ends in the same figures; only the allocator of a remembered
// capture knows sums instead of blocks, so that such a startup is not for replays.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/graph_capture.hpp"
#include "sim/engines/vllm/stage_state.hpp"

namespace oomcast::vllm {

// Read for the KV budget and the number of blocks, not before.
bool is_budget_flag(std::string_view flag);

// A stage before its KV budget, or where it failed on the way there.
struct MeasuredStage {
  StageState state;
  std::shared_ptr<const CapturePrograms> programs;  // null: no graph so far
  Bytes free_at_snapshot;
  Bytes allocated_at_profile;
  Bytes highest_allocated;
  Bytes left_by_trial;       // device memory that the trial capture holds on to
  Bytes allocated_by_trial;  // of it, tensors
  Outcome outcome;
};

// For deployments of one model, card and set of assumptions. One thread.
class StartupMemo {
 public:
  // nullptr if no deployment alike was measured. Valid until the next keep().
  [[nodiscard]] const MeasuredStage* measured(const Deployment& deployment, int stage) const;
  void keep(const Deployment& deployment, MeasuredStage stage);

  // What the captures of `programs` do on an empty card; simulated the first time. nullptr where
  // PyTorch's settings make that depend on how full the card is.
  const CaptureEffects* effects(const Deployment& deployment, const CapturePrograms& programs);

 private:
  // Points of a grid come with the flags of the budget varying fastest, so few stages need keeping.
  static constexpr std::size_t kMostStages = 16;

  struct Kept {
    std::uint64_t key = 0;
    MeasuredStage stage;
  };
  std::vector<Kept> stages_;  // newest last
  std::map<std::uint64_t, CaptureEffects> effects_;
};

}  // namespace oomcast::vllm
