#include "sim/engines/vllm/scheduler_kv.hpp"

#include <algorithm>
#include <numeric>

#include "sim/core/error.hpp"

namespace oomcast::vllm {
namespace {

using kv::BlockId;
using kv::BlockPool;
using kv::kNullBlock;

std::size_t index(std::int64_t position) { return static_cast<std::size_t>(position); }
std::int64_t size(const std::vector<BlockId>& blocks) {
  return static_cast<std::int64_t>(blocks.size());
}

const std::vector<BlockId>& hit_of(const PrefixHit* hit, std::size_t group) {
  static const std::vector<BlockId> none;
  return hit == nullptr ? none : hit->blocks[group];
}

bool keeps_spans(const SchedulerConfig& config) {
  return config.groups.size() == 1 && config.groups.front().type == KvGroup::Type::kFull &&
         !config.connector;
}

bool unhashed_first(const SchedulerConfig& config) {
  return config.enable_prefix_caching ? config.rules.unhashed_freed_first
                                      : config.rules.uncached_pool_freed_first;
}

bool same_spec(KvGroup left, const KvGroup& right) {
  left.eagle = right.eagle;  // where the drafter lives is not part of the spec
  return left == right;
}

}  // namespace

KvManager::KvManager(const SchedulerConfig& config)
    : rules_(config.rules),
      caching_(config.enable_prefix_caching),
      max_model_len_(config.max_model_len.count()),
      retention_(config.prefix_cache_retention_interval),
      pool_(keeps_spans(config) ? 1 : config.num_gpu_blocks.count(), unhashed_first(config)) {
  if (keeps_spans(config)) {
    spans_.emplace(config.num_gpu_blocks.count(), unhashed_first(config));
  }
  const bool eagle = config.spec.method == SpecDecode::Method::kEagle;
  // Whoever fills blocks by connector cannot know the token behind them.
  hash_lookahead_ = eagle && caching_ && !config.connector && rules_.lookahead_hashes &&
                            config.spec.lookahead_block_hashes
                        ? 1
                        : 0;
  eagle_drop_ = eagle && hash_lookahead_ == 0;
  watermark_blocks_ = static_cast<std::int64_t>(config.watermark *
                                                static_cast<double>(config.num_gpu_blocks.count()));
  build_groups(config);
  build_families(config);
  hit_.blocks.resize(groups_.size());
  hashed_this_step_.resize(groups_.size());
  copies_.resize(groups_.size());
}

// Sizes: resolve_kv_cache_block_sizes and partial_hash_hits_enabled in kv_cache_utils.py; caps:
// max_admission_blocks_per_request in kv_cache_interface.py.
void KvManager::build_groups(const SchedulerConfig& config) {
  std::int64_t common = 0;
  std::int64_t multiple = 1;
  bool states_at_end = false;  // mamba groups that hold one state only
  const std::int64_t batches = rules_.window_freed_by_processed ? pipeline_depth(config) : 1;
  const std::int64_t in_flight = batches * config.max_num_batched_tokens.count();
  for (const KvGroup& spec : config.groups) {
    Group group;
    group.type = spec.type;
    group.block_size = spec.block_size.count();
    group.window = spec.window.count();
    group.speculative_blocks = spec.speculative_blocks;
    group.align =
        spec.type == KvGroup::Type::kMamba && spec.mamba_mode == KvGroup::MambaMode::kAlign;
    states_at_end |= spec.type == KvGroup::Type::kMamba && !group.align;
    if (spec.type == KvGroup::Type::kSlidingWindow) {
      group.admission_cap =
          div_ceil(std::min(group.window - 1 + in_flight, max_model_len_), group.block_size) + 1;
    } else if (spec.type == KvGroup::Type::kChunkedLocal) {
      group.admission_cap =
          div_ceil(std::min(group.window + in_flight, max_model_len_), group.block_size);
    }
    common = std::gcd(common, group.block_size);
    multiple = std::lcm(multiple, group.block_size);
    groups_.push_back(group);
  }
  hybrid_ = caching_ && groups_.size() > 1;
  scheduler_block_size_ = multiple;
  hash_block_size_ = !hybrid_ || states_at_end
                         ? multiple
                         : config.prefix_match_unit.value_or(Tokens{common}).count();
  bool finer_states = false;
  bool finer_lookups = true;
  for (Group& group : groups_) {
    group.hashes_per_block = std::max<std::int64_t>(group.block_size / hash_block_size_, 1);
    finer_states |= group.align && group.block_size > hash_block_size_;
    const bool windowed =
        group.type == KvGroup::Type::kSlidingWindow || group.type == KvGroup::Type::kChunkedLocal;
    finer_lookups &= !windowed || group.block_size == hash_block_size_;
  }
  partial_hits_ = hybrid_ && rules_.mamba_fine_hits && finer_states && finer_lookups;
  hit_alignment_ = partial_hits_ ? hash_block_size_ : scheduler_block_size_;
  plain_ = std::all_of(groups_.begin(), groups_.end(), [this](const Group& group) {
    return group.type == KvGroup::Type::kFull && group.block_size == scheduler_block_size_ &&
           group.block_size == hash_block_size_;
  });
}

void KvManager::build_families(const SchedulerConfig& config) {
  const bool flagged = std::any_of(config.groups.begin(), config.groups.end(),
                                   [](const KvGroup& group) { return group.eagle; });
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const bool drop = eagle_drop_ && (!flagged || config.groups[g].eagle);
    const auto place = std::find_if(families_.begin(), families_.end(), [&](const Family& family) {
      return same_spec(config.groups[family.members.front()], config.groups[g]);
    });
    if (place == families_.end()) {
      families_.push_back(Family{{g}, drop, -1, false});
    } else {
      place->members.push_back(g);
      place->eagle_drop |= drop;
    }
  }
  std::stable_partition(families_.begin(), families_.end(), [this](const Family& family) {
    return groups_[family.members.front()].type == KvGroup::Type::kFull;
  });
  for (const Family& family : families_) {
    for (const std::size_t member : family.members) {
      groups_[member].eagle_drop = family.eagle_drop;
    }
  }
}

