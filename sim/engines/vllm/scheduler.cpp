#include "sim/engines/vllm/scheduler.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_impl.hpp"

namespace oomcast::vllm {
namespace {

SchedulerConfig checked(const SchedulerConfig& config) {
  Problems problems;
  check(config, "scheduler settings", problems);
  problems.raise_if_any();
  return config;
}

}  // namespace

Scheduler::Impl::Impl(const SchedulerConfig& config)
    : config_(checked(config)),
      rules_(config.rules),
      kv_(config),
      running_(slots_),
      waiting_(slots_, config.policy),
      kv_waiting_(slots_, config.policy),
      depth_(pipeline_depth(config)),
      max_scheduled_(
          config.max_num_scheduled_tokens.value_or(config.max_num_batched_tokens).count()),
      max_batched_(config.max_num_batched_tokens.count()),
      max_model_len_(config.max_model_len.count()),
      max_active_(rules_.active_seqs_limit
                      ? config.max_num_active_seqs.value_or(config.max_num_seqs)
                      : config.max_num_seqs),
      speculative_(
          config.spec.method == SpecDecode::Method::kNone ? 0 : config.spec.num_speculative_tokens),
      prefill_interval_(rules_.prefill_interval ? config.prefill_schedule_interval : 1),
      by_priority_(config.policy == SchedulerConfig::Policy::kPriority),
      spaced_decodes_(config.async_scheduling && rules_.model_runner_v2 &&
                      config.pipeline_parallel_size > 1),
      pipeline_(static_cast<std::size_t>(depth_)),
      last_prefill_step_(-prefill_interval_),
      held_(slots_) {
  const bool drafts_with_kv = config.spec.method == SpecDecode::Method::kEagle ||
                              config.spec.method == SpecDecode::Method::kDraftModel;
  lookahead_ = drafts_with_kv ? speculative_ : 0;
  if (config.spec.method == SpecDecode::Method::kDraftModel) {
    if (rules_.draft_slots_per_request) {
      draft_slots_ = 1;
    } else if (!config.max_num_scheduled_tokens) {
      max_scheduled_ -= config.max_num_seqs;
    }
  }
  for (const KvGroup& group : config.groups) {
    if (group.type == KvGroup::Type::kMamba && group.mamba_mode == KvGroup::MambaMode::kAlign) {
      mamba_block_ = group.block_size.count();
    }
  }
  if (config.connector) {
    connector_ = KvConnector::make(config, kv_.hash_block_size());
    recompute_failed_loads_ =
        config.connector->load_failure_policy == ConnectorConfig::LoadFailure::kRecompute;
    defer_block_free_ = depth_ > 1 && config.connector->role != ConnectorConfig::Role::kProducer;
    requires_delivery_ = config.connector->kind == ConnectorConfig::Kind::kNixl &&
                         config.connector->role != ConnectorConfig::Role::kConsumer;
    for (const KvGroup& group : config.groups) {
      draft_step_blocks_ +=
          speculative_ > 0 ? div_ceil(1 + speculative_ + lookahead_, group.block_size.count()) : 0;
    }
  }
  tracks_tables_ = config.detail || connector_;
  no_hit_.blocks.resize(kv_.num_groups());
  lane_possible_ = !config.detail && !connector_ && kv_.plain() && speculative_ == 0 &&
                   config.pipeline_parallel_size == 1 && depth_ <= 2 && prefill_interval_ == 1 &&
                   kv_.block_size() <= 4096;
  if (lane_possible_) {
    lane_.set_block_size(kv_.block_size());
  }
}

Added Scheduler::Impl::add(const RequestSpec& spec) {
  if (spec.prompt_len.count() <= 0) {
    return Added::kEmptyPrompt;
  }
  if (spec.prompt_len.count() >= max_model_len_) {
    return Added::kPromptTooLong;
  }
  if (spec.max_output.count() < 1) {
    return Added::kNoOutput;
  }
  if (live_.contains(spec.id)) {
    return Added::kDuplicateId;
  }
  const Slot slot = slots_.take();
  live_.emplace(spec.id, slot);
  Request& request = at(slot);
  request.id = spec.id;
  request.serial = next_serial_++;
  request.priority = spec.priority;
  request.arrival_time = spec.arrival_time;
  request.tie_order = spec.tie_order;
  request.prompt_len = spec.prompt_len.count();
  // More than max_model_len is never reached, and sums of it stay small.
  request.max_output = std::min(spec.max_output.count(), max_model_len_);
  request.output = 0;
  request.computed = 0;
  request.placeholders = 0;
  request.in_flight = 0;
  request.stale = 0;
  request.drafts = 0;
  request.eligible_step = 0;
  request.shared_boundary = 0;
  request.prefill_chunk = false;
  request.waits_for_kv = false;
  request.transfer = spec.transfer;
  request.transfer_asked = false;
  request.arrived = false;
  request.load_failed = false;
  request.was_preempted = false;
  request.drops_stale = false;
  request.last_batch = 0;
  request.status = Request::Status::kWaiting;
  request.lane = Request::Lane::kNone;
  request.accept.assign(spec.accept.begin(), spec.accept.end());
  request.draft_counts.assign(spec.drafts.begin(), spec.drafts.end());
  request.groups.resize(kv_.num_groups());
  if (connector_) {
    connector_->added(request);
  }
  set_content(request, spec);
  waiting_.add(slot);
  return Added::kQueued;
}

void Scheduler::Impl::set_content(Request& request, const RequestSpec& spec) {
  request.chain.clear();
  request.chain.set_sizes(kv_.hash_block_size(), kv_.hash_lookahead());
  if (!kv_.caching() && !connector_) {
    request.indexable = kv_.plain() ? 0 : kAllIndexable;
    return;
  }
  std::int64_t shared = 0;
  for (const ContentSegment& segment : spec.prompt) {
    const std::int64_t length = std::min(segment.length.count(), request.prompt_len - shared);
    request.chain.append({segment.id, Tokens{length}, segment.offset});
    shared += std::max<std::int64_t>(length, 0);
  }
  if (shared < request.prompt_len) {
    request.chain.append(
        {private_segment(2 * request.serial), Tokens{request.prompt_len - shared}});
  }
  // The last segment is taken as endless: output that continues it needs none of its own.
  const bool continues = spec.output_continues_prompt && shared > 0 && shared == request.prompt_len;
  if (!continues) {
    request.chain.append({spec.output_content.value_or(private_segment(2 * request.serial + 1)),
                          Tokens{max_model_len_}});
  }
  const bool all_shared =
      continues || (shared == request.prompt_len && spec.output_content.has_value());
  request.indexable =
      all_shared || !kv_.plain() || connector_
          ? kAllIndexable
          : std::max<std::int64_t>(shared - kv_.hash_lookahead(), 0) / kv_.hash_block_size();
}

Abort Scheduler::Impl::abort(RequestId id) {
  const auto place = live_.find(id);
  if (place == live_.end()) {
    return {};
  }
  const Slot slot = place->second;
  if (at(slot).status == Request::Status::kEnded) {
    return {};
  }
  if (at(slot).status == Request::Status::kRunning) {
    abort_in_lane(slot);
    stop_running(slot);
  } else {
    leave_queue(slot);
  }
  const Tokens output{at(slot).output};
  end_request(slot, KvConnector::End::kAborted);
  return {true, output};
}

void Scheduler::Impl::leave_queue(Slot slot) {
  (at(slot).waits_for_kv ? kv_waiting_ : waiting_).erase(slot);
  at(slot).waits_for_kv = false;
}

// Takes a request out of the running list.
void Scheduler::Impl::stop_running(Slot slot) {
  if (first_loose_ == slot) {
    first_loose_ = at(slot).next;
  }
  running_.erase(slot);
}

void Scheduler::Impl::release_request(Slot slot) {
  Request& request = at(slot);
  live_.erase(request.id);
  request.serial = 0;
  request.lane = Request::Lane::kNone;
  if (request.chain.blocks() > 0) {
    // Long hashed tables are few at a time, while slots are many where requests wait.
    request.chain.free();
    request.groups.clear();
  }
  slots_.give_back(slot);
}

std::int64_t Scheduler::Impl::output_limit(const Request& request) const {
  return std::min(request.max_output, max_model_len_ - request.prompt_len);
}

bool Scheduler::Impl::work_in_flight() const {
  for (std::int64_t i = 0; i < in_flight_; ++i) {
    if (!batch(i).empty()) {
      return true;
    }
  }
  return false;
}

void Scheduler::Impl::drop_empty_batches() {
  if (!work_in_flight()) {
    in_flight_ = 0;
  }
}

Derived Scheduler::Impl::derived() const {
  return {Tokens{kv_.scheduler_block_size()},
          Tokens{kv_.hash_block_size()},
          depth_,
          lookahead_,
          kv_.hash_lookahead(),
          kv_.eagle_drop(),
          draft_slots_,
          defer_block_free_,
          requires_delivery_,
          draft_step_blocks_};
}

PoolCounts Scheduler::Impl::blocks() const {
  return {Blocks{kv_.total()}, Blocks{kv_.available()}, Blocks{kv_.cached_free()},
          Blocks{kv_.total() - kv_.available()}};
}

std::optional<Stall> Scheduler::Impl::stall() {
  if (running_.size() > 0 || waiting() == 0 || work_in_flight() || plan_.requests > 0 ||
      transfers_pending() || held_.size() > 0) {
    return std::nullopt;
  }
  Request& head = at(kv_waiting_.size() > 0 ? kv_waiting_.front() : waiting_.front());
  if (head.status == Request::Status::kRemote) {
    return std::nullopt;  // its KV is on the way
  }
  const std::int64_t needed = kv_.full_sequence_need(head, kv_.find_hit(head));
  return Stall{head.id, Blocks{needed}, Blocks{kv_.available()}};
}

void Scheduler::Impl::digest_request(Digest& digest, const Request& request,
                                     const kv::PoolListing& pool) const {
  Request view;  // counters as they are between rounds, whether in the lane or not
  view.prompt_len = request.prompt_len;
  view.output = request.output;
  view.computed = request.computed;
  view.placeholders = request.placeholders;
  view.in_flight = request.in_flight;
  view.lane = request.lane;
  view.lane_join = request.lane_join;
  view.lane_offset = request.lane_offset;
  if (request.lane == Request::Lane::kMember) {
    restore(view, step_);
  }
  for (const std::int64_t number :
       {static_cast<std::int64_t>(request.id), view.output, view.computed, view.placeholders,
        view.in_flight, request.stale, request.drafts, request.eligible_step}) {
    digest.add_word(static_cast<std::uint64_t>(number));
  }
  for (const GroupTable& table : request.groups) {
    const std::vector<kv::BlockId> blocks = kv_.blocks_of(table);
    for (const kv::BlockId block : blocks) {
      digest.add_word(static_cast<std::uint64_t>(block));
      digest.add_word(static_cast<std::uint64_t>(pool.references[static_cast<std::size_t>(block)]));
    }
    digest.add_word(blocks.size());
  }
}

std::uint64_t Scheduler::Impl::state_digest() const {
  Digest digest;
  const kv::PoolListing pool = kv_.listing();
  for (const kv::BlockId block : pool.free_list) {
    digest.add_word(static_cast<std::uint64_t>(block) * 2 +
                    (pool.hashed[static_cast<std::size_t>(block)] ? 1 : 0));
  }
  for (std::size_t block = 1; block < pool.keys.size(); ++block) {
    digest.add_word(pool.keys[block]);
  }
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    digest_request(digest, at(slot), pool);
  }
  digest.add_word(static_cast<std::uint64_t>(running_.size()));
  for (const WaitingQueue* queue : {&waiting_, &kv_waiting_}) {
    for (Slot slot = queue->front(); slot != kNoSlot; slot = queue->after(slot)) {
      digest_request(digest, at(slot), pool);
    }
  }
  for (const std::int64_t number :
       {waiting(), step_, in_flight_, preemptions_, prefix_hit_tokens_, executed_steps_}) {
    digest.add_word(static_cast<std::uint64_t>(number));
  }
  return digest.value();
}

