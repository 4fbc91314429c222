#include "sim/kv/block_hash.hpp"

#include <algorithm>

#include "sim/core/digest.hpp"

namespace oomcast::kv {

BlockKey block_key(std::uint64_t hash, std::size_t group) {
  const BlockKey key = mix64(hash + group);
  return key != 0 ? key : 1;
}

void HashChain::clear() {
  content_.clear();
  hashes_.clear();
  next_ = Place{};
}

void HashChain::append(ContentSegment segment) {
  if (segment.length.count() > 0) {
    content_.push_back(segment);
  }
}

std::uint64_t HashChain::mix_runs(std::uint64_t hash, Place& place, std::int64_t count) const {
  while (count > 0) {
    const ContentSegment& segment = content_[place.segment];
    const bool last = place.segment + 1 == content_.size();
    const std::int64_t left = last ? count : segment.length.count() - place.offset;
    const std::int64_t run = std::min(left, count);
    hash = mix64(mix64(hash ^ segment.id) + static_cast<std::uint64_t>(place.offset));
    hash = mix64(hash + static_cast<std::uint64_t>(run));
    count -= run;
    place.offset += run;
    if (!last && place.offset == segment.length.count()) {
      ++place.segment;
      place.offset = 0;
    }
  }
  return hash;
}

void HashChain::extend(std::int64_t known) {
  while ((blocks() + 1) * block_size_ + lookahead_ <= known) {
    std::uint64_t hash = mix_runs(hashes_.empty() ? 0 : hashes_.back(), next_, block_size_);
    if (lookahead_ > 0) {
      Place ahead = next_;
      hash = mix_runs(hash, ahead, lookahead_);
    }
    hashes_.push_back(hash);
  }
}

}  // namespace oomcast::kv