void KvManager::step_starts() {
  for (std::vector<kv::BlockKey>& hashed : hashed_this_step_) {
    hashed.clear();
  }
}

void KvManager::step_ends() {
  if (std::all_of(copies_.begin(), copies_.end(),
                  [](const std::vector<Copy>& copies) { return copies.empty(); })) {
    return;
  }
  BlockPool::Release release(pool_);
  for (std::vector<Copy>& copies : copies_) {
    for (const Copy& copy : copies) {
      release(copy.source);
      release(copy.target);
    }
    copies.clear();
  }
}

// Tokens whose blocks the next token's attention does not read any more.
std::int64_t KvManager::skipped_tokens(const Group& group, std::int64_t computed) const {
  switch (group.type) {
    case KvGroup::Type::kFull:
      return 0;
    case KvGroup::Type::kSlidingWindow:
      return std::max<std::int64_t>(computed - group.window + 1, 0);
    case KvGroup::Type::kChunkedLocal:
      return computed / group.window * group.window;
    case KvGroup::Type::kMamba:
      return std::max<std::int64_t>(computed - 1, 0);
  }
  return 0;
}

bool KvManager::has_partial_hit(const Request& request, const PrefixHit* hit, std::size_t g) const {
  return hit != nullptr && !hit->blocks[g].empty() &&
         (request.computed + hit->tokens) % groups_[g].block_size != 0;
}

std::int64_t KvManager::need(const Request& request, std::int64_t tokens, const PrefixHit* hit,
                             std::int64_t computed, std::int64_t main_tokens, bool cap) const {
  if (spans_) {
    // A hit block in the free list leaves it, which costs a free block too.
    const std::int64_t held =
        request.groups.front().spans.blocks + (hit != nullptr ? hit->spans.blocks : 0);
    return std::max<std::int64_t>(div_ceil(tokens, block_size()) - held, 0) +
           (hit != nullptr ? spans_->free_of(hit->spans) : 0);
  }
  std::int64_t blocks = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const std::vector<BlockId>& found = hit_of(hit, g);
    if (group.type == KvGroup::Type::kMamba && !found.empty()) {
      // A state that is only computed in this very step cannot be read yet: ask for more than
      // there is.
      const std::vector<kv::BlockKey>& hashed = hashed_this_step_[g];
      if (pool_.first_key(found.back()) != 0 &&
          std::find(hashed.begin(), hashed.end(), pool_.first_key(found.back())) != hashed.end()) {
        blocks += pool_.total() + 2;
        continue;
      }
    }
    if (group.align) {
      blocks += need_align(request, g, main_tokens, hit);
    } else {
      const std::int64_t extra =
          group.type == KvGroup::Type::kMamba ? group.block_size * group.speculative_blocks : 0;
      blocks += need_plain(request, g, tokens + extra, hit, computed, cap);
    }
  }
  return blocks;
}

