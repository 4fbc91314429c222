#include "sim/run/host_copies.hpp"

#include <algorithm>

namespace oomcast {

void HostCopies::load(const Copy& copy, Tokens tokens, bool before_step) {
  add_load({copy, before_step, 0}, tokens);
}
void HostCopies::load_by_layer(const Copy& copy, Tokens tokens, std::int64_t layers) {
  add_load({copy, false, layers}, tokens);
}

void HostCopies::add_load(const Load& load, Tokens tokens) {
  const Copy& copy = load.copy;
  loads_.push_back(load);
  ++totals_.loads;
  totals_.loaded += copy.total;
  totals_.hit_tokens += tokens;
}

void HostCopies::hold(Bytes total, Bytes card) {
  totals_.used_peak = std::max(totals_.used_peak, total);
  held_by_card_ = card;
}

FineSpan HostCopies::begin(FineSpan start) {
  const auto awaited =
      std::stable_partition(stores_.begin(), stores_.end(), [this](const Copy& copy) {
        return std::find(flushes_.begin(), flushes_.end(), copy.job) == flushes_.end();
      });
  std::for_each(awaited, stores_.end(), [&](const Copy& copy) { start_store(copy, start); });
  stores_.erase(awaited, stores_.end());
  for (const Copy& copy : early_stores_) {
    start_store(copy, start);
  }
  early_stores_.clear();
  FineSpan ready = start;
  for (const Load& load : loads_) {
    if (load.layers > 0) {
      continue;
    }
    const FineSpan end = add(to_card_, load.copy, start);
    totals_.loads_took += (end - start).floor();
    if (load.before_step) {
      ready = std::max(ready, end);
    }
  }
  for (const Job job : flushes_) {
    ready = std::max(ready, end_of(job, start));
  }
  layered_.reset();
  for (const Load& load : loads_) {
    if (load.layers > 0) {
      const FineSpan from = std::max(to_card_.free_from, ready);
      layered_ = {from, add(to_card_, load.copy, ready), load.layers};
      totals_.loads_took += (layered_->end - ready).floor();
    }
  }
  loads_.clear();
  flushes_.clear();
  totals_.steps_waited += (ready - start).floor();
  return ready;
}

// The first layer waits for its part, the last is computed once all are there; in between whatever
// is slower sets the pace.
FineSpan HostCopies::stalls(FineSpan start, FineSpan took) {
  if (!layered_) {
    return {};
  }
  const auto part = [&](FineSpan span) {
    return FineSpan::from_ticks(span.ticks() / layered_->layers);
  };
  const FineSpan computed = layered_->start + part(layered_->end - layered_->start) + took;
  const FineSpan loaded = layered_->end + part(took);
  const FineSpan late = std::max(computed, loaded) - (start + took);
  layered_.reset();
  totals_.steps_waited += late.floor();
  return late;
}

void HostCopies::launched(FineSpan end) {
  for (const Copy& copy : stores_) {
    start_store(copy, end);
  }
  stores_.clear();
}

void HostCopies::advance(FineSpan now) {
  take_over(to_card_, now);
  take_over(to_host_, now);
  std::sort(over_.begin(), over_.end());
}

std::optional<FineSpan> HostCopies::next_end() const {
  std::optional<FineSpan> next;
  for (const Queue* queue : {&to_card_, &to_host_}) {
    if (!queue->copies.empty() && (!next || queue->copies.front().end < *next)) {
      next = queue->copies.front().end;
    }
  }
  return next;
}

FineSpan HostCopies::add(Queue& queue, const Copy& copy, FineSpan from) {
  const double nanos = static_cast<double>(copy.link.count()) * 1e9 / speed_;
  queue.free_from = std::max(queue.free_from, from) + FineSpan::from_nanos(nanos);
  queue.copies.push_back({copy.job, queue.free_from});
  return queue.free_from;
}

void HostCopies::start_store(const Copy& copy, FineSpan from) {
  add(to_host_, copy, from);
  ++totals_.stores;
  totals_.stored += copy.total;
}

void HostCopies::take_over(Queue& queue, FineSpan now) {
  while (!queue.copies.empty() && queue.copies.front().end <= now) {
    over_.push_back(queue.copies.front().job);
    queue.copies.pop_front();
  }
}

FineSpan HostCopies::end_of(Job job, FineSpan otherwise) const {
  for (const Queue* queue : {&to_card_, &to_host_}) {
    const auto found = std::find_if(queue->copies.begin(), queue->copies.end(),
                                    [job](const UnderWay& copy) { return copy.job == job; });
    if (found != queue->copies.end()) {
      return found->end;
    }
  }
  return otherwise;
}

void add_to_digest(Digest& digest, const HostTierTotals& totals) {
  for (const std::int64_t word : {totals.used_peak.count(), totals.hit_tokens.count(), totals.loads,
                                  totals.stores, totals.loaded.count(), totals.stored.count(),
                                  totals.loads_took.count(), totals.steps_waited.count()}) {
    digest.add_word(static_cast<std::uint64_t>(word));
  }
}

}  // namespace oomcast
