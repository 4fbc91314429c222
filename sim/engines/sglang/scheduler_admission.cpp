// What a prefill batch may hold (managers/schedule_policy.py, PrefillAdder;
// mem_cache/prefill_budget.py).
#include <algorithm>
#include <cmath>

#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

Scheduler::Impl::Adder Scheduler::Impl::start_adder() const {
  Adder adder;
  const bool mixes = config_.enable_mixed_chunk && config_.chunked_prefill_size;
  const std::int64_t mixed = mixes ? running_.size() : 0;
  adder.input = config_.max_prefill_tokens.count() - mixed;
  if (config_.chunked_prefill_size) {
    adder.chunk = config_.chunked_prefill_size->count() - mixed;
  }
  adder.current_offset = mixed;
  // In batch order and added up on its own, as the engine does: sums of shares depend on it.
  double reserved_sum = 0;
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    reserved_sum += reserved(at(slot));
  }
  adder.total_offset = static_cast<double>(mixed) + reserved_sum;
  return adder;
}

double Scheduler::Impl::reserved(const Request& request) const {
  const bool in_full = rules_.reserves_fixed_outputs && request.ignore_eos;
  return static_cast<double>(std::min(request.max_output - output(request), clip_)) *
         (in_full ? 1.0 : ratio_);
}

double Scheduler::Impl::remaining_total(const Adder& adder) const {
  return static_cast<double>(kv_.reach()) - adder.total_offset;
}

std::int64_t Scheduler::Impl::remaining_current(const Adder& adder) const {
  return kv_.reach() - adder.current_offset;
}

std::int64_t Scheduler::Impl::remaining_window(const Adder& adder) const {
  return kv_.window_reach() - adder.window_offset;
}

std::int64_t Scheduler::Impl::new_tokens(const Request& request) const {
  return std::min(std::max<std::int64_t>(request.max_output - output(request), 0), clip_);
}

// Most window slots one request needs at a time: what a chunk takes beyond a window, a window of
// what it computes and decodes, and a page.
std::int64_t Scheduler::Impl::window_tokens(std::int64_t extend, std::int64_t fresh,
                                            std::optional<std::int64_t> limit) const {
  const std::int64_t allocated = std::min(extend, limit.value_or(extend));
  return std::max<std::int64_t>(allocated - kv_.window(), 0) +
         std::min(extend + fresh, kv_.window()) + kv_.page();
}

Scheduler::Impl::Verdict Scheduler::Impl::verdict(const Adder& adder) const {
  if (remaining_total(adder) <= 0 || remaining_current(adder) <= 0 ||
      (kv_.windowed() && remaining_window(adder) <= 0)) {
    return Verdict::kNoToken;
  }
  if (adder.input <= 0 || (adder.chunk && *adder.chunk <= 0)) {
    return Verdict::kOther;
  }
  return Verdict::kContinue;
}

void Scheduler::Impl::charge(Adder& adder, std::int64_t tokens, std::int64_t fresh) {
  const std::int64_t paged = align_up(tokens, kv_.page());
  const std::int64_t now = paged + (rules_.charges_page ? kv_.page() : 0);
  adder.total_offset += static_cast<double>(now + fresh);
  adder.current_offset += now;
  if (kv_.windowed()) {
    adder.window_offset += window_tokens(paged, fresh, adder.chunk);
  }
  adder.input -= paged;
  if (adder.chunk) {
    *adder.chunk -= paged;
  }
}

// The next chunk of the unfinished prompt. It must go on, whatever the budget says, to free its
// slots one day; only with a window pool it can sit a batch out.
void Scheduler::Impl::add_chunked(Adder& adder) {
  Request& request = at(chunked_);
  const std::int64_t budget = adder.chunk.value_or(0);
  std::int64_t room = std::min(budget, static_cast<std::int64_t>(remaining_total(adder)));
  if (kv_.windowed()) {
    room = std::min(room, remaining_window(adder) - kv_.page());
    if (room <= 0) {
      return;
    }
  } else if (room <= 0) {
    room = budget;
  }
  if (const std::optional<std::int64_t> limit = chunk_limit(request, budget)) {
    room = std::min(room, *limit);
  }
  const std::int64_t left = request.known - request.kv.prefix;
  const std::int64_t tokens = std::min(left, room);
  request.computed = request.kv.prefix + tokens;
  request.last_extend = tokens;
  adder.picked.push_back(chunked_);
  charge(adder, tokens, left > room ? 0 : std::min(request.max_output, clip_));
  if (left <= room) {
    chunked_ = kNoSlot;
  }
}

