#include "sim/engines/sglang/scheduler.hpp"

#include <algorithm>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {
namespace {

// Priorities beyond are cut; who has none is below all of them.
constexpr std::int64_t kPriorityLimit = std::int64_t{1} << 60;
// No pool comes near; sums of such lengths do not overflow.
constexpr std::int64_t kLengthLimit = std::int64_t{1} << 60;

SchedulerConfig checked(const SchedulerConfig& config) {
  Problems problems;
  check(config, "scheduler settings", problems);
  problems.raise_if_any();
  return config;
}

// Without a prefix cache an order that asks it becomes arrival order.
SchedulePolicy effective_policy(const SchedulerConfig& config) {
  const bool by_arrival_kind = config.schedule_policy == SchedulePolicy::kLof ||
                               config.schedule_policy == SchedulePolicy::kRoutingKey;
  return config.disable_radix_cache && !by_arrival_kind ? SchedulePolicy::kFcfs
                                                        : config.schedule_policy;
}

PoolCounts counts(const SlotPool& pool, std::int64_t cached) {
  return {.total = Tokens{pool.total()},
          .free = Tokens{pool.free()},
          .cached = Tokens{cached},
          .used = Tokens{pool.total() - pool.free() - cached}};
}

}  // namespace

Scheduler::Impl::Impl(const SchedulerConfig& config)
    : config_(checked(config)),
      rules_(config.rules),
      kv_(config),
      running_(slots_, config.page_size.count()),
      overlap_(!config.disable_overlap_schedule),
      preemption_(config.enable_priority_scheduling && !config.disable_priority_preemption),
      low_first_(config.schedule_low_priority_values_first),
      policy_(effective_policy(config)),
      max_length_(std::min(config.context_length.count() - 1, config.pool_tokens.count() - 1)),
      clip_(config.clip_max_new_tokens_estimation.count()),
      ratio_init_(std::min(config.init_new_token_ratio * config.schedule_conservativeness, 1.0)),
      ratio_min_(std::min(ratio_init_ * config.min_new_token_ratio_factor, 1.0)),
      ratio_decay_((ratio_init_ - ratio_min_) /
                   static_cast<double>(config.new_token_ratio_decay_steps)),
      ratio_(ratio_init_),
      free_rows_(config.max_running_requests + config.extra_rows),
      free_metadata_rows_(2 * config.max_running_requests) {
  constexpr std::int64_t kPromptMargin = 5;
  max_prompt_ = max_length_ - kPromptMargin;
  if (config.min_free_slots_delay) {
    const std::int64_t slots = std::min(*config.min_free_slots_delay, config.max_running_requests);
    if (slots > 1) {
      min_free_slots_ = slots;
    }
  }
}

Added Scheduler::Impl::add(const RequestSpec& spec) {
  idle_rounds_ = 0;
  if (spec.prompt_len.count() <= 0) {
    return Added::kEmptyPrompt;
  }
  if (spec.max_output.count() < 0) {
    return Added::kNoOutput;
  }
  if (live_.contains(spec.id)) {
    return Added::kDuplicateId;
  }
  const Slot slot = slots_.take();
  Request& request = at(slot);
  kv::TokenRuns content = std::move(request.content);  // keeps its buffers
  request = Request{};
  request.content = std::move(content);
  request.id = spec.id;
  request.serial = next_serial_++;
  request.tie_order = spec.tie_order;
  request.routing_key = spec.routing_key;
  request.ignore_eos = spec.ignore_eos;
  if (spec.priority) {
    request.priority = std::clamp(*spec.priority, -kPriorityLimit, kPriorityLimit);
    request.node_priority = request.priority;
  } else if (config_.enable_priority_scheduling) {
    request.priority = low_first_ ? 2 * kPriorityLimit : -2 * kPriorityLimit;
    request.node_priority = request.priority;
  }
  const std::int64_t given = std::min(spec.prompt_len.count(), kLengthLimit);
  const bool too_long = given >= max_prompt_;
  const bool stub = too_long && !config_.allow_auto_truncate;
  const std::int64_t asked = too_long && !stub ? std::max<std::int64_t>(max_prompt_, 1) : given;
  // What there is no room for in the context, and by later rules in the empty pool, is not planned.
  request.max_output = std::min(spec.max_output.count(), max_length_ - asked - 1);
  if (rules_.memory_caps_output) {
    const std::int64_t room = config_.pool_tokens.count() -
                              align_up(asked, config_.page_size.count()) -
                              config_.page_size.count() - 1;
    request.max_output =
        std::max<std::int64_t>(std::min(std::max<std::int64_t>(request.max_output, 0), room), 0);
  }
  if (spec.stop_after) {
    request.stop_after = std::max<std::int64_t>(spec.stop_after->count(), 1);
  }
  request.prompt = stub ? 1 : asked;
  request.aborting = stub;
  set_content(request, spec, stub);
  request.handshaken = !spec.awaits_handshake;
  live_.emplace(spec.id, slot);
  if (config_.role != Role::kMixed) {
    return add_to_role(slot, stub);
  }
  if (!enqueue(slot)) {
    return Added::kQueueFull;
  }
  return stub ? Added::kQueuedToAbort : Added::kQueued;
}

