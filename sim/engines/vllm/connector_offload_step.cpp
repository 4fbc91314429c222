// What is stored with a step, and what must be over before it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/connector_offload.hpp"

namespace oomcast::vllm {
namespace {

std::size_t index(std::int64_t position) { return static_cast<std::size_t>(position); }

}  // namespace

void OffloadingConnector::plan_step(std::span<const Scheduled> scheduled,
                                    StepTransfers& transfers) {
  for (const Scheduled& one : scheduled) {
    take_blocks(state(one.request->serial), one);
  }
  std::sort(handed_out_.begin(), handed_out_.end());
  if (!window_groups_.empty()) {
    forget_reused_blocks();
  }
  for (const std::uint64_t serial : preempted_) {
    const std::set<JobId>& jobs = state(serial).jobs;
    flushes_.insert(jobs.begin(), jobs.end());
  }
  flush_reused_blocks();
  for (const Scheduled& one : scheduled) {
    State& known = state(one.request->serial);
    const std::int64_t computed = one.request->computed + one.tokens;
    plan_store(known, offloadable(known, computed), config_.skips_unsampled_chunks ? computed : 0,
               transfers);
  }
  for (const std::uint64_t serial : ended_) {
    State& known = state(serial);
    if (!config_.stores_end_with_request) {
      plan_store(known, offloadable(known, known.offloadable), 0, transfers);
    } else if (known.stored) {
      transfers.sends.push_back(known.id);
    } else {
      release_unready(known);
    }
  }
  if (config_.stores_end_with_request) {
    for (const std::uint64_t serial : preempted_) {
      release_unready(state(serial));
    }
  }
  for (const std::uint64_t serial : ended_) {
    State& known = state(serial);
    known.finished = true;
    tier_.finish(known.access);
    release_if_over(known);
  }
  std::swap(transfers.loads, loads_);
  loads_.clear();
  transfers.flushes.assign(flushes_.begin(), flushes_.end());
  flushes_.clear();
  preempted_.clear();
  ended_.clear();
  handed_out_.clear();
  sync_budget_left_ = config_.sync_load_budget.count();
}

void OffloadingConnector::take_blocks(State& known, const Scheduled& scheduled) {
  update_keys(known, *scheduled.request);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (scheduled.kind == ScheduledRequest::Kind::kResumed) {
      known.groups[g].forget_blocks();
    }
    BlockIds& blocks = known.groups[g].blocks;
    for (const kv::BlockId block : scheduled.new_blocks(g)) {
      blocks.push_back(block);
      if (block != kv::kNullBlock) {
        handed_out_.push_back(block);
      }
    }
  }
}

// A block that left its request's window can be handed on before it was offered.
void OffloadingConnector::forget_reused_blocks() {
  // Each request by itself: their order does not matter.
  for (const auto& [serial, known] : states_) {
    for (const std::size_t g : window_groups_) {
      GroupState& group = known->groups[g];
      for (std::int64_t i = group.next * config_.blocks_per_chunk; i < group.settled; ++i) {
        kv::BlockId& block = group.blocks[index(i)];
        if (std::binary_search(handed_out_.begin(), handed_out_.end(), block)) {
          block = kv::kNullBlock;
        }
      }
      group.settled = std::ssize(group.blocks);
    }
  }
}

void OffloadingConnector::flush_reused_blocks() {
  if (watched_.empty()) {
    return;
  }
  for (const kv::BlockId block : handed_out_) {
    if (const auto found = watched_.find(block); found != watched_.end()) {
      flushes_.insert(found->second.begin(), found->second.end());
    }
  }
}

std::int64_t OffloadingConnector::offloadable(const State& known, std::int64_t tokens) const {
  std::int64_t count = std::min(tokens, known.known);
  if (known.max_offload) {
    count = std::min(count, known.max_offload->count());
  }
  return config_.offload_prompt_only ? std::min(count, known.prompt_len) : count;
}

std::int64_t OffloadingConnector::storable(const GroupState& group, std::size_t g,
                                           std::int64_t tokens) const {
  return std::min({tokens / groups_[g].chunk_tokens,
                   std::ssize(group.blocks) / config_.blocks_per_chunk, std::ssize(group.keys)});
}

// A window's chunk is of use only where a prompt that begins alike can resume: before the last hit
// in this prompt, or where it parted from an earlier one.
bool OffloadingConnector::reachable(const State& known, std::size_t g, std::int64_t chunk) const {
  const std::int64_t window = groups_[g].window_chunks;
  const auto serves = [&](std::int64_t boundary) {
    const std::int64_t end = boundary / alignment_ * alignment_ / groups_[g].chunk_tokens;
    return end - window <= chunk && chunk < end;
  };
  return window == 0 || serves(known.prompt_len - 1) ||
         (known.shared_boundary > 0 && serves(known.shared_boundary));
}

void OffloadingConnector::plan_store(State& known, std::int64_t tokens, std::int64_t passed,
                                     StepTransfers& transfers) {
  std::vector<kv::HostTier::Item> offered;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupState& group = known.groups[g];
    for (std::int64_t i = group.next; i < storable(group, g, tokens); ++i) {
      const std::int64_t last_block = (i + 1) * config_.blocks_per_chunk - 1;
      if (group.blocks[index(last_block)] != kv::kNullBlock && reachable(known, g, i)) {
        offered.push_back({group.keys[index(i)], (i + 1) * groups_[g].chunk_tokens,
                           static_cast<std::int32_t>(g)});
      }
    }
  }
  StoreJob store;
  std::vector<kv::HostTier::Item> accepted;
  if (!offered.empty() && !tier_.offer(known.access, offered, accepted, store.chunks)) {
    return;  // no room for all of them: tried again with the next step
  }
  Job job;
  auto next = accepted.begin();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    GroupState& group = known.groups[g];
    for (; next != accepted.end() && next->group == static_cast<std::int32_t>(g); ++next) {
      const std::int64_t chunk = next->end / groups_[g].chunk_tokens - 1;
      job.keys.push_back(next->key);
      for (std::int64_t i = 0; i < config_.blocks_per_chunk; ++i) {
        const kv::BlockId block = group.blocks[index(chunk * config_.blocks_per_chunk + i)];
        if (block != kv::kNullBlock) {
          store.blocks.push_back(block);
          (groups_[g].window_chunks > 0 ? job.fenced : job.deferred).push_back(block);
        }
      }
    }
    group.next =
        std::max({group.next, storable(group, g, tokens), passed / groups_[g].chunk_tokens});
  }
  if (accepted.empty()) {
    return;
  }
  store.job = next_job_++;
  store.id = known.id;
  watch(job.fenced, store.job);
  if (known.ended) {
    watch(job.deferred, store.job);
    if (std::any_of(job.deferred.begin(), job.deferred.end(), [this](kv::BlockId block) {
          return std::binary_search(handed_out_.begin(), handed_out_.end(), block);
        })) {
      flushes_.insert(store.job);
    }
  }
  job.serial = known.serial;
  if (config_.stores_end_with_request) {
    known.stored = true;
    known.unready.insert(known.unready.end(), job.keys.begin(), job.keys.end());
  }
  known.jobs.insert(store.job);
  jobs_[store.job] = std::move(job);
  transfers.stores.push_back(std::move(store));
}

}  // namespace oomcast::vllm