std::int64_t KvManager::need_plain(const Request& request, std::size_t g, std::int64_t tokens,
                                   const PrefixHit* prefix, std::int64_t computed, bool cap) const {
  const Group& group = groups_[g];
  const std::vector<BlockId>& hit = hit_of(prefix, g);
  std::int64_t required = div_ceil(tokens, group.block_size);
  if (cap && group.admission_cap > 0) {
    required = std::min(required, group.admission_cap);
  }
  const std::int64_t owned = size(request.groups[g].blocks);
  const std::int64_t skipped = skipped_tokens(group, computed) / group.block_size;
  std::int64_t blocks = std::max<std::int64_t>(required - std::max(skipped, owned + size(hit)), 0);
  // A hit block in the free list leaves it, which costs a free block too.
  for (std::int64_t i = std::max<std::int64_t>(skipped - owned, 0); i < size(hit); ++i) {
    blocks += hit[index(i)] != kNullBlock && pool_.references(hit[index(i)]) == 0 ? 1 : 0;
  }
  return blocks + (has_partial_hit(request, prefix, g) ? 1 : 0);
}

std::int64_t KvManager::need_align(const Request& request, std::size_t g, std::int64_t main_tokens,
                                   const PrefixHit* prefix) const {
  const Group& group = groups_[g];
  const std::vector<BlockId>& hit = hit_of(prefix, g);
  const GroupTable& table = request.groups[g];
  std::int64_t blocks = div_ceil(main_tokens, group.block_size) + group.speculative_blocks -
                        size(hit) - size(table.blocks);
  const bool partial = has_partial_hit(request, prefix, g) || table.partial_index >= 0;
  if (partial) {
    blocks = std::max<std::int64_t>(blocks, 0) + 1;
  }
  if (blocks > 0) {
    blocks =
        std::min(blocks, 1 + (partial ? 1 : 0) + (table.allocated ? 0 : group.speculative_blocks));
  }
  for (const BlockId block : hit) {
    blocks += block != kNullBlock && pool_.references(block) == 0 ? 1 : 0;
  }
  return blocks;
}

std::int64_t KvManager::full_sequence_need(const Request& request, const PrefixHit& hit,
                                           std::int64_t external) {
  const std::int64_t full = std::min(request.known(), max_model_len_);
  const std::int64_t computed = std::min(request.computed + hit.tokens + external, max_model_len_);
  return need(request, full, &hit, computed, full, rules_.admission_cap);
}

std::int64_t KvManager::remaining_need(const Request& request, std::int64_t tokens) const {
  const std::int64_t full = std::min(tokens, max_model_len_);
  return need(request, full, nullptr, request.computed, full, rules_.admission_cap);
}

std::int64_t KvManager::fresh_need(const Request& request, const Ask& ask) const {
  const std::int64_t computed = request.computed + ask.hit->tokens;
  const std::int64_t slots = std::min(computed + ask.new_tokens + ask.lookahead, max_model_len_);
  return static_cast<std::int64_t>(num_groups()) *
         (div_ceil(slots, block_size()) - computed / block_size());
}

Refusal KvManager::allocate(Request& request, const Ask& ask) {
  const std::int64_t local = request.computed + (ask.hit != nullptr ? ask.hit->tokens : 0);
  const std::int64_t computed = std::min(local + ask.external, max_model_len_);
  const std::int64_t headroom = ask.headroom ? watermark_blocks_ : 0;
  if (ask.full_sequence &&
      full_sequence_need(request, *ask.hit, ask.external) + headroom > available()) {
    return Refusal::kFullSequence;
  }
  const std::int64_t main_tokens = computed + ask.new_tokens;
  const std::int64_t slots = std::min(main_tokens + ask.lookahead, max_model_len_);
  if (!plain_) {
    free_skipped(request,
                 std::max<std::int64_t>(
                     computed - (rules_.window_freed_by_processed ? request.in_flight : 0), 0));
  }
  if (need(request, slots, ask.hit, computed, main_tokens, false) + headroom + ask.reserve >
      available()) {
    return Refusal::kChunk;
  }
  if (ask.hit != nullptr && (!ask.hit->empty() || ask.external > 0)) {
    adopt_hit(request, *ask.hit, ask.external);
  }
  append_blocks(request, slots, main_tokens);
  if (caching_ && !ask.unpublished) {
    cache(request, std::min(main_tokens, request.known()));
  }
  return Refusal::kNone;
}

