#include "sim/engines/trtllm/scheduler.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/digest.hpp"
#include "sim/core/setting_checks.hpp"
#include "sim/engines/trtllm/scheduler_impl.hpp"

namespace oomcast::trtllm {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

SchedulerConfig checked(const SchedulerConfig& config) {
  Problems problems;
  check(config, "scheduler settings", problems);
  problems.raise_if_any();
  return config;
}

}  // namespace

void check(const SchedulerConfig& config, const std::string& source, Problems& problems) {
  SettingChecks checks(source, problems);
  checks.range("pool_blocks", config.pool_blocks.count(), 1, kMostBlocks);
  checks.range("host_blocks", config.host_blocks.count(), 0, kMostBlocks);
  checks.range("tokens_per_block", config.tokens_per_block.count(), 1, kMostTokens);
  checks.range("max_seq_len", config.max_seq_len.count(), 1, kMostTokens);
  checks.range("max_batch_size", config.max_batch_size, 1, kMostTokens);
  checks.range("max_num_tokens", config.max_num_tokens.count(), 1, kMostTokens);
}

// One block of the pool's ids is its null block.
Scheduler::Impl::Impl(const SchedulerConfig& config)
    : config_(checked(config)), pool_(config.pool_blocks.count() + 1, false) {
  // A sequence is never longer than the pool: the engine lowers its limit to that.
  config_.max_seq_len =
      std::min(config_.max_seq_len, Tokens{config_.pool_blocks.count() * block()});
  if (config_.host_blocks > Blocks{0}) {
    host_.emplace(config_.host_blocks.count() + 1, false);
  }
}

Added Scheduler::Impl::add(const RequestSpec& spec) {
  const std::int64_t prompt = spec.prompt_len.count();
  if (prompt <= 0) {
    return Added::kEmptyPrompt;
  }
  if (spec.max_output < Tokens{1}) {
    return Added::kNoOutput;
  }
  if (prompt >= config_.max_seq_len.count() ||
      (!config_.chunked_prefill && prompt > config_.max_num_tokens.count())) {
    return Added::kPromptTooLong;
  }
  if (spare_.empty()) {
    spare_.push_back(slots_.size());
    slots_.emplace_back();
    slots_.back().hashes.set_sizes(block(), 0);
  }
  const Slot slot = spare_.back();
  spare_.pop_back();
  Request& request = at(slot);
  request.id = spec.id;
  request.prompt = request.known = prompt;
  request.max_output = std::min(spec.max_output.count(), config_.max_seq_len.count() - prompt);
  request.computed = request.launched = request.sampled = 0;
  request.started = request.resumed = request.aborted = false;
  request.has_content = config_.block_reuse && !spec.prompt.empty();
  request.hashes.clear();
  if (request.has_content) {
    Tokens left = spec.prompt_len;
    for (const ContentSegment& segment : spec.prompt) {
      request.hashes.append({segment.id, std::min(segment.length, left), segment.offset});
      left -= std::min(segment.length, left);
    }
    if (!spec.output_continues_prompt) {
      request.hashes.append({private_segment(spec.id), spec.max_output});
    }
  }
  waiting_.push_back(slot);
  settled_ = settled_ && std::ssize(active_) >= config_.max_batch_size;
  return Added::kQueued;
}

// A result in flight is waited for, and is its last.
Abort Scheduler::Impl::abort(RequestId id) {
  const auto wanted = [&](Slot slot) { return at(slot).id == id; };
  if (const auto queued = std::find_if(waiting_.begin(), waiting_.end(), wanted);
      queued != waiting_.end()) {
    spare_.push_back(*queued);
    waiting_.erase(queued);
    return {true, Tokens{0}};
  }
  const auto place = std::find_if(active_.begin(), active_.end(), wanted);
  if (place == active_.end()) {
    return {};
  }
  const Slot slot = *place;
  Request& request = at(slot);
  if (request.launched > request.sampled) {
    request.max_output = request.launched;
    request.aborted = true;
    settled_ = false;
    return {true};
  }
  finish(slot);
  return {true, Tokens{request.sampled}};
}

