// Order of the queue (managers/schedule_policy.py, SchedulePolicy).
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {
namespace {

// Lookups are bounded to this many waiting requests.
constexpr std::size_t kMatchMax = 128;
constexpr std::int64_t kRefreshInterval = 32;
// In-batch prefix caching: who has at most so many cached tokens, and shares at least as many with
// somebody before it in the queue, is put last.
constexpr std::int64_t kInBatchTokens = 32;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Key>
void sort_by(std::deque<Slot>& waiting, Key key) {
  std::vector<std::pair<decltype(key(Slot{})), Slot>> keyed;
  keyed.reserve(waiting.size());
  for (const Slot slot : waiting) {
    keyed.emplace_back(key(slot), slot);
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& left, const auto& right) { return left.first < right.first; });
  std::transform(keyed.begin(), keyed.end(), waiting.begin(),
                 [](const auto& entry) { return entry.second; });
}

}  // namespace

void Scheduler::Impl::order_waiting() {
  const bool long_queue = waiting_.size() > kMatchMax;
  switch (policy_) {
    case SchedulePolicy::kFcfs:
      if (config_.enable_priority_scheduling) {
        sort_by(waiting_, [&](Slot slot) { return std::pair{rank(at(slot)), at(slot).queued_at}; });
      }
      break;
    case SchedulePolicy::kLof:
      sort_by(waiting_, [&](Slot slot) {
        return std::pair{config_.enable_priority_scheduling ? rank(at(slot)) : 0,
                         -at(slot).max_output};
      });
      break;
    case SchedulePolicy::kRoutingKey:
      order_by_routing_key();
      break;
    case SchedulePolicy::kLpm:
      if (!long_queue) {
        const std::vector<bool> put_last = match_waiting();
        std::size_t i = 0;
        sort_by(waiting_, [&](Slot slot) {
          const Request& request = at(slot);
          const std::int64_t hit = rules_.lpm_by_cut_match ? request.matched : request.kv.prefix;
          return put_last[i++] ? kInfinity : -static_cast<double>(hit);
        });
        return;
      }
      break;
    case SchedulePolicy::kHrrn:
      if (!long_queue) {
        order_by_response_ratio(match_waiting());
        return;
      }
      break;
    case SchedulePolicy::kShortestPrefill: {
      const std::vector<bool> put_last = match_waiting();
      std::size_t i = 0;
      sort_by(waiting_, [&](Slot slot) {
        return std::tuple{static_cast<bool>(put_last[i++]), prefill_work(at(slot)),
                          at(slot).queued_at};
      });
      return;
    }
    case SchedulePolicy::kDfsWeight: {
      match_waiting();
      std::vector<NodeId> ends;
      for (const Slot slot : waiting_) {
        ends.push_back(at(slot).kv.node);
      }
      const std::deque<Slot> before = waiting_;
      std::size_t i = 0;
      for (const std::size_t position : kv_.tree().weighted_order(ends)) {
        waiting_[i++] = before[position];
      }
      return;
    }
  }
  touch_waiting();
}

// Looks all waiting requests up. Who is to be put last, by position in the queue: only one of those
// that share an unknown prefix should go first, so that the others can hit it.
std::vector<bool> Scheduler::Impl::match_waiting() {
  std::vector<bool> put_last(waiting_.size(), false);
  std::set<std::uint64_t> seen;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    Request& request = at(waiting_[i]);
    const std::int64_t tokens = length(request);
    kv_.match(request.kv, request.content, tokens);
    request.matched = std::min(request.kv.prefix + request.kv.host, tokens - 1);
    if (request.kv.prefix <= kInBatchTokens && tokens >= kInBatchTokens) {
      const std::uint64_t front = request.content.hash(request.content.place(0), kInBatchTokens);
      put_last[i] = !seen.insert(front).second;
    }
  }
  return put_last;
}

std::int64_t Scheduler::Impl::prefill_work(const Request& request) const {
  return std::max<std::int64_t>(length(request) - request.matched, 1);
}

void Scheduler::Impl::order_by_response_ratio(const std::vector<bool>& put_last) {
  std::size_t i = 0;
  sort_by(waiting_, [&](Slot slot) {
    const Request& request = at(slot);
    const std::int64_t uncached = std::max<std::int64_t>(request.prompt - request.matched, 0);
    double key = -kInfinity;
    if (put_last[i++]) {
      key = kInfinity;
    } else if (uncached > 0) {
      key = -static_cast<double>(prefilled_tokens_ - request.prefill_seen) /
            static_cast<double>(uncached);
    }
    return std::pair{key, request.tie_order};
  });
}

// Keys that run most go first; requests whose key does not run, or that have none, go last.
void Scheduler::Impl::order_by_routing_key() {
  std::map<std::uint64_t, std::int64_t> counts;
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    if (at(slot).routing_key != 0) {
      ++counts[at(slot).routing_key];
    }
  }
  if (counts.empty()) {
    return;
  }
  sort_by(waiting_, [&](Slot slot) {
    const std::uint64_t key = at(slot).routing_key;
    const auto count = counts.find(key);
    return count == counts.end() ? std::tuple{1, std::int64_t{0}, key}
                                 : std::tuple{0, -count->second, key};
  });
}

// Keeps prefixes of the head of the queue from being evicted, the first request's most.
void Scheduler::Impl::touch_waiting() {
  if (!rules_.refreshes_waiting || waiting_.empty() || !kv_.sharing() ||
      config_.radix_eviction_policy != EvictionPolicy::kLru) {
    return;
  }
  if (refresh_calls_++ % kRefreshInterval != 0) {
    return;
  }
  for (std::size_t i = std::min(waiting_.size(), kMatchMax); i-- > 0;) {
    const Request& request = at(waiting_[i]);
    KvRow unused;
    kv_.match(unused, request.content, length(request));
  }
}

}  // namespace oomcast::sglang