void Scheduler::Impl::set_content(Request& request, const RequestSpec& spec, bool stub) {
  request.content.clear();
  const std::int64_t output = std::max<std::int64_t>(request.max_output, 1);
  const std::uint64_t own = private_segment(2 * request.serial);
  bool continues = false;
  if (stub) {
    const ContentToken token = spec.stub_token.value_or(ContentToken{private_segment(0), 0});
    request.content.append({token.segment, token.offset, 1});
  } else {
    kv::TokenRun last;
    for (const ContentSegment& segment : spec.prompt) {
      last = {segment.id, segment.offset,
              std::min(segment.length.count(), request.prompt - request.content.length())};
      request.content.append(last);
    }
    const std::int64_t unshared = request.prompt - request.content.length();
    request.content.append({own, 0, unshared});
    // After a cut prompt other tokens follow than in the conversation.
    const bool whole = request.prompt == spec.prompt_len.count();
    continues = spec.output_continues_prompt && whole && unshared == 0 && last.length > 0;
    if (continues) {
      request.content.append({last.segment, last.offset + last.length, output});
    }
  }
  if (!continues) {
    const std::uint64_t segment =
        spec.output_content.value_or(private_segment(2 * request.serial + 1));
    const bool ends = spec.end_token && !request.ignore_eos && request.stop_after <= output;
    request.content.append({segment, 0, ends ? request.stop_after - 1 : output});
    if (ends) {
      request.content.append({spec.end_token->segment, spec.end_token->offset, 1});
    }
  }
}

// To the end of the queue. If the queue is full somebody is dropped: the newcomer, or with
// priorities whoever is less preferred. Whether this one is queued.
bool Scheduler::Impl::enqueue(Slot slot) {
  if (config_.role == Role::kMixed && config_.max_queued_requests &&
      waiting() + 1 > *config_.max_queued_requests) {
    Slot dropped = slot;
    if (config_.enable_priority_scheduling && !waiting_.empty()) {
      const auto least =
          std::max_element(waiting_.begin(), waiting_.end(), [&](Slot left, Slot right) {
            return std::pair{rank(at(left)), at(left).queued_at} <
                   std::pair{rank(at(right)), at(right).queued_at};
          });
      if (rank(at(slot)) < rank(at(*least))) {
        dropped = *least;
        waiting_.erase(least);
      }
    }
    drop(dropped);
    if (dropped == slot) {
      return false;
    }
  }
  Request& request = at(slot);
  request.waiting = true;
  request.queued_at = ++queue_clock_;
  request.prefill_seen = prefilled_tokens_;
  waiting_.push_back(slot);
  return true;
}

void Scheduler::Impl::drop(Slot slot) {
  aborted_.push_back(at(slot).id);
  forget(slot);
  slots_.give_back(slot);
}

void Scheduler::Impl::forget(Slot slot) {
  live_.erase(at(slot).id);
  at(slot).waiting = false;
}