void Scheduler::Impl::check_conservation() const {
  kv_.check();
  const kv::PoolListing pool = kv_.listing();
  std::vector<std::int32_t> references(pool.references.size(), 0);
  const auto count = [&](const Request& request) {
    for (const GroupTable& table : request.groups) {
      for (const kv::BlockId block : kv_.blocks_of(table)) {
        ++references[static_cast<std::size_t>(block)];
      }
    }
  };
  for (const SlotList* list : {&running_, &held_}) {
    for (Slot slot = list->front(); slot != kNoSlot; slot = at(slot).next) {
      count(at(slot));
    }
  }
  for (const WaitingQueue* queue : {&waiting_, &kv_waiting_}) {
    for (Slot slot = queue->front(); slot != kNoSlot; slot = queue->after(slot)) {
      count(at(slot));
      // Only what a connector brought or is bringing. The last token is computed here, so of a
      // prompt of one token nothing counts as computed.
      OOMCAST_CHECK(kv_.size_of(at(slot).groups.front()) == 0 || at(slot).computed > 0 ||
                        at(slot).known() == 1 || at(slot).status == Request::Status::kRemote,
                    "request {} waits with {} blocks", at(slot).id,
                    kv_.size_of(at(slot).groups.front()));
    }
  }
  for (const Fenced& fenced : fenced_) {
    for (const kv::BlockId block : fenced.blocks) {
      ++references[static_cast<std::size_t>(block)];
    }
  }
  for (std::size_t block = 1; block < references.size(); ++block) {
    OOMCAST_CHECK(references[block] == pool.references[block],
                  "block {} is in {} tables but has {} references", block, references[block],
                  pool.references[block]);
  }
}