void Scheduler::Impl::fetch() {
  while (!waiting_.empty() && std::ssize(active_) < config_.max_batch_size) {
    active_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

// ---- who may run
// ---------------------------------------------------------------------------------

// Blocks that the request takes until its end.
std::int64_t Scheduler::Impl::remaining_blocks(const Request& request) const {
  return blocks_for(request.prompt + request.max_output) - std::ssize(request.table);
}

// Every admitted request has its blocks until its end reserved. The first context that does not fit
// holds back those behind it.
void Scheduler::Impl::guarantee_no_evict() {
  std::int64_t free = pool_.free();
  bool generating = false;
  for (const Slot slot : active_) {
    const Request& request = at(slot);
    generating = generating || request.generates();
    if (request.generates() && !request.completes()) {
      allowed_.push_back(slot);
      free -= remaining_blocks(request);
    }
  }
  const bool fixed_batch = config_.capacity == CapacityPolicy::kStaticBatch;
  if (fixed_batch && generating) {
    return;
  }
  std::vector<kv::BlockKey> computed_now;
  for (const Slot slot : active_) {
    Request& request = at(slot);
    if (request.generates() || request.completes()) {
      continue;
    }
    // Who could reuse a block that is computed in this step waits for it.
    const kv::BlockKey next = fixed_batch ? 0 : first_new_block(request);
    if (next != 0 &&
        std::find(computed_now.begin(), computed_now.end(), next) != computed_now.end()) {
      settled_ = false;
      continue;
    }
    const std::int64_t need = remaining_blocks(request);
    if (std::ssize(allowed_) == config_.max_batch_size || need > free) {
      return;
    }
    allowed_.push_back(slot);
    free -= need;
    if (next != 0) {
      computed_now.push_back(next);
    }
  }
}

// Key of the first full block of the context that is not there yet; 0 if there is none.
kv::BlockKey Scheduler::Impl::first_new_block(Request& request) const {
  if (!request.has_content) {
    return 0;
  }
  request.hashes.extend(request.known);
  const std::int64_t full = (request.known - 1) / block();
  for (std::int64_t i = request.computed / block(); i < full; ++i) {
    const kv::BlockKey key = kv::block_key(request.hashes.hash(i), 0);
    if (request.started || !known(key)) {
      return key;
    }
  }
  return 0;
}

std::int64_t Scheduler::Impl::blocks_of_step(const Request& request) const {
  if (!request.started) {
    return blocks_for(request.known);
  }
  return request.generates() && request.computed == std::ssize(request.table) * block() ? 1 : 0;
}

// Blocks that come free when the request gives its own back.
std::int64_t Scheduler::Impl::own_blocks(const Request& request) const {
  return std::count_if(request.table.begin(), request.table.end(),
                       [&](kv::BlockId id) { return pool_.references(id) == 1; });
}

// Everybody runs whose blocks for this step are there; who is last gives way.
void Scheduler::Impl::maximise_utilization() {
  std::int64_t free = pool_.free();
  std::int64_t end = std::ssize(active_);
  std::vector<Slot> victims;
  for (std::int64_t i = 0; i < end && std::ssize(allowed_) < config_.max_batch_size;) {
    const Slot slot = active_[static_cast<std::size_t>(i)];
    const Request& request = at(slot);
    if (request.completes()) {
      ++i;
      continue;
    }
    const std::int64_t need = blocks_of_step(request);
    if (need <= free) {
      allowed_.push_back(slot);
      free -= need;
      ++i;
      continue;
    }
    std::int64_t last = end - 1;
    while (last >= i) {
      const Request& candidate = at(active_[static_cast<std::size_t>(last)]);
      if (candidate.started && !candidate.completes()) {
        break;
      }
      --last;
    }
    if (last < i) {
      break;
    }
    victims.push_back(active_[static_cast<std::size_t>(last)]);
    free += own_blocks(at(victims.back()));
    end = last;
  }
  for (const Slot victim : victims) {
    pause(victim);
  }
  settled_ = settled_ && allowed_.size() == active_.size();
}

// Its tokens so far are its next context; the result in flight is one of them.
void Scheduler::Impl::pause(Slot slot) {
  Request& request = at(slot);
  release(request);
  request.known = request.prompt + request.launched;
  request.computed = 0;
  request.started = false;
  request.resumed = true;
  plan_.paused.push_back(request.id);
  ++pauses_;
}

// ---- with how many tokens
// ------------------------------------------------------------------------

void Scheduler::Impl::choose_tokens() {
  std::int64_t left = config_.max_num_tokens.count();
  std::int64_t requests = 0;
  for (const Slot slot : allowed_) {
    if (requests == config_.max_batch_size) {
      break;
    }
    const Request& request = at(slot);
    if (request.generates()) {
      if (left < 1) {
        break;
      }
      --left;
      generations_.push_back(slot);
    } else {
      const std::int64_t tokens = request.known - request.computed;
      if (!config_.chunked_prefill) {
        if (tokens > left) {
          break;
        }
        left -= tokens;
      }
      contexts_.push_back({slot, tokens});
    }
    ++requests;
  }
  if (config_.chunked_prefill) {
    cut_chunks(left);
  }
}

// Contexts share what generations leave, in units of a block but for their last piece. Unfinished
// ones go first.
void Scheduler::Impl::cut_chunks(std::int64_t capacity) {
  std::int64_t wanted = 0;
  for (const Piece& piece : contexts_) {
    wanted += piece.tokens;
  }
  if (wanted <= capacity) {
    return;
  }
  const std::int64_t unit = block();
  if (config_.chunking == ChunkingPolicy::kFirstComeFirstServed) {
    for (Piece& piece : contexts_) {
      const std::int64_t given = std::min(capacity, piece.tokens);
      piece.tokens = given < piece.tokens ? given - given % unit : given;
      capacity -= piece.tokens;
    }
  } else {
    std::vector<std::int64_t> given(contexts_.size(), 0);
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (std::size_t i = 0; i < contexts_.size(); ++i) {
        const std::int64_t next = std::min(unit, contexts_[i].tokens - given[i]);
        if (next > 0 && next <= capacity) {
          given[i] += next;
          capacity -= next;
          goes_on = true;
        }
      }
    }
    for (std::size_t i = 0; i < contexts_.size(); ++i) {
      contexts_[i].tokens = given[i];
    }
  }
  std::erase_if(contexts_, [](const Piece& piece) { return piece.tokens == 0; });
  std::stable_partition(contexts_.begin(), contexts_.end(), [&](const Piece& piece) {
    return at(piece.slot).computed + piece.tokens < at(piece.slot).known;
  });
}

// ---- counts
// --------------------------------------------------------------------------------------

PoolCounts Scheduler::Impl::blocks() const {
  return {.total = Blocks{pool_.total()},
          .free = Blocks{pool_.free() - pool_.cached_free()},
          .cached = Blocks{pool_.cached_free()},
          .used = Blocks{pool_.total() - pool_.free()}};
}

std::int64_t Scheduler::Impl::running() const {
  return std::count_if(active_.begin(), active_.end(), [&](Slot slot) { return at(slot).started; });
}

std::int64_t Scheduler::Impl::waiting() const {
  return std::ssize(waiting_) + std::ssize(active_) - running();
}

bool Scheduler::Impl::work_in_flight() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [](const Batch& batch) { return batch.tokens > 0; });
}

