// Which blocks get hashes, and when.
#include <algorithm>
#include <span>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_kv.hpp"

namespace oomcast::vllm {
namespace {

using kv::BlockId;
using kv::BlockKey;
using kv::kNullBlock;

std::size_t index(std::int64_t position) { return static_cast<std::size_t>(position); }

}  // namespace

// get_mamba_prefill_checkpoint_position in kv_cache_interface.py.
std::int64_t KvManager::state_boundary(std::int64_t tokens, std::int64_t unit) const {
  const std::int64_t limit =
      eagle_drop_ ? tokens : tokens - std::max<std::int64_t>(1, hash_lookahead_);
  const std::int64_t boundary = limit / unit * unit - (eagle_drop_ ? unit : 0);
  return std::max<std::int64_t>(boundary, 0);
}

std::int64_t KvManager::hashed_blocks(const Request& request) const {
  return std::max<std::int64_t>(request.known() - hash_lookahead_, 0) / hash_block_size_;
}

BlockKey KvManager::key_of(const Request& request, std::size_t g, std::int64_t block) const {
  return kv::block_key(request.chain.hash((block + 1) * groups_[g].hashes_per_block - 1), g);
}

BlockKey KvManager::fine_key(const Request& request, std::size_t g, std::int64_t tokens) const {
  return kv::block_key(request.chain.hash(tokens / hash_block_size_ - 1), g);
}

// Blocks [from, to) of the request, none of them known. Lookups of full attention walk from the
// first block on; the others look anywhere.
void KvManager::index_blocks(Request& request, std::size_t g, std::int64_t from, std::int64_t to) {
  if (spans_ && from < to) {
    spans_->insert(request.chain.hashes().subspan(index(from), index(to - from)), from,
                   request.groups[g].spans);
  }
  if (spans_) {
    return;
  }
  const std::vector<BlockId>& blocks = request.groups[g].blocks;
  const std::int64_t step = groups_[g].block_size;
  if (groups_[g].type != KvGroup::Type::kFull) {
    for (std::int64_t i = from; i < to; ++i) {
      pool_.insert(key_of(request, g, i), blocks[index(i)], (i + 1) * step);
    }
    return;
  }
  if (from >= to) {
    return;
  }
  keys_.resize(index(to - from));
  for (std::int64_t i = from; i < to; ++i) {
    keys_[index(i - from)] = key_of(request, g, i);
  }
  kv::PrefixIndex::Before before;
  if (from > 0) {
    before = {blocks[index(from - 1)], key_of(request, g, from - 1)};
  }
  pool_.insert(keys_, std::span(blocks).subspan(index(from), index(to - from)), (from + 1) * step,
               step, before);
}

void KvManager::publish(Request& request) {
  if (!caching_ || request.indexable == kAllIndexable) {
    return;
  }
  request.chain.extend(request.known());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    index_blocks(request, g, request.indexable, request.groups[g].cached);
  }
  request.indexable = kAllIndexable;
}

// The coordinators' cache_blocks: hybrid models hash only what an aligned hit can reach.
void KvManager::cache(Request& request, std::int64_t tokens) {
  if (!caching_) {
    return;
  }
  if (!plain_) {
    request.chain.extend(request.known());
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    std::int64_t cacheable = tokens;
    if (hybrid_ && rules_.aligned_hashing && !partial_hits_) {
      cacheable = tokens / scheduler_block_size_ * scheduler_block_size_;
    }
    if (hybrid_ && rules_.aligned_hashing && group.eagle_drop && cacheable > 0) {
      // A hit matches one block more and then drops it.
      cacheable = std::min(tokens, cacheable + group.block_size);
    }
    const std::int64_t before = request.groups[g].cached;
    cache_group(request, g, cacheable);
    const std::int64_t after = request.groups[g].cached;
    if (group.type == KvGroup::Type::kFull && rules_.mamba_fine_hits &&
        group.block_size != hash_block_size_) {
      cache_full_tail(request, g, cacheable);
    }
    if (group.type != KvGroup::Type::kMamba) {
      continue;
    }
    if (group.align && rules_.mamba_fine_hits) {
      if (const BlockKey key = cache_state_tail(request, g, cacheable); key != 0) {
        hashed_this_step_[g].push_back(key);
      }
    }
    for (std::int64_t i = before; i < after; ++i) {
      const BlockId block = request.groups[g].blocks[index(i)];
      if (block != kNullBlock && pool_.first_key(block) != 0) {
        hashed_this_step_[g].push_back(pool_.first_key(block));
      }
    }
  }
}

void KvManager::cache_group(Request& request, std::size_t g, std::int64_t tokens) {
  const Group& group = groups_[g];
  GroupTable& table = request.groups[g];
  const std::int64_t hashed = hashed_blocks(request) * hash_block_size_;
  const std::int64_t full = std::min(tokens, hashed) / group.block_size;
  if (table.cached >= full) {
    return;
  }
  const std::int64_t indexed = std::min(full, request.indexable);
  if (plain_ && table.cached < indexed) {
    request.chain.extend(indexed * hash_block_size_ + hash_lookahead_);
  }
  if (group.type == KvGroup::Type::kFull) {
    for (std::int64_t i = table.cached; !plain_ && i < indexed; ++i) {
      pool_.forget(table.blocks[index(i)]);  // maybe known by a shorter prefix that ends inside it
    }
    index_blocks(request, g, table.cached, indexed);
  }
  for (std::int64_t i = table.cached; group.type != KvGroup::Type::kFull && i < indexed; ++i) {
    const BlockId block = table.blocks[index(i)];
    if (block == kNullBlock || !reachable(request, group, i)) {
      continue;
    }
    pool_.forget(block);
    index_blocks(request, g, i, i + 1);
  }
  table.cached = full;
}

