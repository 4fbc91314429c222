#include "sim/run/timeline.hpp"

#include <algorithm>
#include <array>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

constexpr std::int64_t kFirstWidth = std::int64_t{1} << 20;  // ns, about a millisecond

}  // namespace

Timeline::Timeline() : width_(kFirstWidth), buckets_(kBuckets) {}

void Timeline::merge(Bucket& into, const Bucket& later) {
  if (later.first.sequence == 0) {
    return;
  }
  if (into.first.sequence == 0) {
    into = later;
    return;
  }
  into.last = later.last;
  const auto most = [](Kept& kept, const Kept& other, auto value) {
    if (value(other.row) >= value(kept.row)) {
      kept = other;
    }
  };
  most(into.most_device, later.most_device,
       [](const TimelineRow& row) { return row.views.device_used.count(); });
  most(into.most_allocated, later.most_allocated,
       [](const TimelineRow& row) { return row.views.torch_allocated.count(); });
  most(into.most_kv, later.most_kv, [](const TimelineRow& row) { return row.kv_used.count(); });
  most(into.most_running, later.most_running, [](const TimelineRow& row) { return row.running; });
  most(into.most_waiting, later.most_waiting, [](const TimelineRow& row) { return row.waiting; });
  if (later.least_kv.row.kv_used < into.least_kv.row.kv_used) {
    into.least_kv = later.least_kv;
  }
}

void Timeline::widen() {
  for (std::size_t i = 0; i < kBuckets / 2; ++i) {
    Bucket pair = buckets_[2 * i];
    merge(pair, buckets_[2 * i + 1]);
    buckets_[i] = pair;
  }
  std::fill(buckets_.begin() + kBuckets / 2, buckets_.end(), Bucket{});
  width_ *= 2;
}

void Timeline::offer(const TimelineRow& row) {
  const std::int64_t at = row.at.since_start().count();
  OOMCAST_CHECK(at >= 0, "a row at {} ns", at);
  while (at / width_ >= static_cast<std::int64_t>(kBuckets)) {
    widen();
  }
  const Kept kept{++offered_, row};
  merge(buckets_[static_cast<std::size_t>(at / width_)],
        Bucket{kept, kept, kept, kept, kept, kept, kept, kept});
}

SimTime Timeline::bucket_end(SimTime at) const {
  const std::int64_t index = at.since_start().count() / width_;
  return SimTime{Nanos{detail::checked_mul(index + 1, width_)}};
}

std::vector<TimelineRow> Timeline::rows() const {
  std::vector<TimelineRow> out;
  for (const Bucket& bucket : buckets_) {
    std::array<const Kept*, 8> kept = {
        &bucket.first,   &bucket.last,     &bucket.most_device,  &bucket.most_allocated,
        &bucket.most_kv, &bucket.least_kv, &bucket.most_running, &bucket.most_waiting};
    if (bucket.first.sequence == 0) {
      continue;
    }
    std::sort(kept.begin(), kept.end(),
              [](const Kept* left, const Kept* right) { return left->sequence < right->sequence; });
    std::uint64_t last = 0;
    for (const Kept* candidate : kept) {
      if (candidate->sequence != last) {
        out.push_back(candidate->row);
        last = candidate->sequence;
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
}

}  // namespace oomcast
