// The memory of one rank while it serves: ledger, peaks and timeline, fed with the shape of each
// step.
#pragma once

#include <optional>
#include <string_view>

#include "sim/engines/outcome.hpp"
#include "sim/engines/vllm/startup.hpp"
#include "sim/engines/vllm/step_peaks.hpp"
#include "sim/run/record.hpp"
#include "sim/run/timeline.hpp"

namespace oomcast {

// What a timeline row says besides memory.
struct ServingCounts {
  Blocks kv_used;
  Blocks kv_cached;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t preemptions = 0;
};

class RankBooks {
 public:
  RankBooks(const vllm::Deployment& deployment, vllm::StageState stage);

  // Posts the tensors of a step over `tokens` tokens with `rows` logit rows. Returns the outcome
  // if the card has no room for them; the books then show the moment before.
  std::optional<Outcome> run_step(SimTime at, Tokens tokens, std::int64_t rows);
  // A row of the timeline for the step posted last.
  void sample(SimTime at, const ServingCounts& counts);

  // End of the bucket of `at`: until then one first and one last row of like steps are enough.
  [[nodiscard]] SimTime bucket_end(SimTime at) const { return timeline_.bucket_end(at); }
  [[nodiscard]] Bytes block_bytes() const { return block_bytes_; }
  [[nodiscard]] Bytes pool_bytes() const;
  // Recounts the books and hands over what was recorded.
  RankRecord finish(int first_rank, int alike) const;

 private:
  const vllm::Deployment* deployment_;
  vllm::StageState stage_;
  vllm::StepPeaks step_peaks_;
  Bytes block_bytes_;
  Timeline timeline_;
  vllm::StepPeaks::Sizes live_{};
  Tokens step_tokens_;
};

}  // namespace oomcast