Abort Scheduler::Impl::abort(RequestId id) {
  idle_rounds_ = 0;
  const auto place = live_.find(id);
  if (place == live_.end()) {
    return {};
  }
  const Slot slot = place->second;
  if (config_.role != Role::kMixed && abort_in_role(slot)) {
    return {true};
  }
  Request& request = at(slot);
  if (request.waiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), slot));
    const Tokens output{std::max<std::int64_t>(request.known - request.prompt, 0)};
    drop(slot);
    return {true, output};
  }
  if (slot == chunked_ && rules_.chunk_abort_at_once) {
    abort_chunked_ = true;
  } else if (request.running ||
             request.batch_step >= step_ - std::max<std::int64_t>(in_flight_, 1)) {
    request.aborting = true;
    running_.end_next(slot);
  }
  return {true};
}

bool Scheduler::Impl::work_in_flight() const {
  for (std::int64_t i = 1; i <= in_flight_; ++i) {
    if (batch(step_ - i).kind != Kind::kIdle) {
      return true;
    }
  }
  return false;
}

Published Scheduler::Impl::published(const Request& request, std::int64_t length) const {
  return {.content = &request.content,
          .length = length,
          .computed = request.computed,
          .prompt = request.prompt,
          .priority = request.node_priority,
          .finished = request.finished};
}

PoolCounts Scheduler::Impl::slots() const {
  return counts(kv_.pools().full, kv_.tree().evictable());
}

PoolCounts Scheduler::Impl::window_slots() const {
  return kv_.windowed() ? counts(kv_.pools().window, kv_.tree().window_evictable()) : PoolCounts{};
}

StateCounts Scheduler::Impl::state_slots() const {
  const SlotPool& pool = kv_.pools().state;
  const std::int64_t cached = kv_.tree().states_evictable();
  return {pool.total(), pool.free(), cached, pool.total() - pool.free() - cached};
}

std::optional<Stall> Scheduler::Impl::stall() const {
  const Slot head = never_admitted();
  if (head == kNoSlot) {
    return std::nullopt;
  }
  return Stall{at(head).id, Tokens{kv_.reach()}};
}

std::uint64_t Scheduler::Impl::state_digest() const {
  Digest digest;
  const auto add = [&](auto number) { digest.add_word(static_cast<std::uint64_t>(number)); };
  for (Slot slot = 0; slot < slots_.size(); ++slot) {
    const Request& request = at(slot);
    add(request.serial);
    if (request.serial == 0) {
      continue;
    }
    for (const std::int64_t number :
         {output(request), running_.filled(request), running_.decodes(request), request.kv.shared,
          request.kv.published, request.kv.gone, request.kv.prefix, request.known, request.computed,
          request.middle_chunks, request.queued_at, request.prefill_seen, request.kv.tracking,
          request.kv.tracked.value_or(-1)}) {
      add(number);
    }
    add((request.waiting ? 1 : 0) + (request.running ? 2 : 0) + (request.finished ? 4 : 0) +
        (request.aborting ? 8 : 0) + (request.retracted ? 16 : 0));
  }
  for (const Slot slot : waiting_) {
    add(slot);
  }
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    add(slot);
  }
  kv_.tree().add_to(digest);
  add(kv_.pools().full.free());
  add(kv_.pools().window.free());
  add(kv_.pools().state.free());
  add(running_.full ? 1 : 0);
  add(running_.extend_tokens);
  add(chunked_);
  add(free_rows_);
  add(prefilled_tokens_);
  add(refresh_calls_);
  add(decode_rounds_left_);
  add(ratio_ * 1e15);
  return digest.value();
}

