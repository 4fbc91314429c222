// The last calls that a run made of the allocator, kept as the steps that made them: since the
// allocator is a value, running those steps again from a copy gives the very calls.
//
// Two checkpoints bound the memory: steps go to the newer, and when it holds enough calls it
// becomes the older.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/engines/vllm/startup.hpp"
#include "sim/run/allocator_record.hpp"
#include "sim/run/step_memory.hpp"
#include "sim/run/step_player.hpp"

namespace oomcast {

class StepHistory {
 public:
  // Calls of the serving that a history shows at most.
  static constexpr std::size_t kMostEvents = std::size_t{1} << 14;

  using Now = std::function<const allocator::CachingAllocator&()>;

  explicit StepHistory(const allocator::CachingAllocator& start);

  // Steps that made `events` calls each have run; now() is what they left, and is asked for rarely.
  void add(const StepRun& steps, std::size_t events, const Now& now);

  // Runs the startup again (`blocks` as it came to) and the steps kept, and writes down the calls.
  // `end`: the allocator as the run left it.
  [[nodiscard]] MemoryHistory replay(const vllm::Deployment& deployment, int stage, Blocks blocks,
                                     StepPlayer& player,
                                     const allocator::CachingAllocator& end) const;

 private:
  struct Kept {
    StepRun run;
    std::size_t events = 0;  // of each step
  };
  struct Part {
    std::shared_ptr<const allocator::CachingAllocator> start;
    std::vector<Kept> runs;
    std::size_t events = 0;
  };

  std::uint64_t first_;  // digest of the state at the start
  Part older_;
  Part newer_;
};

}  // namespace oomcast