void KvManager::cache_filled(Request& request, std::int64_t tokens) {
  const std::int64_t filled = tokens / block_size();
  const std::int64_t indexed = std::min(filled, request.indexable);
  request.chain.extend(indexed * block_size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    GroupTable& table = request.groups[g];
    index_blocks(request, g, table.cached, indexed);
    table.cached = filled;
  }
}

// The prompt's last hash boundary, if it lies inside a block.
void KvManager::cache_full_tail(Request& request, std::size_t g, std::int64_t tokens) {
  const Group& group = groups_[g];
  const std::int64_t limit = group.eagle_drop ? request.prompt_len : request.prompt_len - 1;
  const std::int64_t boundary =
      std::min(limit / hash_block_size_, hashed_blocks(request)) * hash_block_size_;
  if (boundary == 0 || boundary > tokens || boundary % group.block_size == 0) {
    return;
  }
  const std::vector<BlockId>& blocks = request.groups[g].blocks;
  if (const std::size_t i = index(boundary / group.block_size); i < blocks.size()) {
    cache_partial(request, blocks[i], g, boundary);
  }
}

// A mamba state at the prompt's last hash boundary: the block is known by it until the request
// writes on, which happens in the block itself while the cache keeps a copy.
BlockKey KvManager::cache_state_tail(Request& request, std::size_t g, std::int64_t tokens) {
  const Group& group = groups_[g];
  GroupTable& table = request.groups[g];
  if (tokens <= 0 || tokens % hash_block_size_ != 0 ||
      tokens != state_boundary(request.prompt_len, hash_block_size_)) {
    return 0;
  }
  const std::int64_t i = div_ceil(tokens, group.block_size) - 1;
  if (i >= static_cast<std::int64_t>(table.blocks.size())) {
    return 0;
  }
  const BlockId block = table.blocks[index(i)];
  if (block == kNullBlock || pool_.first_key_tokens(block) == tokens) {
    return 0;
  }
  cache_partial(request, block, g, tokens);
  if (tokens % group.block_size != 0) {
    table.partial_index = i;
    table.partial_source = block;
    table.cached = i;
  }
  return fine_key(request, g, tokens);
}

void KvManager::cache_partial(Request& request, BlockId block, std::size_t g, std::int64_t tokens) {
  if (block == kNullBlock) {
    return;
  }
  const BlockKey key = fine_key(request, g, tokens);
  if (!pool_.has_key(block, key) && pool_.hashed(block) && pool_.first_key_tokens(block) < tokens) {
    pool_.forget(block);
  }
  pool_.insert(key, block, tokens);
}

// reachable_block_mask: blocks that no aligned hit can use stay unhashed; with a retention interval
// only one tail an interval is kept, and the tails of positions that replays resume at.
bool KvManager::reachable(const Request& request, const Group& group, std::int64_t block) const {
  const bool window = group.type == KvGroup::Type::kSlidingWindow;
  if (!rules_.sparse_hashing || (!window && group.type != KvGroup::Type::kMamba)) {
    return true;
  }
  if (window ? hit_alignment_ % group.block_size != 0 : !retention_) {
    return true;
  }
  const std::int64_t shift = window && group.eagle_drop ? 1 : 0;
  const std::int64_t tail = window ? div_ceil(group.window - 1, group.block_size) + shift : 1;
  const std::int64_t segment = retention_ ? retention_->count() : hit_alignment_;
  if (segment > 0) {
    const std::int64_t per_segment = segment / group.block_size;
    if (window ? tail >= per_segment : per_segment <= 1) {
      return true;
    }
    if (block >= shift && (block - shift) % per_segment >= per_segment - tail) {
      return true;
    }
  }
  if (!retention_) {
    return false;
  }
  const auto kept_for = [&](std::int64_t boundary) {
    const std::int64_t end = boundary / hit_alignment_ * hit_alignment_ / group.block_size + shift;
    return end - tail <= block && block < end;
  };
  const std::int64_t unit = scheduler_block_size_;
  const std::int64_t prompt = request.prompt_len;
  if (eagle_drop_) {
    if (kept_for(std::max<std::int64_t>((prompt - 1) / unit * unit - unit, 0)) ||
        kept_for(std::max<std::int64_t>(prompt / unit * unit - unit, 0))) {
      return true;
    }
  } else if (kept_for(prompt - 1)) {
    return true;
  }
  const std::int64_t shared = request.shared_boundary;
  return shared > 0 &&
         (kept_for(shared) || (group.eagle_drop && kept_for(shared - group.block_size)));
}

}  // namespace oomcast::vllm