void KvManager::free_skipped(Request& request, std::int64_t processed) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    std::vector<BlockId>& blocks = request.groups[g].blocks;
    if (group.align) {
      free_skipped_align(request, g, processed);
      continue;
    }
    const std::int64_t margin =
        group.type == KvGroup::Type::kMamba && rules_.mamba_speculative_margin
            ? group.speculative_blocks
            : 0;
    const std::int64_t skipped =
        skipped_tokens(group, std::max<std::int64_t>(processed - margin, 0)) / group.block_size;
    BlockPool::Release release(pool_);
    for (std::int64_t i = std::min(skipped, size(blocks)) - 1; i >= 0; --i) {
      if (blocks[index(i)] == kNullBlock) {
        break;  // those before it left the window earlier
      }
      release(blocks[index(i)]);
      blocks[index(i)] = kNullBlock;
    }
  }
}

// States between the latest and the one before it are given up; prefills leave gaps of null blocks.
void KvManager::free_skipped_align(Request& request, std::size_t g, std::int64_t processed) {
  const Group& group = groups_[g];
  GroupTable& table = request.groups[g];
  if (rules_.mamba_speculative_margin) {
    processed = std::max<std::int64_t>(processed - group.speculative_blocks, 0);
  }
  const std::int64_t end =
      std::min(skipped_tokens(group, processed) / group.block_size, size(table.blocks));
  {
    BlockPool::Release release(pool_);
    for (std::int64_t i = end - 1; i >= table.retired; --i) {
      BlockId& block = table.blocks[index(i)];
      if (block == kNullBlock && rules_.mamba_speculative_margin) {
        break;
      }
      release(block);
      block = kNullBlock;
    }
    if (!rules_.mamba_speculative_margin) {
      table.retired = std::max(table.retired, end);
    }
  }
  if (table.last_state >= 0 && table.last_state < div_ceil(processed, group.block_size) - 1) {
    BlockPool::Release release(pool_);
    release(table.blocks[index(table.last_state)]);
    table.blocks[index(table.last_state)] = kNullBlock;
  }
}

void KvManager::adopt_hit(Request& request, const PrefixHit& hit, std::int64_t external) {
  if (spans_) {
    GroupTable& table = request.groups.front();
    spans_->touch(hit.spans, table.spans);
    table.cached = table.spans.blocks;
    return;
  }
  const std::int64_t local = request.computed + hit.tokens + external;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    GroupTable& table = request.groups[g];
    const std::vector<BlockId>& found = hit.blocks[g];
    const std::int64_t skipped = skipped_tokens(group, local) / group.block_size;
    table.blocks.insert(table.blocks.end(), index(skipped), kNullBlock);
    for (std::int64_t i = skipped; i < size(found); ++i) {
      if (found[index(i)] != kNullBlock) {
        pool_.touch(found[index(i)]);
      }
      table.blocks.push_back(found[index(i)]);
    }
    table.cached = size(table.blocks);
    if (external == 0 && skipped < size(found) && local % group.block_size != 0) {
      table.partial_index = local / group.block_size;
      table.partial_source = found.back();
      table.cached = table.partial_index;
    }
  }
  for (std::size_t g = 0; external > 0 && g < groups_.size(); ++g) {
    GroupTable& table = request.groups[g];
    const std::int64_t missing = div_ceil(local, groups_[g].block_size) - size(table.blocks);
    if (missing > 0) {
      pool_.take(missing, table.blocks);
    }
  }
}

void KvManager::append_blocks(Request& request, std::int64_t tokens, std::int64_t main_tokens) {
  if (spans_) {
    kv::SpanPool::Table& table = request.groups.front().spans;
    const std::int64_t most = std::min(request.prompt_len + request.max_output, max_model_len_);
    spans_->take(div_ceil(tokens, block_size()) - table.blocks, div_ceil(most, block_size()),
                 table);
    return;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.align) {
      append_align(request.groups[g], group, g, main_tokens);
    } else {
      const std::int64_t extra =
          group.type == KvGroup::Type::kMamba ? group.block_size * group.speculative_blocks : 0;
      append_plain(request.groups[g], group, g, tokens + extra);
    }
  }
}

