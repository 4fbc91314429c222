// Fast-forward for requests that only decode.
//
// The lane is a prefix of the running list: requests that compute exactly one token in every step
// until they end. Nothing about them is touched in a step but at block boundaries and at the end,
// which two calendars know: members by the step (modulo the block size) at which they need a block,
// and by their last step. Before step s a member has computed s + lane_offset tokens; everything
// else follows from that.
//
// What the lane assumes of each member, before schedule() of step s with one token a step:
//   depth 1   computed = known - 1, nothing in flight
//   depth 2   computed = known, one token in flight, one placeholder (async scheduling); before its
//             first step as a member that token is the one after its prompt, which is in flight
// A member's last scheduled step is the one whose output is its last token. From then until that
// output is applied it drains: it runs, but is not scheduled.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "sim/engines/vllm/scheduler_request.hpp"

namespace oomcast::vllm {

class Lane {
 public:
  struct Member {
    std::uint64_t order = 0;
    Slot slot = kNoSlot;
  };
  struct End {
    std::int64_t step = 0;
    std::uint64_t order = 0;
    Slot slot = kNoSlot;
  };

  void set_block_size(std::int64_t block_size) {
    buckets_.resize(static_cast<std::size_t>(block_size));
    mask_ = std::has_single_bit(buckets_.size()) ? buckets_.size() - 1 : 0;
  }

  [[nodiscard]] std::int64_t size() const { return size_; }
  // Sum over members of computed tokens before `step`.
  [[nodiscard]] std::int64_t computed(std::int64_t step) const { return offsets_ + size_ * step; }
  // Members whose computed tokens are a multiple of the block size before `step`, in running order.
  [[nodiscard]] const std::vector<Member>& at_boundary(std::int64_t step) const {
    const auto number = static_cast<std::size_t>(step);
    return buckets_[mask_ != 0 ? number & mask_ : number % buckets_.size()];
  }
  // Members with blocks left that others can hit.
  [[nodiscard]] std::int64_t indexable() const { return indexable_; }
  [[nodiscard]] bool has_end() const { return !ends_.empty(); }
  [[nodiscard]] const End& next_end() const { return ends_.front(); }

  void join(const Request& request, Slot slot, std::int64_t last_step, bool indexable);
  // Takes the member out of the boundary calendar and the sums; its end stays in the calendar.
  void leave(const Request& request, bool indexable);
  void pop_end();
  void clear();

 private:
  [[nodiscard]] std::vector<Member>& bucket_of(const Request& request);

  std::vector<std::vector<Member>> buckets_;
  std::size_t mask_ = 0;   // in place of a division where the block size is a power of 2
  std::vector<End> ends_;  // heap, earliest (step, order) first
  std::int64_t size_ = 0;
  std::int64_t offsets_ = 0;
  std::int64_t indexable_ = 0;
};

}  // namespace oomcast::vllm
