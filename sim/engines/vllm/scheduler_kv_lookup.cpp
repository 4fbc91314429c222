// The longest cached prefix that every group can serve.
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_kv.hpp"

namespace oomcast::vllm {
namespace {

using kv::BlockId;
using kv::kNullBlock;

std::size_t index(std::int64_t position) { return static_cast<std::size_t>(position); }

}  // namespace

const PrefixHit& KvManager::find_hit(Request& request) {
  hit_.clear();
  if (!caching_ || request.indexable == 0) {
    return hit_;  // of what nobody shares nothing can be known
  }
  // The last token is always computed: its logits are needed.
  std::int64_t longest = request.known() - 1;
  if (request.indexable != kAllIndexable) {
    longest = std::min(longest, request.indexable * hash_block_size_);
    request.chain.extend(std::min(request.known(), longest + hash_block_size_ + hash_lookahead_));
  } else {
    request.chain.extend(request.known());
  }
  if (spans_) {
    lookup_spans(request, longest);
  } else if (hybrid_) {
    lookup_hybrid(request, longest);
  } else {
    hit_.tokens = lookup(request, families_.front(), longest, families_.front().eagle_drop);
  }
  return hit_;
}

void KvManager::lookup_spans(const Request& request, std::int64_t max_length) {
  const auto hashes = request.chain.hashes();
  const std::int64_t most = max_length / block_size();
  spans_->find(hashes.first(std::min(index(most), hashes.size())), hit_.spans);
  if (families_.front().eagle_drop && hit_.spans.blocks > 0) {
    hit_.spans.keep(hit_.spans.blocks - 1);
  }
  hit_.tokens = hit_.spans.blocks * block_size();
}

// HybridKVCacheCoordinator.find_longest_cache_hit: every family shortens the candidate until all
// agree.
void KvManager::lookup_hybrid(const Request& request, std::int64_t max_length) {
  const bool simple = families_.size() == 2 &&
                      groups_[families_.front().members.front()].type == KvGroup::Type::kFull;
  std::int64_t agreed = max_length;
  std::int64_t longest = 0;
  for (Family& family : families_) {
    family.found = -1;
    family.verified = false;
  }
  while (true) {
    std::int64_t current = agreed;
    for (Family& family : families_) {
      const Group& group = groups_[family.members.front()];
      if (group.type == KvGroup::Type::kFull && family.found >= 0) {
        current = std::min(current, family.found);  // a shorter prefix of a cached one is cached
        continue;
      }
      const bool drop = family.eagle_drop && !(rules_.eagle_verified_once && family.verified);
      std::int64_t length = current;
      if (drop && rules_.eagle_verified_once && group.type != KvGroup::Type::kMamba) {
        const bool fine = partial_hits_ && group.block_size > hash_block_size_ &&
                          group.type == KvGroup::Type::kFull;
        length = std::min(current + (fine ? hash_block_size_ : group.block_size),
                          request.chain.blocks() * hash_block_size_);
      }
      const std::int64_t found = lookup(request, family, length, drop);
      if (drop) {
        family.verified = true;
      } else if (found < current) {
        for (Family& other : families_) {
          other.verified = false;
        }
      }
      current = found;
      family.found = found;
      longest = std::max(longest, current);
    }
    if (current >= agreed) {
      break;
    }
    agreed = current;
    if (simple) {
      break;
    }
  }
  for (const Family& family : families_) {
    const Group& group = groups_[family.members.front()];
    if (group.type == KvGroup::Type::kFull) {
      for (const std::size_t member : family.members) {
        std::vector<BlockId>& blocks = hit_.blocks[member];
        blocks.resize(std::min(blocks.size(), index(div_ceil(agreed, group.block_size))));
      }
    }
  }
  hit_.tokens = agreed;
  hit_.shared_boundary = longest > agreed ? longest : 0;
}

std::int64_t KvManager::lookup(const Request& request, const Family& family,
                               std::int64_t max_length, bool drop) {
  for (const std::size_t member : family.members) {
    hit_.blocks[member].clear();
  }
  switch (groups_[family.members.front()].type) {
    case KvGroup::Type::kFull:
      return lookup_full(request, family, max_length, drop);
    case KvGroup::Type::kSlidingWindow:
      return lookup_window(request, family, max_length, drop);
    case KvGroup::Type::kChunkedLocal:
      return lookup_chunked(request, family, max_length);
    case KvGroup::Type::kMamba:
      return lookup_mamba(request, family, max_length);
  }
  return 0;
}

bool KvManager::cached_everywhere(const Request& request, const Family& family,
                                  std::int64_t hash_index) {
  found_.clear();
  if (hash_index >= request.chain.blocks()) {
    return false;
  }
  for (const std::size_t member : family.members) {
    const BlockId block = pool_.find(kv::block_key(request.chain.hash(hash_index), member));
    if (block == kNullBlock) {
      return false;
    }
    found_.push_back(block);
  }
  return true;
}

// The same where the walk of the cursors goes on.
bool KvManager::follows_everywhere(const Request& request, const Family& family,
                                   std::int64_t hash_index) {
  found_.clear();
  if (hash_index >= request.chain.blocks()) {
    return false;
  }
  for (std::size_t m = 0; m < family.members.size(); ++m) {
    const BlockId block =
        pool_.next(cursors_[m], kv::block_key(request.chain.hash(hash_index), family.members[m]));
    if (block == kNullBlock) {
      return false;
    }
    found_.push_back(block);
  }
  return true;
}

std::int64_t KvManager::lookup_full(const Request& request, const Family& family,
                                    std::int64_t max_length, bool drop) {
  const Group& group = groups_[family.members.front()];
  const auto append = [&] {
    for (std::size_t m = 0; m < family.members.size(); ++m) {
      hit_.blocks[family.members[m]].push_back(found_[m]);
    }
  };
  std::int64_t blocks = 0;
  cursors_.assign(family.members.size(), {});
  while (blocks < max_length / group.block_size &&
         follows_everywhere(request, family, (blocks + 1) * group.hashes_per_block - 1)) {
    append();
    ++blocks;
  }
  std::int64_t tokens = blocks * group.block_size;
  const bool fine = hit_alignment_ < group.block_size && group.block_size % hit_alignment_ == 0;
  if (fine) {
    // Into the first block that is not cached whole, the longest known prefix of it.
    const std::int64_t first = blocks * group.hashes_per_block;
    const std::int64_t end = std::min(
        {first + group.hashes_per_block - 1, max_length / hit_alignment_, request.chain.blocks()});
    for (std::int64_t i = end - 1; i >= first; --i) {
      if (cached_everywhere(request, family, i)) {
        append();
        tokens = (i + 1) * hit_alignment_;
        break;
      }
    }
  }
  if (drop && tokens > 0) {
    tokens -= std::min(hit_alignment_, group.block_size);
  }
  tokens -= tokens % hit_alignment_;
  for (const std::size_t member : family.members) {
    hit_.blocks[member].resize(index(div_ceil(tokens, group.block_size)));
  }
  return tokens;
}

// From the right: enough contiguous blocks to fill the window; else the run at the very start.
std::int64_t KvManager::lookup_window(const Request& request, const Family& family,
                                      std::int64_t max_length, bool drop) {
  const Group& group = groups_[family.members.front()];
  const std::int64_t needed = div_ceil(group.window - 1, group.block_size) + (drop ? 1 : 0);
  const bool aligned = group.block_size == hit_alignment_;
  const std::int64_t blocks = max_length / group.block_size;
  for (const std::size_t member : family.members) {
    hit_.blocks[member].assign(index(blocks), kNullBlock);
  }
  const auto resize = [&](std::int64_t count) {
    for (const std::size_t member : family.members) {
      hit_.blocks[member].resize(index(count));
    }
    return count;
  };
  std::int64_t run = 0;
  std::int64_t end = -1;
  for (std::int64_t i = blocks - 1; i >= 0; --i) {
    if (!cached_everywhere(request, family, (i + 1) * group.hashes_per_block - 1)) {
      run = 0;
      continue;
    }
    if (run == 0 && !aligned) {
      const std::int64_t kept = drop && rules_.eagle_aligned_after_drop ? i : i + 1;
      if (kept * group.block_size % hit_alignment_ != 0) {
        continue;
      }
    }
    for (std::size_t m = 0; m < family.members.size(); ++m) {
      hit_.blocks[family.members[m]][index(i)] = found_[m];
    }
    if (++run >= needed) {
      end = i + run;
      break;
    }
  }
  std::int64_t count = end >= 0 ? end : run;
  const auto align = [&] {
    while (!aligned && count * group.block_size % hit_alignment_ != 0) {
      --count;
    }
  };
  if (end < 0) {
    align();
  }
  if (drop && count > 0) {
    --count;
    align();
  }
  return resize(count) * group.block_size;
}

// Whole chunks before the current one count as computed without any block.
std::int64_t KvManager::lookup_chunked(const Request& request, const Family& family,
                                       std::int64_t max_length) {
  const Group& group = groups_[family.members.front()];
  const std::int64_t start = max_length / group.window * group.window / group.block_size;
  for (const std::size_t member : family.members) {
    hit_.blocks[member].assign(index(start), kNullBlock);
  }
  std::int64_t blocks = start;
  while (blocks < max_length / group.block_size &&
         cached_everywhere(request, family, (blocks + 1) * group.hashes_per_block - 1)) {
    for (std::size_t m = 0; m < family.members.size(); ++m) {
      hit_.blocks[family.members[m]].push_back(found_[m]);
    }
    ++blocks;
  }
  return blocks * group.block_size;
}

// The rightmost cached state is all that is needed.
std::int64_t KvManager::lookup_mamba(const Request& request, const Family& family,
                                     std::int64_t max_length) {
  const Group& group = groups_[family.members.front()];
  const bool fine = hit_alignment_ < group.block_size && group.block_size % hit_alignment_ == 0;
  const std::int64_t unit = fine ? hit_alignment_ : group.block_size;
  const std::int64_t hashes_per_unit = fine ? 1 : group.hashes_per_block;
  std::int64_t units = max_length / unit;
  if (fine) {
    units = std::min(units, request.chain.blocks());
  }
  for (std::int64_t i = units - 1; i >= 0; --i) {
    if (!cached_everywhere(request, family, (i + 1) * hashes_per_unit - 1) ||
        (i + 1) * unit % hit_alignment_ != 0) {
      continue;
    }
    const std::int64_t block = fine ? i / group.hashes_per_block : i;
    for (std::size_t m = 0; m < family.members.size(); ++m) {
      std::vector<BlockId>& blocks = hit_.blocks[family.members[m]];
      blocks.assign(index(block), kNullBlock);
      blocks.push_back(found_[m]);
    }
    return (i + 1) * unit;
  }
  return 0;
}

}  // namespace oomcast::vllm
