#include "sim/kernels/operators.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/kernels/cub.hpp"

namespace oomcast::kernels {
namespace {

models::GpuSpec gpu_of(int major, int minor) {
  models::GpuSpec gpu = models::find_gpu("H100");
  gpu.compute_major = major;
  gpu.compute_minor = minor;
  return gpu;
}

std::vector<std::int64_t> sizes(std::string_view name, RowShape shape) {
  std::vector<std::int64_t> out;
  for (const AllocatorCall& call : operator_calls(name, shape, models::find_gpu("H100"))) {
    out.push_back(call.bytes);
  }
  return out;
}

// The library's own host code (CCCL 3.2) was asked for these, compiled for each generation.
TEST(CubStorage, MatchesTheLibraryOnEveryGeneration) {
  const RadixSort pairs{9'723'904, 4, 8, 32};
  EXPECT_EQ(radix_sort_storage(pairs, gpu_of(7, 5)), 120'232'447);
  EXPECT_EQ(radix_sort_storage(pairs, gpu_of(8, 0)), 119'937'535);
  EXPECT_EQ(radix_sort_storage(pairs, gpu_of(8, 9)), 119'937'535);
  EXPECT_EQ(radix_sort_storage(pairs, gpu_of(9, 0)), 118'547'967);
  EXPECT_EQ(radix_sort_storage(pairs, gpu_of(12, 0)), 118'547'967);
  const RadixSort keys{33'333'333, 8, 0, 3};
  EXPECT_EQ(radix_sort_storage(keys, gpu_of(7, 5)), 12'124'671);
  EXPECT_EQ(radix_sort_storage(keys, gpu_of(8, 6)), 8'891'903);
  EXPECT_EQ(radix_sort_storage(keys, gpu_of(10, 0)), 5'929'471);
  EXPECT_EQ(radix_sort_storage({33'333'333, 2, 8, 16}, gpu_of(9, 0)), 339'399'167);
  EXPECT_EQ(segmented_radix_sort_storage({33'333'333, 4, 8, 32}), 400'000'511);

  EXPECT_EQ(scan_storage(1), 1'023);
  EXPECT_EQ(scan_storage(1'000'000), 5'119);
  EXPECT_EQ(scan_storage(100'000'000), 417'535);

  EXPECT_EQ(scan_by_key_storage(10'000'000, gpu_of(8, 0)), 52'991);
  EXPECT_EQ(scan_by_key_storage(10'000'000, gpu_of(8, 6)), 87'807);
  EXPECT_EQ(scan_by_key_storage(10'000'000, gpu_of(9, 0)), 50'687);
  EXPECT_EQ(scan_by_key_storage(10'000'000, gpu_of(10, 3)), 45'567);
  EXPECT_EQ(scan_by_key_storage(64'512, gpu_of(9, 0)), 1'279);  // 16 tiles of 4032 fit ...
  EXPECT_EQ(scan_by_key_storage(64'513, gpu_of(9, 0)), 1'535);  // ... one item more does not
}

TEST(CubStorage, PortionsOfALargeSort) {
  const models::GpuSpec gpu = gpu_of(9, 0);
  EXPECT_EQ(radix_sort_storage({268'435'456, 4, 8, 32}, gpu), 3'272'372'735);
  EXPECT_EQ(radix_sort_storage({600'000'000, 4, 8, 32}, gpu), 7'251'155'455);
}

TEST(Operators, SortChoosesItsAlgorithmByShape) {
  // Up to 4096 columns: one row of column numbers. One more and 3 rows: pairs, pairs, keys.
  EXPECT_EQ(sizes("sort(dim=-1)", {3, 4096}),
            (std::vector<std::int64_t>{49152, 98304, 32768, -32768}));
  const auto by_value = sizes("sort(dim=-1)", {3, 4097});
  EXPECT_EQ(by_value.size(), 12U);
  EXPECT_EQ(by_value[2], 3 * 4097 * 8);
  EXPECT_EQ(by_value[4], 3 * 4097 * 4);
  // From 128 rows on by segments: 8 B an element, then 12 B an element.
  const auto segments = sizes("sort(dim=-1)", {128, 4097});
  EXPECT_EQ(segments.size(), 6U);
  EXPECT_EQ(segments[3], 128 * 4097 * 4 / 256 * 256 + 128 * 4097 * 8 / 256 * 256 + 255);
  EXPECT_EQ(sizes("sort(dim=-1)", {127, 4097}).size(), 12U);
  // Rows of a million are sorted one by one, with storage a row.
  EXPECT_EQ(sizes("sort(dim=-1)", {4, 1'000'000}).size(), 2U + 2U + 2U * 4U);
  EXPECT_EQ(sizes("sort(dim=-1)", {4, 999'999}).size(), 12U);
  // 16,384 rows of 151,936 pass 2^31 elements: 14,134 rows, then 2,250.
  const auto batches = sizes("sort(dim=-1)", {16'384, 151'936});
  EXPECT_EQ(batches.size(), 2U + 4U + 4U);
  EXPECT_EQ(batches[2], 14'134LL * 151'936 * 8);
  EXPECT_EQ(batches[6], 2'250LL * 151'936 * 8);
}

TEST(Operators, TopKSortsManyResultsInScratch) {
  // 5000 results a row are too many for the in-place sort: indices, values, gathered indices.
  const auto calls = sizes("topk(5000)", {2, 6000});
  EXPECT_EQ(calls[0], 2 * 5000 * 4);
  EXPECT_EQ(calls[1], 2 * 5000 * 8);
  EXPECT_EQ(calls[2], 2 * 5000 * 8);
  EXPECT_EQ(calls[3], 2 * 5000 * 4);
  EXPECT_EQ(calls[calls.size() - 1], -2 * 5000 * 8);
  EXPECT_EQ(sizes("topk(4096)", {2, 6000}).size(), 2U);
  // 20 rows go to several blocks from 20,000 columns on, 21 from 10,000.
  EXPECT_EQ(sizes("topk(1)", {20, 19'999}).size(), 2U);
  EXPECT_GT(sizes("topk(1)", {20, 20'000}).size(), 2U);
  EXPECT_EQ(sizes("topk(1)", {21, 9'999}).size(), 2U);
  EXPECT_GT(sizes("topk(1)", {21, 10'000}).size(), 2U);
}

TEST(Operators, ReductionsShareLongRowsBetweenBlocks) {
  // One block is 512 threads; from 256 values a thread on the row is shared: 131,072 - 511 columns.
  EXPECT_EQ(sizes("sum(dim=-1)", {1, 130'560}).size(), 1U);
  EXPECT_EQ(sizes("sum(dim=-1)", {1, 130'561}),
            (std::vector<std::int64_t>{4, 64, 4, -4, -64}));  // 256 / 16 = 16 blocks
  // 132 SMs x 4 blocks are busy with 528 rows; 529 rows are not shared.
  EXPECT_EQ(sizes("sum(dim=-1)", {528, 151'936}).size(), 5U);
  EXPECT_EQ(sizes("sum(dim=-1)", {529, 151'936}).size(), 1U);
  // 4096 rows of 131,072 are 2^31 bytes, whose last element 32-bit offsets still reach. One row
  // more is reduced in halves, and a maximum's states wait outside.
  EXPECT_EQ(sizes("max(dim=-1)", {4096, 131'072}).size(), 2U);
  const auto maxima = sizes("max(dim=-1)", {4097, 131'072});
  EXPECT_EQ(maxima, (std::vector<std::int64_t>{4097 * 4, 4097 * 8, 4097 * 16, -4097 * 16}));
  EXPECT_EQ(sizes("sum(dim=-1)", {4097, 131'072}).size(), 1U);
  // Each half of 600 rows is shared, the whole would not be.
  EXPECT_EQ(sizes("sum(dim=-1)", {600, 1'000'000}).size(), 1U + 4U * 2U);
}

TEST(Operators, LongScansGoInPieces) {
  const std::int64_t piece = std::int64_t{1} << 30;
  EXPECT_EQ(sizes("cumsum(dim=-1,out=self)", {1, piece}).size(), 2U);
  EXPECT_EQ(sizes("cumsum(dim=-1,out=self)", {1, piece + 1}),
            (std::vector<std::int64_t>{scan_storage(piece), -scan_storage(piece), 4,
                                       scan_storage(1), -scan_storage(1), -4}));
}

TEST(Operators, FreesNameTheirRequest) {
  // The conversion, made first, is dropped; the output of the same size stays.
  const auto calls =
      operator_calls("softmax(dim=-1,float32) from bfloat16", {2, 2}, models::find_gpu("H100"));
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[2], (AllocatorCall{-16, 0}));
}

TEST(Operators, EveryOperatorFreesWhatIsNoOutput) {
  for (const std::string& name : operator_names()) {
    for (const RowShape shape : {RowShape{1, 1}, {1, 200'000}, {3, 5001}, {200, 4097}, {9, 2}}) {
      std::vector<std::int64_t> live;
      for (const AllocatorCall& call : operator_calls(name, shape, models::find_gpu("A100"))) {
        ASSERT_NE(call.bytes, 0) << name;
        live.resize(std::max(live.size(), call.made_by + 1));
        ASSERT_EQ(live[call.made_by], call.bytes < 0 ? -call.bytes : 0) << name;
        live[call.made_by] += call.bytes;
      }
      EXPECT_LE(std::count_if(live.begin(), live.end(), [](auto bytes) { return bytes > 0; }), 2)
          << name;
    }
  }
}

TEST(Operators, NonsenseIsRefused) {
  const models::GpuSpec gpu = models::find_gpu("H100");
  EXPECT_THROW(operator_calls("sort", {1, 1}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("", {1, 1}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("sort(dim=-1)", {0, 1}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("sort(dim=-1)", {1, -5}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("sort(dim=-1)", {1, INT64_MAX}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("sort(dim=-1)", {1, std::int64_t{1} << 31}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("clone()", {1 << 21, 1 << 20}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("topk(1)", {1, 50'000}, models::GpuSpec{}), ConfigError);
  EXPECT_THROW(operator_calls("topk(0)", {1, 8}, gpu), ConfigError);
  EXPECT_THROW(operator_calls("topk(9)", {1, 8}, gpu), ConfigError);
  for (const char* name :
       {"topk()", "topk(-1)", "topk(1", "topk(1x)", "topk(99999999999999999999)"}) {
    EXPECT_THROW(operator_calls(name, {1, 8}, gpu), ConfigError) << name;
  }
  try {
    operator_calls("softmax(dim=1)", {1, 1}, gpu);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("softmax(dim=-1)"), std::string::npos);
  }
}

}  // namespace
}  // namespace oomcast::kernels
