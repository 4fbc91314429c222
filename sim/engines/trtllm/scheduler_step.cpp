// Rounds: a batch gets its blocks and is launched, its results are applied; many rounds at once.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/trtllm/scheduler_impl.hpp"

namespace oomcast::trtllm {

const StepPlan& Scheduler::Impl::schedule() {
  OOMCAST_CHECK(batches_in_flight() < depth(), "{} batches in flight", batches_in_flight());
  StepPlan fresh;  // but for the buffers
  fresh.admitted.swap(plan_.admitted);
  fresh.paused.swap(plan_.paused);
  fresh.admitted.clear();
  fresh.paused.clear();
  plan_ = std::move(fresh);
  plan_.step = step_++;
  allowed_.clear();
  contexts_.clear();
  generations_.clear();
  settled_ = true;
  fetch();
  if (config_.capacity == CapacityPolicy::kMaxUtilization) {
    maximise_utilization();
  } else {
    guarantee_no_evict();
  }
  choose_tokens();
  // Contexts that were let in but not launched, or are under way, make the next round another one.
  settled_ = settled_ && allowed_.size() == generations_.size();
  launch();
  plan_.blocks = blocks();
  plan_.host.used = Blocks{host_ ? host_->cached_free() : 0};
  plan_.running = running();
  plan_.waiting = waiting();
  return plan_;
}

void Scheduler::Impl::launch() {
  Batch batch;
  for (const Piece& piece : contexts_) {
    run_context(piece, batch);
  }
  for (const Slot slot : generations_) {
    run_generation(slot, batch);
  }
  plan_.tokens = plan_.prefill_tokens + Tokens{plan_.decode_requests};
  plan_.requests = plan_.prefill_requests + plan_.decode_requests;
  plan_.sampling_requests = std::ssize(batch.rows);
  // Only the last piece of a context has logits.
  plan_.sampled_rows = plan_.sampling_requests;
  batch.tokens = plan_.tokens.count();
  in_flight_.push_back(std::move(batch));
}

void Scheduler::Impl::take_blocks(Request& request, std::int64_t count) {
  OOMCAST_CHECK(count <= pool_.free(), "{} blocks are to be taken, {} are free", count,
                pool_.free());
  if (!host_) {
    pool_.take(count, request.table);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    request.table.push_back(take_block());
  }
}

// The blocks of the whole context, those of a known prefix shared. Its last token is computed in
// any case.
void Scheduler::Impl::start_sequence(Request& request) {
  if (request.has_content) {
    request.hashes.extend(request.known);
    const std::int64_t full = (request.known - 1) / block();
    for (std::int64_t i = 0; i < full; ++i) {
      const kv::BlockId found = claim(kv::block_key(request.hashes.hash(i), 0), (i + 1) * block());
      if (found == kv::kNullBlock) {
        break;
      }
      request.table.push_back(found);
    }
  }
  const std::int64_t shared = std::ssize(request.table);
  request.computed = shared * block();
  take_blocks(request, blocks_for(request.known) - shared);
  request.started = true;
  hit_tokens_ += request.computed;
  plan_.admitted.push_back({request.id, request.resumed, Tokens{request.computed}});
}

void Scheduler::Impl::run_context(const Piece& piece, Batch& batch) {
  Request& request = at(piece.slot);
  std::int64_t end = request.computed + piece.tokens;
  if (!request.started) {
    start_sequence(request);
    // The chunk moves behind what was found and still ends with a block.
    end = std::min(request.computed + piece.tokens, request.known);
    end = end < request.known ? end - end % block() : end;
  }
  const std::int64_t cached = request.computed;
  const std::int64_t fresh = end - cached;
  request.computed = end;
  ++plan_.prefill_requests;
  plan_.prefill_tokens += Tokens{fresh};
  plan_.prefill_attention += fresh * cached + fresh * (fresh + 1) / 2;
  if (end == request.known) {
    ++request.launched;
    batch.rows.push_back({piece.slot, true});
  }
}

void Scheduler::Impl::run_generation(Slot slot, Batch& batch) {
  Request& request = at(slot);
  if (request.computed == std::ssize(request.table) * block()) {
    take_blocks(request, 1);
  }
  ++request.computed;
  ++request.launched;
  ++plan_.decode_requests;
  plan_.decode_context += Tokens{request.computed};
  batch.rows.push_back({slot, false});
}

const StepOutput& Scheduler::Impl::complete() {
  OOMCAST_CHECK(!in_flight_.empty(), "no batch is in flight");
  const Batch batch = std::move(in_flight_.front());
  in_flight_.pop_front();
  output_.first_token.clear();
  output_.finished.clear();
  for (const Row& row : batch.rows) {
    Request& request = at(row.slot);
    if (++request.sampled == 1) {
      output_.first_token.push_back(request.id);
    }
    if (row.ends_context && request.started) {
      store(request, std::min(request.known, request.computed));
    }
    if (request.sampled == request.max_output) {
      output_.finished.push_back({request.id, Tokens{request.sampled}, request.aborted});
      finish(row.slot);
    }
  }
  return output_;
}

// Full blocks of the first `tokens` tokens can be found from now on, unless others hold the same.
void Scheduler::Impl::store(Request& request, std::int64_t tokens) {
  if (!request.has_content) {
    return;
  }
  request.hashes.extend(tokens);
  for (std::int64_t i = 0; i < tokens / block(); ++i) {
    const kv::BlockId id = request.table[static_cast<std::size_t>(i)];
    const kv::BlockKey key = kv::block_key(request.hashes.hash(i), 0);
    if (!pool_.hashed(id) && !known(key)) {
      pool_.insert(key, id, (i + 1) * block());
    }
  }
}

// From the tail to the head, so that tails are evicted first. Content that nobody shares is kept
// like any other.
void Scheduler::Impl::release(Request& request) {
  if (!request.started) {
    return;
  }
  store(request, request.computed);
  kv::BlockPool::Release release(pool_);
  if (request.has_content) {
    for (auto id = request.table.rbegin(); id != request.table.rend(); ++id) {
      release(*id);
    }
  } else {
    release.owned(request.table, 0, config_.block_reuse ? request.computed / block() : 0);
  }
  request.table.clear();
}

void Scheduler::Impl::finish(Slot slot) {
  release(at(slot));
  active_.erase(std::find(active_.begin(), active_.end(), slot));
  spare_.push_back(slot);
  settled_ = false;
}

void Scheduler::Impl::drop_empty_batches() {
  OOMCAST_CHECK(!work_in_flight(), "a batch in flight has tokens");
  in_flight_.clear();
  settled_ = false;
}

// ---- many rounds
// ---------------------------------------------------------------------------------

// Blocks that the running generations take in so many rounds.
std::int64_t Scheduler::Impl::growth_within(std::int64_t rounds) const {
  std::int64_t blocks = 0;
  for (const Slot slot : generations_) {
    const Request& request = at(slot);
    blocks += std::max<std::int64_t>(
        blocks_for(request.computed + rounds) - std::ssize(request.table), 0);
  }
  return blocks;
}

std::int64_t Scheduler::Impl::steady_steps() const {
  if (!settled_ || batches_in_flight() != depth() - 1 || generations_.empty()) {
    return 0;
  }
  std::int64_t steps = std::numeric_limits<std::int64_t>::max();
  for (const Slot slot : active_) {
    const Request& request = at(slot);
    if (request.generates()) {
      steps = std::min(steps, request.max_output - request.launched);
    }
  }
  // With one batch in flight results come a round late.
  steps -= config_.overlap ? 0 : 1;
  // With a host pool an evicted block is copied, which another round does not do.
  const auto room = [&](std::int64_t blocks) {
    return host_ ? pool_.plain_front(blocks) : pool_.free();
  };
  for (std::int64_t growth = growth_within(steps); steps > 0 && growth > room(growth);
       growth = growth_within(steps)) {
    steps /= 2;
  }
  return std::max<std::int64_t>(steps, 0);
}

SteadyShape Scheduler::Impl::steady_shape() const {
  SteadyShape shape;
  for (const Slot slot : generations_) {
    ++shape.decode_requests;
    shape.first_context += Tokens{at(slot).computed + 1};
  }
  return shape;
}

const SteadyJump& Scheduler::Impl::advance_steady(std::int64_t n) {
  OOMCAST_CHECK(n >= 1 && n <= steady_steps(), "{} steady rounds, {} are certain", n,
                steady_steps());
  const SteadyShape shape = steady_shape();
  jump_.first_step = step_;
  jump_.steps = n;
  jump_.decode_requests = shape.decode_requests;
  jump_.first_context = shape.first_context;
  // New blocks in the order in which single rounds take them.
  growth_.clear();
  for (const Slot slot : generations_) {
    const Request& request = at(slot);
    for (std::int64_t round = std::ssize(request.table) * block() - request.computed; round < n;
         round += block()) {
      growth_.push_back({round, slot});
    }
  }
  std::stable_sort(growth_.begin(), growth_.end(), [](const Growth& left, const Growth& right) {
    return left.round < right.round;
  });
  auto next = growth_.begin();
  for (; next != growth_.end() && next->round == 0; ++next) {
    take_blocks(at(next->slot), 1);
  }
  jump_.first = blocks();
  jump_.last_growth = growth_.empty() ? 0 : growth_.back().round;
  for (; next != growth_.end(); ++next) {
    take_blocks(at(next->slot), 1);
  }
  jump_.last = blocks();
  for (const Slot slot : generations_) {
    Request& request = at(slot);
    request.computed += n;
    request.launched += n;
    request.sampled += n;
  }
  step_ += n;
  return jump_;
}

}  // namespace oomcast::trtllm