// shortest-prefill-first: the chunk leaves room for shorter prompts that wait.
std::optional<std::int64_t> Scheduler::Impl::chunk_limit(const Request& chunked,
                                                         std::int64_t budget) const {
  if (policy_ != SchedulePolicy::kShortestPrefill || budget < 2 * kv_.page()) {
    return std::nullopt;
  }
  const std::int64_t remaining = chunked.known - chunked.kv.prefix;
  std::int64_t spared = 0;
  for (const Slot slot : waiting_) {
    const std::int64_t work = prefill_work(at(slot));
    const std::int64_t charged = align_up(work, kv_.page());
    if (work >= remaining || spared + charged > budget - kv_.page()) {
      break;
    }
    spared += charged;
  }
  if (spared == 0) {
    return std::nullopt;
  }
  return kv_.pools().floor(budget - spared);
}

Scheduler::Impl::Verdict Scheduler::Impl::add_one(Adder& adder, Slot slot) {
  if (config_.prefill_max_requests &&
      static_cast<std::int64_t>(adder.picked.size()) >= *config_.prefill_max_requests) {
    return Verdict::kOther;
  }
  Request& request = at(slot);
  if (request.ignore_eos && !kv_.sharing()) {
    return add_fixed_length(adder, slot);
  }
  const std::int64_t extend = request.known - request.kv.prefix;
  const std::int64_t need = extend + new_tokens(request) + (rules_.needs_page ? kv_.page() : 0);
  if (rules_.input_cap_while_chunking) {
    if (static_cast<double>(need) >= remaining_total(adder)) {
      return Verdict::kNoToken;
    }
    if (align_up(extend, kv_.page()) >= adder.input && !adder.picked.empty()) {
      return Verdict::kOther;
    }
  }
  // What the request would use is not evictable while this is decided.
  const NodeId node = request.kv.node;
  const WindowMark mark = kv_.lock(node);
  const Verdict found = add_one_locked(adder, slot, need);
  kv_.unlock(node, mark);
  return found == Verdict::kContinue ? verdict(adder) : found;
}

// A hit on the host comes to the card as soon as the request is sure to run; where it cannot, the
// request computes it, if there is room for that.
Scheduler::Impl::Verdict Scheduler::Impl::add_one_locked(Adder& adder, Slot slot,
                                                         std::int64_t need) {
  KvRow& kv = at(slot).kv;
  Piece piece = choose_piece(adder, at(slot), kv.host, need);
  if (piece.verdict == Verdict::kContinue && kv.host > 0 && !kv_.load_back(kv)) {
    piece = choose_piece(adder, at(slot), 0, need);
  }
  if (piece.verdict == Verdict::kContinue) {
    pick(adder, slot, piece.tokens, piece.whole);
  }
  return piece.verdict;
}

// `host`: tokens that will not be computed beside those of the prefix.
Scheduler::Impl::Piece Scheduler::Impl::choose_piece(const Adder& adder, const Request& request,
                                                     std::int64_t host, std::int64_t need) const {
  if (static_cast<double>(need) >= remaining_total(adder)) {
    return {Verdict::kNoToken};
  }
  const std::int64_t prefix = request.kv.prefix + host;
  const std::int64_t extend = request.known - prefix;
  const std::int64_t paged = align_up(extend, kv_.page());
  std::optional<std::int64_t> limit = adder.chunk;
  if (kv_.windowed()) {
    const std::int64_t fresh = new_tokens(request);
    const std::int64_t window_need = window_tokens(paged, fresh, limit);
    if (window_need >= remaining_window(adder)) {
      // Who could never fit runs in smaller chunks; the others wait.
      const bool never = window_need >= kv_.pools().window.total();
      const std::int64_t cap =
          never ? kv_.pools().floor(std::max<std::int64_t>(
                      remaining_window(adder) - window_tokens(0, fresh, std::nullopt), 0))
                : 0;
      if (!limit || cap <= 0) {
        return {Verdict::kNoToken};
      }
      limit = std::min(*limit, cap);
    }
  }
  if ((!adder.chunk || rules_.input_cap_while_chunking) && !adder.picked.empty() &&
      paged >= adder.input) {
    return {Verdict::kOther};
  }
  if (!limit || paged <= *limit) {
    return {Verdict::kContinue, extend, true};
  }
  if (chunked_ != kNoSlot && policy_ == SchedulePolicy::kShortestPrefill) {
    return {Verdict::kOther};
  }
  std::int64_t tokens = kv_.pools().floor(*limit);
  if (rules_.chunk_end_aligned) {
    tokens = kv_.pools().floor(prefix + tokens) - prefix;
  }
  if (tokens <= 0) {
    return {Verdict::kOther};
  }
  return {Verdict::kContinue, tokens, false};
}