Scheduler::Scheduler(const SchedulerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

Added Scheduler::add(const RequestSpec& request) { return impl_->add(request); }
Abort Scheduler::abort(RequestId id) { return impl_->abort(id); }
const StepPlan& Scheduler::schedule() { return impl_->schedule(); }
const StepOutput& Scheduler::complete(const TransferReport& report) {
  return impl_->complete(report);
}
void Scheduler::drop_empty_batches() { impl_->drop_empty_batches(); }
Derived Scheduler::derived() const { return impl_->derived(); }
std::int64_t Scheduler::depth() const { return impl_->depth(); }
std::int64_t Scheduler::batches_in_flight() const { return impl_->batches_in_flight(); }
bool Scheduler::work_in_flight() const { return impl_->work_in_flight(); }
bool Scheduler::idle() const { return impl_->idle(); }
std::int64_t Scheduler::steady_steps(std::int64_t limit) const {
  return impl_->steady_steps(limit);
}
SteadyShape Scheduler::steady_shape() const { return impl_->steady_shape(); }
const SteadyJump& Scheduler::advance_steady(std::int64_t n) { return impl_->advance_steady(n); }
PoolCounts Scheduler::blocks() const { return impl_->blocks(); }
std::int64_t Scheduler::running() const { return impl_->running(); }
std::int64_t Scheduler::waiting() const { return impl_->waiting(); }
std::int64_t Scheduler::preemptions() const { return impl_->preemptions(); }
Tokens Scheduler::prefix_hit_tokens() const { return Tokens{impl_->prefix_hit_tokens()}; }
TransferCounts Scheduler::transfers() const { return impl_->transfers(); }
std::int64_t Scheduler::host_chunks() const { return impl_->host_chunks(); }
std::optional<Stall> Scheduler::stall() const { return impl_->stall(); }
std::uint64_t Scheduler::state_digest() const { return impl_->state_digest(); }
void Scheduler::check_conservation() const { impl_->check_conservation(); }

}  // namespace oomcast::vllm
