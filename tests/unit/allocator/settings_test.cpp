#include "sim/allocator/settings.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace oomcast::allocator {
namespace {

struct Parsed {
  AllocatorSettings settings;
  std::vector<Problem> problems;
  std::vector<std::string> warnings;
};

Parsed parse(std::string_view text) {
  Parsed parsed;
  Problems problems;
  parsed.settings = parse_allocator_settings(text, "conf", problems, parsed.warnings);
  parsed.problems = problems.found();
  return parsed;
}

AllocatorSettings good(std::string_view text) {
  const Parsed parsed = parse(text);
  EXPECT_TRUE(parsed.problems.empty()) << text << ": " << to_string(parsed.problems.front());
  EXPECT_TRUE(parsed.warnings.empty()) << text;
  return parsed.settings;
}

std::string complaint(std::string_view text) {
  const Parsed parsed = parse(text);
  EXPECT_EQ(parsed.problems.size(), 1U) << text;
  return parsed.problems.empty() ? "" : to_string(parsed.problems.front());
}

TEST(AllocatorSettings, EmptyTextGivesPyTorchsDefaults) {
  const AllocatorSettings settings = good("");
  EXPECT_EQ(settings.backend, Backend::kNative);
  EXPECT_FALSE(settings.max_split_size);
  EXPECT_EQ(settings.large_segment_size, 20 * kMiB);
  EXPECT_EQ(settings.max_non_split_rounding, 20 * kMiB);
  EXPECT_EQ(settings.garbage_collection_threshold, 0);
  EXPECT_FALSE(settings.expandable_segments);
  EXPECT_EQ(settings.per_process_memory_fraction, 1);
}

TEST(AllocatorSettings, AllOptionsAreRead) {
  const AllocatorSettings settings = good(
      "backend:native, max_split_size_mb:128,max_non_split_rounding_mb:40,large_segment_size_mb:32,"
      "garbage_collection_threshold:0.8,expandable_segments:True,expandable_segments_reserve:40G,"
      "expandable_segments_reserve_by_class:[a:0.5,b:8G],per_process_memory_fraction:0.5,"
      "throw_on_cudamalloc_oom:True,graph_capture_record_stream_reuse:True,"
      "release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True,"
      "pinned_num_register_threads:8,pinned_reserve_segment_size_mb:64,"
      "pinned_use_background_threads:True,pinned_free_catch_all:False");
  EXPECT_EQ(settings.max_split_size, 128 * kMiB);
  EXPECT_EQ(settings.max_non_split_rounding, 40 * kMiB);
  EXPECT_EQ(settings.large_segment_size, 32 * kMiB);
  EXPECT_EQ(settings.garbage_collection_threshold, 0.8);
  EXPECT_TRUE(settings.expandable_segments);
  ASSERT_TRUE(settings.expandable_segments_reserve);
  EXPECT_FALSE(settings.expandable_segments_reserve->is_fraction);
  EXPECT_EQ(settings.expandable_segments_reserve->value, 40);
  EXPECT_EQ(settings.per_process_memory_fraction, 0.5);
  EXPECT_TRUE(settings.throw_on_cudamalloc_oom);
  EXPECT_TRUE(settings.release_lock_on_cudamalloc);
  EXPECT_EQ(settings.pinned_num_register_threads, 8);
}

TEST(AllocatorSettings, RoundupListFillsBelowTheFirstKeyAndAboveTheLast) {
  using Table = std::array<std::int64_t, AllocatorSettings::kRoundupIntervals>;
  EXPECT_EQ(good("roundup_power2_divisions:4").roundup_power2_divisions,
            (Table{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(good("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions,
            (Table{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}));
  EXPECT_EQ(good("roundup_power2_divisions:[64:8,256:2,4096:4]").roundup_power2_divisions,
            (Table{8, 8, 8, 8, 8, 8, 8, 0, 2, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(good("roundup_power2_divisions:[>:2]").roundup_power2_divisions,
            (Table{0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}));
}

TEST(AllocatorSettings, NumbersAreReadAsTheCppLibraryReadsThem) {
  EXPECT_EQ(good("max_split_size_mb:64MB").max_split_size, 64 * kMiB);
  EXPECT_EQ(good("max_split_size_mb: 1 28").max_split_size, 128 * kMiB);
  EXPECT_EQ(good("garbage_collection_threshold:.5x").garbage_collection_threshold, 0.5);
  // A minus sign wraps around, and what is too large is capped.
  EXPECT_GT(good("max_split_size_mb:-1").max_split_size, 1024 * kGiB);
  // Separators are stepped over unread.
  EXPECT_EQ(good("max_split_size_mb,64,expandable_segments,True").max_split_size, 64 * kMiB);
  // The last of two counts.
  EXPECT_EQ(good("max_split_size_mb:64,max_split_size_mb:32").max_split_size, 32 * kMiB);
}

TEST(AllocatorSettings, BoundsGoByTheLargeSegmentSizeWhereverItStands) {
  EXPECT_EQ(good("max_split_size_mb:20").max_split_size, 20 * kMiB);
  EXPECT_EQ(complaint("max_split_size_mb:19"),
            "conf: max_split_size_mb: found `19`, expected at least 20 MB, the large segment size");
  EXPECT_EQ(complaint("max_split_size_mb:24,large_segment_size_mb:32"),
            "conf: max_split_size_mb: found `24`, expected at least 32 MB, the large segment size");
  EXPECT_EQ(complaint("max_non_split_rounding_mb:12"),
            "conf: max_non_split_rounding_mb: found `12`, expected at least 20 MB, the large "
            "segment size");
  EXPECT_EQ(good("max_split_size_mb:11,large_segment_size_mb:11").max_split_size, 11 * kMiB);
  EXPECT_EQ(complaint("large_segment_size_mb:10"),
            "conf: large_segment_size_mb: found `10`, expected more than 10 MB");
}

TEST(AllocatorSettings, WhatPyTorchRaisesIsAProblem) {
  for (const auto& [text, expected] : std::vector<std::pair<const char*, const char*>>{
           {"max_split_size:64", "did you mean `max_split_size_mb`?"},
           {"expandable_segment:True", "did you mean `expandable_segments`?"},
           {"max_split_size_mb=64", "an option of PyTorch's CUDA allocator"},
           {"expandable_segments:true", "expected True or False"},
           {"expandable_segments", "a value"},
           {"expandable_segments:", "a value"},
           {"max_split_size_mb:big", "a number of MB"},
           {"garbage_collection_threshold:1.0", "above 0 and below 1"},
           {"garbage_collection_threshold:nan", "above 0 and below 1"},
           {"per_process_memory_fraction:1.1", "from 0 to 1"},
           {"roundup_power2_divisions:3", "a power of 2"},
           {"roundup_power2_divisions:[3:2]", "a power of 2 in MB"},
           {"roundup_power2_divisions:[4:3]", "a power of 2, or 0"},
           {"roundup_power2_divisions:[4:2", "a closing ]"},
           {"pinned_num_register_threads:256", "a power of 2 up to 128"},
           {"pinned_reserve_segment_size_mb:0", "more than 0"},
           {"backend:cudaMalloc", "native or cudaMallocAsync"}}) {
    EXPECT_NE(complaint(text).find(expected), std::string::npos)
        << text << " gave " << complaint(text);
  }
}

TEST(AllocatorSettings, AllProblemsAreToldAtOnceAndLeaveTheirOption) {
  const Parsed parsed = parse("max_split_size_mb:5,no_such:1,expandable_segments:True,backend:x");
  EXPECT_EQ(parsed.problems.size(), 3U);
  EXPECT_TRUE(parsed.settings.expandable_segments);
  EXPECT_FALSE(parsed.settings.max_split_size);
}

TEST(AllocatorSettings, WhatPyTorchOnlyWarnsOfIsAWarning) {
  const Parsed reserve = parse("expandable_segments_reserve:lots,expandable_segments:True");
  EXPECT_TRUE(reserve.problems.empty());
  EXPECT_EQ(reserve.warnings.size(), 1U);
  EXPECT_FALSE(reserve.settings.expandable_segments_reserve);
  EXPECT_EQ(parse("expandable_segments_reserve_by_class:[a:-1,b:2]").warnings.size(), 1U);
  const Parsed async = parse("backend:cudaMallocAsync,throw_on_cudamalloc_oom:True");
  EXPECT_TRUE(async.problems.empty());
  ASSERT_EQ(async.warnings.size(), 1U);
  EXPECT_EQ(async.warnings[0].find("backend:cudaMallocAsync ignores"), 0U);
}

TEST(AllocatorSettings, LaterTextResetsThreeOptionsAndKeepsTheRest) {
  AllocatorSettings settings = good(
      "max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.5,"
      "large_segment_size_mb:32,per_process_memory_fraction:0.8,expandable_segments:True");
  Problems problems;
  std::vector<std::string> warnings;
  apply_allocator_conf("garbage_collection_threshold:0.3", "conf", settings, problems, warnings);
  EXPECT_TRUE(problems.empty());
  EXPECT_FALSE(settings.max_split_size);
  EXPECT_EQ(settings.roundup_power2_divisions[0], 0);
  EXPECT_EQ(settings.garbage_collection_threshold, 0.3);
  EXPECT_EQ(settings.large_segment_size, 32 * kMiB);
  EXPECT_EQ(settings.max_non_split_rounding, 32 * kMiB);
  EXPECT_TRUE(settings.expandable_segments);
}

}  // namespace
}  // namespace oomcast::allocator
