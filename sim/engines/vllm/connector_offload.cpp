#include "sim/engines/vllm/connector_offload.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::vllm {
namespace {

std::size_t index(std::int64_t position) { return static_cast<std::size_t>(position); }

kv::HostTier::Policy policy_of(const ConnectorConfig& config) {
  return config.eviction_policy == ConnectorConfig::Eviction::kArc ? kv::HostTier::Policy::kArc
                                                                   : kv::HostTier::Policy::kLru;
}

}  // namespace

OffloadingConnector::OffloadingConnector(const SchedulerConfig& config,
                                         std::int64_t hash_block_size)
    : config_(*config.connector),
      gpu_caching_(config.enable_prefix_caching),
      sync_budget_left_(config_.sync_load_budget.count()),
      tier_(config_.host_chunks, policy_of(config_), config_.store_threshold) {
  for (const KvGroup& spec : config.groups) {
    Group group;
    group.block_tokens = spec.block_size.count();
    group.chunk_tokens = group.block_tokens * config_.blocks_per_chunk;
    group.hashes_per_chunk = std::max<std::int64_t>(group.chunk_tokens / hash_block_size, 1);
    if (spec.type != KvGroup::Type::kFull) {
      group.window_chunks = div_ceil(spec.window.count(), group.chunk_tokens);
    }
    (group.window_chunks == 0 ? full_groups_ : window_groups_).push_back(groups_.size());
    alignment_ = std::lcm(alignment_, group.chunk_tokens);
    groups_.push_back(group);
  }
  std::stable_sort(window_groups_.begin(), window_groups_.end(),
                   [this](std::size_t left, std::size_t right) {
                     return groups_[left].window_chunks > groups_[right].window_chunks;
                   });
}

OffloadingConnector::State& OffloadingConnector::state(std::uint64_t serial) {
  const auto found = states_.find(serial);
  OOMCAST_CHECK(found != states_.end(), "request {} is not known to the host tier", serial);
  return *found->second;
}

void OffloadingConnector::added(Request& request) {
  auto fresh = std::make_unique<State>();
  fresh->serial = request.serial;
  fresh->id = request.id;
  fresh->prompt_len = request.prompt_len;
  fresh->max_offload = request.transfer.max_offload_tokens;
  fresh->groups.resize(groups_.size());
  states_[request.serial] = std::move(fresh);
}

void OffloadingConnector::update_keys(State& state, Request& request) const {
  state.known = request.known();
  state.shared_boundary = request.shared_boundary;
  request.chain.extend(request.known());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<kv::BlockKey>& keys = state.groups[g].keys;
    const std::int64_t hashes = groups_[g].hashes_per_chunk;
    while ((std::ssize(keys) + 1) * hashes <= request.chain.blocks()) {
      keys.push_back(kv::block_key(request.chain.hash((std::ssize(keys) + 1) * hashes - 1), g));
    }
  }
}

KvConnector::Match OffloadingConnector::match(Request& request, std::int64_t local) {
  State& known = state(request.serial);
  for (GroupState& group : known.groups) {
    group.forget_blocks();
  }
  if (!known.jobs.empty() && !config_.stores_end_with_request) {
    return {true, 0, false};
  }
  update_keys(known, request);
  known.local = local;
  std::int64_t longest = request.known() - (window_groups_.empty() ? 0 : 1);
  if (request.transfer.max_load_tokens) {
    const std::int64_t end = local + request.transfer.max_load_tokens->count();
    longest = std::min(longest, end / alignment_ * alignment_);
  }
  const std::optional<std::int64_t> hit = lookup(known, longest);
  if (!hit) {
    return {true, 0, false};
  }
  if (*hit == 0) {
    return {};
  }
  return {false, *hit, !fits_sync_budget(request, local, *hit)};
}