void Scheduler::Impl::pick(Adder& adder, Slot slot, std::int64_t extend, bool whole) {
  Request& request = at(slot);
  request.computed = request.kv.prefix + extend;
  request.last_extend = extend;
  kv_.hold(request.kv);
  adder.picked.push_back(slot);
  if (!whole) {
    adder.new_chunked = slot;
  }
  charge(adder, extend, whole ? std::min(request.max_output, clip_) : 0);
}

// ignore_eos without a prefix cache: lengths are known, so the completion of all is played through.
Scheduler::Impl::Verdict Scheduler::Impl::add_fixed_length(Adder& adder, Slot slot) {
  Request& request = at(slot);
  const std::int64_t extend = request.known - request.kv.prefix;
  const std::int64_t paged =
      align_up(extend, kv_.page()) + (rules_.fixed_need_page ? kv_.page() : 0);
  if (paged > remaining_current(adder) || static_cast<double>(paged) > remaining_total(adder) ||
      (kv_.windowed() &&
       window_tokens(extend, new_tokens(request), adder.chunk) > remaining_window(adder)) ||
      !fixed_length_fits(adder, request, paged)) {
    return Verdict::kNoToken;
  }
  const bool whole = !adder.chunk || extend <= *adder.chunk;
  if (!whole && *adder.chunk <= 0) {
    return Verdict::kOther;
  }
  pick(adder, slot, whole ? extend : *adder.chunk, whole);
  return verdict(adder);
}

bool Scheduler::Impl::fixed_length_fits(Adder& adder, const Request& request,
                                        std::int64_t paged) const {
  const auto state = [&](const Request& of) {
    const double ratio = of.ignore_eos ? 1.0 : ratio_;
    return std::pair{static_cast<double>(of.max_output) * ratio - static_cast<double>(output(of)),
                     length(of)};
  };
  const auto by_left = [](const auto& left, const auto& right) { return left.first < right.first; };
  if (!adder.states) {
    std::vector<std::pair<double, std::int64_t>> states{state(request)};
    for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
      states.push_back(state(at(slot)));
    }
    for (const Slot slot : adder.picked) {
      states.push_back(state(at(slot)));
    }
    std::erase_if(states, [](const auto& entry) { return entry.first <= 0; });
    std::stable_sort(states.begin(), states.end(), by_left);
    adder.states = std::move(states);
  } else if (const auto entry = state(request); entry.first > 0) {
    // Before the first that has as much left; the engine never goes behind the last.
    auto place = std::lower_bound(adder.states->begin(), adder.states->end(), entry, by_left);
    if (place == adder.states->end() && place != adder.states->begin()) {
      --place;
    }
    adder.states->insert(place, entry);
  }
  if (kv_.windowed()) {
    return true;
  }
  const auto current = static_cast<double>(remaining_current(adder) - paged);
  double freed = 0;
  auto together = static_cast<double>(adder.states->size());
  for (const auto& [left, occupied] : *adder.states) {
    if (current + freed - left * together <= together) {
      return false;
    }
    freed += static_cast<double>(occupied);
    --together;
  }
  return true;
}

// Takes running requests back for a better one, least preferred first, if that makes room.
bool Scheduler::Impl::preempt_for(Adder& adder, const Request& request) {
  std::vector<Slot> candidates;
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    if (!at(slot).finished) {
      candidates.push_back(slot);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](Slot left, Slot right) {
    return std::pair{-rank(at(left)), -at(left).queued_at} <
           std::pair{-rank(at(right)), -at(right).queued_at};
  });
  const std::int64_t extend =
      rules_.preemption_uses_prompt ? request.known - request.kv.prefix : request.last_extend;
  double missing =
      static_cast<double>(extend + std::min(request.max_output, clip_)) - remaining_total(adder);
  std::size_t victims = 0;
  for (const Slot slot : candidates) {
    if (rank(at(slot)) - rank(request) <= config_.priority_scheduling_preemption_threshold) {
      break;
    }
    ++victims;
    missing -= reserved(at(slot));
    if (missing <= 0) {
      break;
    }
  }
  if (victims == 0 || missing > 0) {
    return false;
  }
  candidates.resize(victims);
  std::sort(candidates.begin(), candidates.end(),
            [&](Slot left, Slot right) { return at(left).order < at(right).order; });
  for (const Slot slot : candidates) {
    adder.total_offset -= reserved(at(slot));
    adder.preempted.push_back(slot);
    leave_running(slot, false);
    give_up(slot, running_.size());
  }
  return true;
}

}  // namespace oomcast::sglang
