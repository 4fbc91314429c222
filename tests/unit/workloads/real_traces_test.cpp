// The public traces themselves, where they are at hand, against the statistics published with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/workloads/trace_helpers.hpp"

namespace oomcast::workloads {
namespace {

std::string shared_trace(const std::string& name) {
  return std::string(OOMCAST_SHARED_DIR) + "/traces/" + name;
}

struct Totals {
  std::int64_t requests = 0;
  Tokens input;
  Tokens output;
  std::int64_t blocks = 0;  // of 512 tokens
  SimTime last;
  std::vector<std::int64_t> arrivals;
};

Totals totals(const std::string& name) {
  const auto stream = open_trace(shared_trace(name));
  Totals sum;
  TraceRequest request;
  while (!stream->at_end()) {
    stream->take(request);
    ++sum.requests;
    sum.input += request.input;
    sum.output += request.output;
    for (const ContentSegment& segment : request.content) {
      sum.blocks += div_ceil(segment.length.count(), 512);
    }
    sum.last = request.arrival;
    sum.arrivals.push_back(request.arrival.since_start().count());
  }
  return sum;
}

class RealTraces : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(shared_trace("README.md"))) {
      GTEST_SKIP() << "the shared traces are not there";
    }
  }
};

TEST_F(RealTraces, AzureAndVidurGiveTheSameRequests) {
  const Totals azure = totals("AzureLLMInferenceTrace_conv.csv.gz");
  const Totals vidur = totals("vidur_splitwise_conv.csv.gz");
  EXPECT_EQ(azure.requests, 19366);
  EXPECT_EQ(azure.input, vidur.input);
  EXPECT_EQ(azure.output, vidur.output);
  EXPECT_EQ(azure.arrivals, vidur.arrivals);
  EXPECT_NEAR(azure.last.seconds(), 3501.7, 0.05);
  EXPECT_EQ(azure.input.count() / azure.requests, 1154);  // published mean 1155, rounded
}

TEST_F(RealTraces, MooncakeBlocks) {
  const Totals mooncake = totals("mooncake_conversation_trace.jsonl.gz");
  EXPECT_EQ(mooncake.requests, 12031);
  EXPECT_EQ(mooncake.blocks, 288500);
  EXPECT_NEAR(mooncake.last.seconds(), 3537, 0.05);
}

TEST_F(RealTraces, MeasuredRuns) {
  EXPECT_EQ(totals("measured/llama31-8b_rtx4090_tp1_sps10.requests.csv.gz").input, Tokens{257239});
  EXPECT_EQ(
      totals("measured/dsr1-fp4_b200_tp8_conc128_kvoffload-off.detailed_results.csv.gz").requests,
      152);
  EXPECT_EQ(totals("arena_multimodel_27.csv.gz").requests, 1500);
  EXPECT_EQ(totals("servegen_deepseek-r1_sampled_10h.csv.gz").requests, 43215);
  EXPECT_EQ(totals("vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz").requests,
            28257);
}

// Published means: 12.0 requests a second in hour 10-11 of the derived sample; its length medians.
TEST_F(RealTraces, ServegenHourMatchesTheDerivedSample) {
  TraceOptions options;
  options.format = "servegen:start=36000,duration=3600";
  const auto stream = open_trace(shared_trace("servegen_deepseek-r1.tar.gz"), options);
  const auto requests = drain(*stream);
  // The same distributions drawn by another generator: 43,215 requests, with heavy tails.
  EXPECT_NEAR(static_cast<double>(requests.size()), 43215, 0.05 * 43215);
  std::vector<std::int64_t> outputs;
  outputs.reserve(requests.size());
  for (const TraceRequest& request : requests) {
    outputs.push_back(request.output.count());
  }
  std::nth_element(outputs.begin(),
                   outputs.begin() + static_cast<std::ptrdiff_t>(outputs.size() / 2),
                   outputs.end());
  EXPECT_NEAR(static_cast<double>(outputs[outputs.size() / 2]), 1556, 80);
}

}  // namespace
}  // namespace oomcast::workloads
