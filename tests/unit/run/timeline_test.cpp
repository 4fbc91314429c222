#include "sim/run/timeline.hpp"

#include <gtest/gtest.h>

#include "sim/core/random.hpp"
#include "sim/run/histogram.hpp"

namespace oomcast {
namespace {

TimelineRow row_at(std::int64_t nanos, std::int64_t kv, std::int64_t device) {
  TimelineRow row;
  row.at = SimTime{Nanos{nanos}};
  row.kv_used = Bytes{kv};
  row.views.device_used = Bytes{device};
  return row;
}

std::uint64_t digest_of(const Timeline& timeline) {
  Digest digest;
  for (const TimelineRow& row : timeline.rows()) {
    add_to_digest(digest, row);
  }
  return digest.value();
}

TEST(Timeline, NeverLosesAPeakAndStaysBounded) {
  Timeline timeline;
  RandomStream stream = random_stream(5, "timeline");
  std::int64_t most_kv = 0;
  std::int64_t most_device = 0;
  std::int64_t most_tokens = 0;
  std::int64_t at = 0;
  for (int i = 0; i < 300'000; ++i) {
    at += uniform_int(stream, 0, 20'000'000);
    const std::int64_t kv = uniform_int(stream, 0, 1'000'000'000);
    const std::int64_t device = uniform_int(stream, 0, 1'000'000'000);
    most_kv = std::max(most_kv, kv);
    most_device = std::max(most_device, device);
    TimelineRow row = row_at(at, kv, device);
    row.step_tokens = uniform_int(stream, 0, 1'000'000'000);
    most_tokens = std::max(most_tokens, row.step_tokens);
    timeline.offer(row);
  }
  const std::vector<TimelineRow> rows = timeline.rows();
  EXPECT_LE(rows.size(), 9 * Timeline::kBuckets);
  std::int64_t kept_kv = 0;
  std::int64_t kept_device = 0;
  std::int64_t kept_tokens = 0;
  SimTime last;
  for (const TimelineRow& row : rows) {
    kept_kv = std::max(kept_kv, row.kv_used.count());
    kept_device = std::max(kept_device, row.views.device_used.count());
    kept_tokens = std::max(kept_tokens, row.step_tokens);
    EXPECT_GE(row.at, last);
    last = row.at;
  }
  EXPECT_EQ(kept_kv, most_kv);
  EXPECT_EQ(kept_device, most_device);
  EXPECT_EQ(kept_tokens, most_tokens);
  EXPECT_EQ(last, SimTime{Nanos{at}});
}

// A uniform stretch (KV not falling, all else equal) may be offered by its ends within each bucket.
TEST(Timeline, EndsOfAStretchAreEnough) {
  RandomStream stream = random_stream(6, "stretches");
  for (int round = 0; round < 200; ++round) {
    Timeline all;
    Timeline ends;
    std::int64_t at = 0;
    for (int stretch = 0; stretch < 30; ++stretch) {
      const std::int64_t device = uniform_int(stream, 0, 100);
      std::int64_t kv = uniform_int(stream, 0, 100);
      const std::int64_t steps = uniform_int(stream, 1, 200);
      const std::int64_t width = uniform_int(stream, 1, 4'000'000);
      TimelineRow pending;
      bool has_pending = false;
      SimTime bucket_end;
      for (std::int64_t i = 0; i < steps; ++i) {
        const TimelineRow row = row_at(at, kv, device);
        all.offer(row);
        if (!has_pending && i == 0) {
          ends.offer(row);
          bucket_end = ends.bucket_end(row.at);
        } else if (row.at >= bucket_end) {
          if (has_pending) {
            ends.offer(pending);
          }
          has_pending = false;
          ends.offer(row);
          bucket_end = ends.bucket_end(row.at);
        } else {
          pending = row;
          has_pending = true;
        }
        at += width;
        kv += uniform_int(stream, 0, 2);
      }
      if (has_pending) {
        ends.offer(pending);
      }
    }
    ASSERT_EQ(digest_of(all), digest_of(ends));
  }
}

TEST(LogHistogram, PercentilesWithinOnePercent) {
  LogHistogram histogram;
  for (std::int64_t value = 1; value <= 100'000; ++value) {
    histogram.add(value);
  }
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.5)), 50'000, 400);
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.99)), 99'000, 792);
  EXPECT_EQ(histogram.quantile(1.0), 100'000);
  EXPECT_EQ(histogram.largest(), 100'000);
  EXPECT_DOUBLE_EQ(histogram.mean(), 50'000.5);
  LogHistogram small;
  EXPECT_EQ(small.quantile(0.5), 0);
  small.add(7);
  EXPECT_EQ(small.quantile(0.01), 7);
  small.add(INT64_MAX);
  EXPECT_EQ(small.quantile(1.0), INT64_MAX);
}

}  // namespace
}  // namespace oomcast
