// Copies between card and host that the prefix tree asked for, as jobs of the caller.
#include "sim/core/error.hpp"
#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

// All that was queued goes as one copy, and is over together.
std::optional<HostCopy> Scheduler::Impl::begin_copy(CopyBatch batch) {
  if (batch.nodes.empty()) {
    return std::nullopt;
  }
  const HostCopy copy{next_copy_++, Tokens{batch.tokens}};
  copies_[copy.job] = std::move(batch.nodes);
  return copy;
}

// What it held can be evicted again, so somebody may be let in now.
bool Scheduler::Impl::copy_done(std::int64_t job) {
  const auto found = copies_.find(job);
  if (found == copies_.end()) {
    return false;
  }
  idle_rounds_ = 0;
  for (const NodeCopy& copy : found->second) {
    kv_.copy_over(copy);
  }
  copies_.erase(found);
  return true;
}

}  // namespace oomcast::sglang
