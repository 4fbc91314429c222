#include "sim/run/timeline.hpp"

#include <algorithm>
#include <array>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

// All of a row but its memory, which is most of it.
void copy_counts(const TimelineRow& from, TimelineRow& to) {
  to.at = from.at;
  to.kv_used = from.kv_used;
  to.kv_cached = from.kv_cached;
  to.kv_free = from.kv_free;
  to.running = from.running;
  to.waiting = from.waiting;
  to.step_tokens = from.step_tokens;
  to.preemptions = from.preemptions;
  to.transfer = from.transfer;
  to.host_used = from.host_used;
}

constexpr std::int64_t kFirstWidth = std::int64_t{1} << 20;  // ns, about a millisecond

}  // namespace

Timeline::Timeline() : width_(kFirstWidth), buckets_(kBuckets) {}

Timeline::Values Timeline::values_of(const TimelineRow& row) {
  return {row.views.device_used.count(),
          row.views.torch_allocated.count(),
          row.kv_used.count(),
          row.running,
          row.waiting,
          row.step_tokens,
          -row.kv_used.count()};
}

bool Timeline::wins(std::size_t measure, std::int64_t candidate, std::int64_t held) {
  return measure == kLeastKv ? candidate > held : candidate >= held;
}

// Rows of extremes that are also the last row are kept there until another row comes: most rows of
// a uniform stretch are the extreme for a moment and are never copied.
void Timeline::settle(Bucket& bucket) {
  for (Extreme& extreme : bucket.extremes) {
    if (extreme.sequence == bucket.last_sequence) {
      extreme.row = bucket.last;
    }
  }
}

void Timeline::merge(Bucket& into, Bucket& later) {
  if (later.first_sequence == 0) {
    return;
  }
  if (into.first_sequence == 0) {
    into = later;
    return;
  }
  settle(into);
  settle(later);
  for (std::size_t i = 0; i < kMeasures; ++i) {
    if (wins(i, later.extremes[i].value, into.extremes[i].value)) {
      into.extremes[i] = later.extremes[i];
    }
  }
  into.last = later.last;
  into.last_sequence = later.last_sequence;
}

void Timeline::widen() {
  for (std::size_t i = 0; i < kBuckets / 2; ++i) {
    merge(buckets_[2 * i], buckets_[2 * i + 1]);
    if (i > 0) {
      buckets_[i] = buckets_[2 * i];
    }
  }
  std::fill(buckets_.begin() + kBuckets / 2, buckets_.end(), Bucket{});
  width_ *= 2;
}

void Timeline::move_to(std::int64_t at) {
  OOMCAST_CHECK(at >= 0, "a row at {} ns", at);
  while (at / width_ >= static_cast<std::int64_t>(kBuckets)) {
    widen();
  }
  current_ = static_cast<std::size_t>(at / width_);
  begin_ = at / width_ * width_;
  end_ = detail::checked_add(begin_, width_);
}

void Timeline::offer(const TimelineRow& row, bool same_memory) {
  const std::int64_t at = row.at.since_start().count();
  if (at < begin_ || at >= end_) {
    move_to(at);
  }
  const std::uint64_t sequence = ++offered_;
  const Values values = values_of(row);
  Bucket& bucket = buckets_[current_];
  if (bucket.first_sequence == 0) {
    bucket.first_sequence = sequence;
    bucket.first = row;
    for (std::size_t i = 0; i < kMeasures; ++i) {
      bucket.extremes[i].sequence = sequence;
      bucket.extremes[i].value = values[i];
    }
  } else {
    for (std::size_t i = 0; i < kMeasures; ++i) {
      Extreme& extreme = bucket.extremes[i];
      if (wins(i, values[i], extreme.value)) {
        extreme.sequence = sequence;
        extreme.value = values[i];
      } else if (extreme.sequence == bucket.last_sequence) {
        extreme.row = bucket.last;
      }
    }
  }
  if (same_memory && bucket.last_sequence > 0 && bucket.last_sequence + 1 == sequence) {
    copy_counts(row, bucket.last);
  } else {
    bucket.last = row;
  }
  bucket.last_sequence = sequence;
}

SimTime Timeline::bucket_end(SimTime at) const {
  const std::int64_t nanos = at.since_start().count();
  if (nanos >= begin_ && nanos < end_) {
    return SimTime{Nanos{end_}};
  }
  return SimTime{Nanos{detail::checked_mul(nanos / width_ + 1, width_)}};
}

std::vector<TimelineRow> Timeline::rows() const {
  std::vector<TimelineRow> out;
  out.reserve(kBuckets * (2 + kMeasures));
  std::vector<std::pair<std::uint64_t, const TimelineRow*>> kept;
  for (const Bucket& bucket : buckets_) {
    if (bucket.first_sequence == 0) {
      continue;
    }
    kept = {{bucket.first_sequence, &bucket.first}, {bucket.last_sequence, &bucket.last}};
    for (const Extreme& extreme : bucket.extremes) {
      if (extreme.sequence != bucket.first_sequence && extreme.sequence != bucket.last_sequence) {
        kept.emplace_back(extreme.sequence, &extreme.row);
      }
    }
    std::sort(kept.begin(), kept.end());
    std::uint64_t last = 0;
    for (const auto& [sequence, row] : kept) {
      if (sequence != last) {
        out.push_back(*row);
        last = sequence;
      }
    }
  }
  return out;
}

void add_to_digest(Digest& digest, const TimelineRow& row) {
  const auto add = [&digest](std::int64_t word) {
    digest.add_word(static_cast<std::uint64_t>(word));
  };
  add(row.at.since_start().count());
  for (const Bytes bytes : row.device) {
    add(bytes.count());
  }
  for (const Bytes bytes :
       {row.views.torch_allocated, row.views.torch_reserved, row.views.device_used,
        row.views.pinned_host, row.kv_used, row.kv_cached, row.kv_free}) {
    add(bytes.count());
  }
  for (const std::int64_t count : {row.running, row.waiting, row.step_tokens, row.preemptions}) {
    add(count);
  }
  if (row.torch) {
    add(row.torch->inactive_split.count());
    add(row.torch->segments);
  }
  if (row.transfer) {
    add(row.transfer->kv_held.count());
    add(row.transfer->requests);
  }
  if (row.host_used) {
    add(row.host_used->count());
  }
}

}  // namespace oomcast