void KvManager::append_plain(GroupTable& table, const Group& group, std::size_t g,
                             std::int64_t tokens) {
  if (table.partial_index >= 0) {
    // The hit ends inside a block: the request continues in a copy. Both ends are held until the
    // step that copies is on its way.
    const BlockId copy = pool_.take();
    pool_.retain(copy);
    table.blocks[index(table.partial_index)] = copy;
    copies_[g].push_back({table.partial_source, copy});
    table.partial_index = -1;
  }
  const std::int64_t missing = div_ceil(tokens, group.block_size) - size(table.blocks);
  if (missing > 0) {
    pool_.take(missing, table.blocks);
  }
}

// MambaManager.allocate_new_blocks: one running state and, behind it, blocks for drafts; everything
// before them is null or a state kept for the prefix cache.
void KvManager::append_align(GroupTable& table, const Group& group, std::size_t g,
                             std::int64_t tokens) {
  std::vector<BlockId>& blocks = table.blocks;
  const std::int64_t required = div_ceil(tokens, group.block_size) + group.speculative_blocks;
  const bool partial = table.partial_index >= 0;
  if (required <= size(blocks) && !partial) {
    table.allocated = true;
    return;
  }
  const std::int64_t before = size(blocks);
  if (table.allocated) {
    table.last_state = before - 1 - group.speculative_blocks;
  } else if (before > 0) {
    table.last_state = before - 1;  // the hit's state
  }
  const std::int64_t skipped = required - group.speculative_blocks - 1;
  while (size(blocks) < skipped) {
    blocks.push_back(kNullBlock);
  }
  if (table.allocated) {
    for (std::int64_t i = before - group.speculative_blocks; i < std::min(before, skipped); ++i) {
      blocks.push_back(blocks[index(i)]);
      blocks[index(i)] = kNullBlock;
    }
  }
  if (partial) {
    const BlockId copy = pool_.take();
    copies_[g].push_back({table.partial_source, copy});
    if (table.allocated) {
      // A running request keeps its block; the cache keeps the copy.
      pool_.move_keys(table.partial_source, copy);
      pool_.retain(table.partial_source);
      if (pool_.first_key(copy) != 0) {
        hashed_this_step_[g].push_back(pool_.first_key(copy));
      }
    } else {
      pool_.retain(copy);
      blocks[index(table.partial_index)] = copy;
    }
    table.partial_index = -1;
  }
  while (size(blocks) < required) {
    blocks.push_back(pool_.take());
  }
  table.allocated = true;
}

std::vector<BlockId> KvManager::blocks_of(const GroupTable& table) const {
  if (!spans_) {
    return table.blocks;
  }
  std::vector<BlockId> blocks;
  spans_->list(table.spans, blocks);
  return blocks;
}

void KvManager::trim(Request& request, std::int64_t processed) {
  if (!plain_) {
    free_skipped(request, processed);
  }
}

std::vector<BlockId> KvManager::surrender(Request& request) {
  std::vector<BlockId> blocks;
  for (GroupTable& table : request.groups) {
    std::copy_if(table.blocks.begin(), table.blocks.end(), std::back_inserter(blocks),
                 [](BlockId block) { return block != kNullBlock; });
    table.clear();
  }
  return blocks;
}

void KvManager::free_fenced(const std::vector<BlockId>& blocks) {
  BlockPool::Release release(pool_);
  std::for_each(blocks.rbegin(), blocks.rend(), [&](BlockId block) { release(block); });
}

void KvManager::free(Request& request) {
  if (spans_) {
    GroupTable& table = request.groups.front();
    spans_->release(table.spans, table.cached);
    table.clear();
    return;
  }
  for (GroupTable& table : request.groups) {
    // Tail first, so that the tail is evicted before the head.
    BlockPool::Release release(pool_);
    const std::int64_t shared = std::min(request.indexable, size(table.blocks));
    release.owned(table.blocks, shared, table.cached);
    release.front(table.blocks, shared);
    table.clear();
  }
}

}  // namespace oomcast::vllm