std::uint64_t Scheduler::Impl::state_digest() const {
  Digest digest;
  const auto add = [&](auto number) { digest.add_word(static_cast<std::uint64_t>(number)); };
  for (const Slot slot : active_) {
    const Request& request = at(slot);
    for (const std::int64_t number :
         {request.known, request.computed, request.launched, request.sampled}) {
      add(number);
    }
    add(request.id);
    for (const kv::BlockId id : request.table) {
      add(id);
    }
  }
  for (const kv::BlockId id : pool_.free_list()) {
    add(id);
  }
  add(waiting_.size());
  if (host_) {
    for (const kv::BlockId id : host_->free_list()) {
      add(id);
      add(host_->first_key(id));
    }
  }
  return digest.value();
}

void Scheduler::Impl::check_conservation() const {
  pool_.check();
  if (host_) {
    host_->check();
    OOMCAST_CHECK(host_->free() == host_->total(), "{} of {} host blocks are in use",
                  host_->total() - host_->free(), host_->total());
    for (const kv::BlockId id : host_->free_list()) {
      const kv::BlockKey key = host_->first_key(id);
      OOMCAST_CHECK(key == 0 || pool_.find(key) == kv::kNullBlock,
                    "the content of host block {} is on the card too", id);
    }
  }
  std::vector<std::int32_t> held(static_cast<std::size_t>(pool_.total()) + 1, 0);
  for (const Slot slot : active_) {
    for (const kv::BlockId id : at(slot).table) {
      ++held[static_cast<std::size_t>(id)];
    }
  }
  for (kv::BlockId id = 1; id <= pool_.total(); ++id) {
    OOMCAST_CHECK(held[static_cast<std::size_t>(id)] == pool_.references(id),
                  "block {} is in {} tables and has {} references", id,
                  held[static_cast<std::size_t>(id)], pool_.references(id));
  }
}

// ---- the public face
// -----------------------------------------------------------------------------

Scheduler::Scheduler(const SchedulerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

Added Scheduler::add(const RequestSpec& request) { return impl_->add(request); }
Abort Scheduler::abort(RequestId id) { return impl_->abort(id); }
const StepPlan& Scheduler::schedule() { return impl_->schedule(); }
const StepOutput& Scheduler::complete() { return impl_->complete(); }
void Scheduler::drop_empty_batches() { impl_->drop_empty_batches(); }
std::int64_t Scheduler::depth() const { return impl_->depth(); }
std::int64_t Scheduler::batches_in_flight() const { return impl_->batches_in_flight(); }
bool Scheduler::work_in_flight() const { return impl_->work_in_flight(); }
bool Scheduler::idle() const { return impl_->idle(); }
bool Scheduler::stalled() const { return impl_->stalled(); }
std::int64_t Scheduler::steady_steps() const { return impl_->steady_steps(); }
SteadyShape Scheduler::steady_shape() const { return impl_->steady_shape(); }
const SteadyJump& Scheduler::advance_steady(std::int64_t n) { return impl_->advance_steady(n); }
PoolCounts Scheduler::blocks() const { return impl_->blocks(); }
std::int64_t Scheduler::running() const { return impl_->running(); }
std::int64_t Scheduler::waiting() const { return impl_->waiting(); }
std::int64_t Scheduler::pauses() const { return impl_->pauses(); }
Tokens Scheduler::prefix_hit_tokens() const { return Tokens{impl_->prefix_hit_tokens()}; }
std::uint64_t Scheduler::state_digest() const { return impl_->state_digest(); }
void Scheduler::check_conservation() const { impl_->check_conservation(); }

}  // namespace oomcast::trtllm