// Every group may shorten the hit, which can undo what an earlier one found.
std::optional<std::int64_t> OffloadingConnector::lookup(const State& state,
                                                        std::int64_t longest) const {
  std::vector<std::size_t> all = full_groups_;
  all.insert(all.end(), window_groups_.begin(), window_groups_.end());
  std::int64_t hit = 0;
  bool later = false;
  for (std::vector<std::size_t> round = all; !round.empty();) {
    std::vector<std::size_t> again;
    bool windows_done = false;
    for (const std::size_t g : round) {
      const std::int64_t chunk = groups_[g].chunk_tokens;
      const std::int64_t keys = std::ssize(state.groups[g].keys);
      longest = std::min(longest, keys * chunk);
      if (longest - state.local < chunk) {
        return 0;
      }
      const std::int64_t first = state.local / chunk;
      const std::int64_t end = std::min(div_ceil(longest, chunk), keys);
      const std::optional<std::int64_t> found = chunks_hit(state, g, first, end);
      if (!found) {
        later = true;
      } else if (*found == 0) {
        return 0;
      } else {
        longest = std::min(longest, chunk * (first + *found));
      }
      const std::int64_t shorter = longest - state.local;
      if (shorter < chunk) {
        return 0;
      }
      if (shorter < hit) {
        if (later) {
          later = false;
          again = all;
        } else if (windows_done && again.empty()) {
          again = window_groups_;
        }
      }
      windows_done |= groups_[g].window_chunks > 0;
      hit = shorter;
    }
    round = again;
  }
  if (later || being_loaded(state, hit)) {
    return std::nullopt;
  }
  return hit;
}

// Full attention: the leading run. Windows: up to the end of the last run that fills one, else the
// leading run. Chunks still being written count, but then it is too early.
std::optional<std::int64_t> OffloadingConnector::chunks_hit(const State& state, std::size_t g,
                                                            std::int64_t first,
                                                            std::int64_t end) const {
  using Presence = kv::HostTier::Presence;
  const std::vector<kv::BlockKey>& keys = state.groups[g].keys;
  const std::int64_t window = groups_[g].window_chunks;
  std::int64_t run = 0;
  bool pending = false;
  if (window == 0) {
    for (std::int64_t i = first; i < end; ++i, ++run) {
      const Presence presence = find(keys[index(i)]);
      if (presence == Presence::kAbsent) {
        break;
      }
      pending |= presence == Presence::kWriting;
    }
    return pending ? std::nullopt : std::optional(run);
  }
  for (std::int64_t i = end - 1; i >= first; --i) {
    const Presence presence = find(keys[index(i)]);
    run = presence == Presence::kAbsent ? 0 : run + 1;
    pending |= presence == Presence::kWriting;
    if (run == window) {
      return pending ? std::nullopt : std::optional(i - first + window);
    }
  }
  return pending ? std::nullopt : std::optional(run);
}

kv::HostTier::Presence OffloadingConnector::find(kv::BlockKey key) const {
  using Presence = kv::HostTier::Presence;
  const Presence presence = tier_.find(key);
  return config_.stores_end_with_request && presence == Presence::kWriting ? Presence::kAbsent
                                                                           : presence;
}

// Somebody else already fetches a chunk of the hit: it will be on the GPU soon.
bool OffloadingConnector::being_loaded(const State& state, std::int64_t hit) const {
  if (loading_.empty()) {
    return false;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<kv::BlockKey>& keys = state.groups[g].keys;
    const std::int64_t chunk = groups_[g].chunk_tokens;
    const std::int64_t end = std::min(div_ceil(state.local + hit, chunk), std::ssize(keys));
    std::int64_t first = state.local / chunk;
    if (groups_[g].window_chunks > 0) {
      first = std::max(first, end - groups_[g].window_chunks);
    }
    for (std::int64_t i = first; i < end; ++i) {
      if (loading_.contains(keys[index(i)])) {
        return true;
      }
    }
  }
  return false;
}

// Off unless there is a budget. A load within the step must leave the request a token to compute.
// The budget stays spent if the request is not admitted after all.
bool OffloadingConnector::fits_sync_budget(const Request& request, std::int64_t local,
                                           std::int64_t external) {
  if (config_.sync_load_budget == Bytes{}) {
    return false;
  }
  std::int64_t tokens = 0;
  for (const Group& group : groups_) {
    const std::int64_t end = div_ceil(local + external, group.chunk_tokens);
    std::int64_t first = local / group.chunk_tokens;
    if (group.window_chunks > 0) {
      first = std::max(first, end - group.window_chunks);
    }
    tokens += (end - first) * group.chunk_tokens;
  }
  const std::int64_t bytes = tokens * config_.bytes_per_token.count();
  if (bytes > sync_budget_left_ || local + external >= request.known()) {
    return false;
  }
  sync_budget_left_ -= bytes;
  return true;
}

