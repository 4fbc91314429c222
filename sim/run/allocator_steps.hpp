// Steps call by call on PyTorch's allocator, exact to the address.
//
// A step begins and ends with nothing of its own allocated, so a step that asks nothing of the
// driver leaves the allocator as it found it: free blocks join again. Other steps lead to a state
// that is recognised by its digest. What a step shows and where it leads is remembered by state,
// way of running and shape, so that steady decode costs a lookup; both the states and what is
// remembered are bounded, and forgotten together when they grow too many.
#pragma once

#include <tsl/robin_map.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/run/step_history.hpp"
#include "sim/run/step_memory.hpp"
#include "sim/run/step_player.hpp"

namespace oomcast {

class AllocatorSteps final : public StepMemory {
 public:
  AllocatorSteps(const vllm::Deployment& deployment, vllm::StageState& stage, Blocks blocks,
                 bool remembers);

  // After an outcome the books show the moment when memory ran out.
  std::optional<Outcome> run(const StepRun& steps) override;
  [[nodiscard]] bool repeats(Tokens tokens, std::int64_t rows) const override;
  [[nodiscard]] std::size_t moments() const override { return shown_count_; }
  void show(std::size_t moment, TimelineRow& row) const override;
  [[nodiscard]] bool shows_failure() const override { return true; }
  void finish(RankRecord& record) override;

 private:
  // Of the allocator's counters, what a step adds.
  struct Counts {
    std::int64_t retries = 0;
    std::int64_t device_allocs = 0;
    std::int64_t device_frees = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  struct Effect {
    StepPlayer::Played played;
    std::uint32_t next = 0;  // state
    Counts counts;
  };
  struct State {
    std::uint64_t digest = 0;
    std::unique_ptr<const allocator::CachingAllocator> allocator;
  };
  // State, tokens, rows; the way of running follows from the shape.
  struct Key {
    std::uint32_t state = 0;
    std::int64_t tokens = 0;
    std::int64_t rows = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  // The memory of a timeline row.
  struct Shown {
    LeafBytes device{};
    MemoryViews views;
    SegmentCounts torch;
  };

  [[nodiscard]] std::optional<std::uint32_t> find(Tokens tokens, std::int64_t rows) const;
  Effect play(const StepRun& steps);
  void take(const Effect& effect, const StepRun& steps, std::optional<std::uint32_t> place);
  std::uint32_t state_now();
  void forget();
  // The allocator in the state of the run.
  const allocator::CachingAllocator& torch();
  void book(const StepMoment& moment, SimTime at);
  [[nodiscard]] Shown shown_now() const;
  [[nodiscard]] Outcome out_of_memory(const StepRun& steps, std::size_t place);

  const vllm::Deployment& deployment_;
  vllm::StageState& stage_;
  const Blocks blocks_;
  bool remembers_;
  StepPlayer player_;
  allocator::CachingAllocator torch_;
  std::uint32_t torch_state_ = 0;  // where it stands; not where the run does, after a lookup
  std::uint32_t state_ = 0;        // where the run stands
  std::vector<State> states_;
  std::vector<Effect> effects_;
  tsl::robin_map<Key, std::uint32_t, KeyHash> known_;  // into effects_

  StepMoment booked_;
  std::array<Shown, 2> shown_;
  std::size_t shown_count_ = 1;
  std::optional<std::uint32_t> shown_effect_;  // whose moments are shown, if it is remembered
  Counts counts_;
  Bytes highest_reserved_;
  SimTime highest_reserved_at_;
  std::optional<AllocatorRecord::Failure> failure_;
  StepHistory history_;
};

}  // namespace oomcast
