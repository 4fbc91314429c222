#include "sim/kv/block_hash.hpp"

#include <algorithm>

#include "sim/core/digest.hpp"

namespace oomcast::kv {

namespace {

// Of the first `length` tokens of a segment behind what `base` stands for. Bases are spread
// already: an odd factor keeps lengths apart, and its high bits reach the low ones, which tables
// look at.
constexpr std::uint64_t kLengthFactor = 0xd1342543de82ef95ULL;

std::uint64_t times_factor(std::int64_t length) {
  return static_cast<std::uint64_t>(length) * kLengthFactor;
}
std::uint64_t folded(std::uint64_t sum) { return sum ^ (sum >> 32); }

std::uint64_t prefix_hash(std::uint64_t base, std::int64_t length) {
  return folded(base + times_factor(length));
}

}  // namespace

void HashChain::clear() {
  content_.clear();
  hashes_.clear();
  segment_ = 0;
}

void HashChain::append(ContentSegment segment) {
  if (segment.length.count() <= 0) {
    return;
  }
  if (!content_.empty() && content_.back().continues(segment)) {
    content_.back().length += segment.length;
    return;
  }
  if (content_.capacity() == 0) {
    content_.reserve(4);  // a prompt, mostly of one or two segments, and its output
  }
  content_.push_back(segment);
}

void HashChain::enter(std::size_t segment, std::int64_t start, std::uint64_t hash) {
  segment_ = segment;
  start_ = start;
  const ContentSegment& piece = content_[segment];
  base_ = mix64(mix64(hash ^ piece.id) + static_cast<std::uint64_t>(piece.offset));
}

void HashChain::extend(std::int64_t known) {
  const std::int64_t target = std::max<std::int64_t>(known - lookahead_, 0) / block_size_;
  if (target <= blocks()) {
    return;
  }
  if (hashes_.empty()) {
    enter(0, 0, 0);
    hashes_.reserve(static_cast<std::size_t>(target));
  }
  for (std::int64_t end = (blocks() + 1) * block_size_ + lookahead_; blocks() < target;) {
    const bool last = segment_ + 1 == content_.size();
    const std::int64_t length = content_[segment_].length.count();
    if (!last && start_ + length < end) {
      enter(segment_ + 1, start_ + length, prefix_hash(base_, length));
      continue;
    }
    const std::int64_t blocks_here =
        last ? target - blocks()
             : std::min((start_ + length - end) / block_size_ + 1, target - blocks());
    hashes_.resize(hashes_.size() + static_cast<std::size_t>(blocks_here),
                   boost::container::default_init);
    // prefix_hash(base_, end - start_ + i * block_size_); locals, which the hashes cannot overlap.
    std::uint64_t sum = base_ + times_factor(end - start_);
    const std::uint64_t step = times_factor(block_size_);
    std::uint64_t* const hashes = hashes_.data() + hashes_.size() - blocks_here;
    for (std::int64_t i = 0; i < blocks_here; ++i) {
      hashes[i] = folded(sum);
      sum += step;
    }
    end += blocks_here * block_size_;
  }
}

}  // namespace oomcast::kv