void Scheduler::Impl::check_conservation() const {
  const SlotPools& pools = kv_.pools();
  std::int64_t full = 0;
  std::int64_t window = 0;
  std::int64_t states = 0;
  std::int64_t rows = 0;
  std::int64_t locks = 0;
  for (Slot slot = 0; slot < slots_.size(); ++slot) {
    const Request& request = at(slot);
    if (request.serial == 0 || !request.kv.held) {
      continue;
    }
    ++rows;
    locks += request.kv.locks && request.kv.locked != kRoot ? 1 : 0;
    const std::int64_t filled = running_.filled(request);
    full += std::max<std::int64_t>(pools.slots(request.kv.shared, filled), 0);
    const std::int64_t window_from = std::max(request.kv.shared, request.kv.gone);
    states += (request.kv.has_state ? 1 : 0) + request.kv.tracking;
    window += pools.windowed ? std::max<std::int64_t>(pools.slots(window_from, filled), 0) : 0;
  }
  const RadixTree& tree = kv_.tree();
  OOMCAST_CHECK(pools.full.free() + tree.evictable() + tree.locked() + full == pools.full.total(),
                "{} free + {} evictable + {} locked + {} of requests, the pool has {}",
                pools.full.free(), tree.evictable(), tree.locked(), full, pools.full.total());
  OOMCAST_CHECK(!pools.windowed ||
                    pools.window.free() + tree.window_evictable() + tree.window_locked() + window ==
                        pools.window.total(),
                "window pool: {} free + {} evictable + {} locked + {} of requests, it has {}",
                pools.window.free(), tree.window_evictable(), tree.window_locked(), window,
                pools.window.total());
  OOMCAST_CHECK(pools.state.free() + tree.states_evictable() + tree.states_locked() + states ==
                    pools.state.total(),
                "state pool: {} free + {} evictable + {} locked + {} of requests, it has {}",
                pools.state.free(), tree.states_evictable(), tree.states_locked(), states,
                pools.state.total());
  const std::int64_t all_rows = config_.max_running_requests + config_.extra_rows;
  OOMCAST_CHECK(rows + free_rows_ == all_rows, "{} rows held, {} free of {}", rows, free_rows_,
                all_rows);
  tree.check(locks);
}

// --- the public face

Scheduler::Scheduler(const SchedulerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

Added Scheduler::add(const RequestSpec& request) { return impl_->add(request); }
Abort Scheduler::abort(RequestId id) { return impl_->abort(id); }
bool Scheduler::handshake_done(RequestId id) { return impl_->handshake_done(id); }
bool Scheduler::transfer_done(RequestId id) { return impl_->transfer_done(id); }
bool Scheduler::copy_done(std::int64_t job) { return impl_->copy_done(job); }
const StepPlan& Scheduler::schedule() { return impl_->schedule(); }
const StepOutput& Scheduler::complete() { return impl_->complete(); }
std::int64_t Scheduler::steady_steps(std::int64_t limit) const {
  return impl_->steady_steps(limit);
}
SteadyShape Scheduler::steady_shape() const { return impl_->steady_shape(); }
const SteadyJump& Scheduler::advance_steady(std::int64_t n) { return impl_->advance_steady(n); }
std::int64_t Scheduler::depth() const { return impl_->depth(); }
std::int64_t Scheduler::batches_in_flight() const { return impl_->batches_in_flight(); }
bool Scheduler::work_in_flight() const { return impl_->work_in_flight(); }
bool Scheduler::idle() const { return impl_->idle(); }
PoolCounts Scheduler::slots() const { return impl_->slots(); }
PoolCounts Scheduler::window_slots() const { return impl_->window_slots(); }
StateCounts Scheduler::state_slots() const { return impl_->state_slots(); }
Tokens Scheduler::host_used() const { return impl_->host_used(); }
std::int64_t Scheduler::running() const { return impl_->running(); }
std::int64_t Scheduler::waiting() const { return impl_->waiting(); }
std::int64_t Scheduler::asking() const { return impl_->asking(); }
std::int64_t Scheduler::parked() const { return impl_->parked(); }
std::int64_t Scheduler::transferring() const { return impl_->transferring(); }
double Scheduler::new_token_ratio() const { return impl_->new_token_ratio(); }
std::int64_t Scheduler::preemptions() const { return impl_->preemptions(); }
Tokens Scheduler::prefix_hit_tokens() const { return Tokens{impl_->prefix_hit_tokens()}; }
std::optional<Stall> Scheduler::stall() const { return impl_->stall(); }
std::uint64_t Scheduler::state_digest() const { return impl_->state_digest(); }
void Scheduler::check_conservation() const { impl_->check_conservation(); }

}  // namespace oomcast::sglang