void OffloadingConnector::allocated(Request& request, std::int64_t external) {
  if (external == 0) {
    return;
  }
  State& known = state(request.serial);
  const std::int64_t total = known.local + external;
  LoadJob load;
  load.job = next_job_++;
  load.id = request.id;
  load.tokens = Tokens{external};
  load.synchronous = request.status != Request::Status::kRemote;
  std::vector<kv::HostTier::Item> items;
  Job job;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const GroupTable& table = request.groups[g];
    for (const kv::BlockId block : table.blocks) {
      if (block != kv::kNullBlock) {
        handed_out_.push_back(block);
      }
    }
    const std::int64_t end = div_ceil(total, group.block_tokens);
    std::int64_t first = known.local / group.block_tokens;
    while (first < end && table.blocks[index(first)] == kv::kNullBlock) {
      ++first;
    }
    const std::int64_t chunks = div_ceil(total, group.chunk_tokens);
    for (std::int64_t i = first / config_.blocks_per_chunk; first < end && i < chunks; ++i) {
      const kv::BlockKey key = known.groups[g].keys[index(i)];
      items.push_back({key, (i + 1) * group.chunk_tokens, static_cast<std::int32_t>(g)});
      job.keys.push_back(key);
    }
    load.blocks.insert(load.blocks.end(), table.blocks.begin() + first, table.blocks.begin() + end);
    known.groups[g].next = chunks;
  }
  tier_.pin(known.access, items, load.chunks);
  if (gpu_caching_) {
    loading_.insert(job.keys.begin(), job.keys.end());
  }
  job.serial = request.serial;
  job.load = true;
  job.synchronous = load.synchronous;
  known.jobs.insert(load.job);
  jobs_[load.job] = std::move(job);
  loads_.push_back(std::move(load));
}

void OffloadingConnector::preempted(const Request& request) {
  preempted_.push_back(request.serial);
  for (GroupState& group : state(request.serial).groups) {
    group.forget_blocks();
    if (!config_.stores_end_with_request) {
      group.next = 0;  // what it computes again it offers again
    }
  }
}

// What it had stored stays under way; blocks handed out again meanwhile flush those jobs.
bool OffloadingConnector::ended(Request& request, End end, std::vector<Handoff>& /*handoffs*/) {
  State& known = state(request.serial);
  update_keys(known, request);
  known.ended = true;
  known.offloadable = end == End::kFinished
                          ? std::max(request.prompt_len, request.known() - 1)  // the last token
                          : request.computed;                                  // has no KV
  for (const JobId job : known.jobs) {
    watch(jobs_[job].deferred, job);
  }
  ended_.push_back(request.serial);
  // One that is aborted while its KV comes is kept for that.
  known.stored &= request.status != Request::Status::kRemote || request.arrived;
  return known.stored;
}

void OffloadingConnector::sent(const Request& request) {
  State& known = state(request.serial);
  release_unready(known);
  known.stored = false;
  release_if_over(known);
}

void OffloadingConnector::release_unready(State& state) {
  tier_.written(state.unready);
  state.unready.clear();
}

void OffloadingConnector::watch(const BlockIds& blocks, JobId job) {
  for (const kv::BlockId block : blocks) {
    watched_[block].push_back(job);
  }
}

void OffloadingConnector::unwatch(const BlockIds& blocks, JobId job) {
  for (const kv::BlockId block : blocks) {
    const auto found = watched_.find(block);
    if (found != watched_.end()) {
      std::erase(found.value(), job);
      if (found->second.empty()) {
        watched_.erase(found);
      }
    }
  }
}

std::optional<RequestId> OffloadingConnector::job_done(JobId number) {
  const auto found = jobs_.find(number);
  OOMCAST_CHECK(found != jobs_.end(), "job {} is reported, but not under way", number);
  const Job job = std::move(found.value());
  jobs_.erase(number);
  State& known = state(job.serial);
  if (job.load) {
    tier_.unpin(job.keys);
    for (const kv::BlockKey key : job.keys) {
      loading_.erase(key);
    }
  } else {
    if (!config_.stores_end_with_request) {
      tier_.written(job.keys);
    }
    unwatch(job.fenced, number);
    if (known.ended) {
      unwatch(job.deferred, number);
    }
  }
  const RequestId id = known.id;
  known.jobs.erase(number);
  release_if_over(known);
  return job.load && !job.synchronous ? std::optional(id) : std::nullopt;
}

void OffloadingConnector::release_if_over(State& state) {
  if (state.finished && state.jobs.empty() && !state.stored) {
    states_.erase(state.serial);
  }
}

void OffloadingConnector::count(TransferCounts& counts) const {
  counts.host_used = tier_.used();
  counts.host_evictable = tier_.evictable();
  counts.host_writing = tier_.writing();
}

}  // namespace oomcast::vllm
