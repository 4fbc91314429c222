// Every format's sample: detected, with hand-checked numbers.
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/workloads/trace_helpers.hpp"

namespace oomcast::workloads {
namespace {

struct Sample {
  const char* file;
  const char* format;
  std::int64_t kept;
  std::int64_t first_input;
  std::int64_t first_output;
  std::int64_t last_arrival_ns;
};

class EveryFormat : public ::testing::TestWithParam<Sample> {};

TEST_P(EveryFormat, IsDetectedAndRead) {
  const Sample& expected = GetParam();
  const auto stream = open_trace(sample(expected.file));
  const std::vector<TraceRequest> requests = drain(*stream);
  const ReadSummary summary = stream->summary();
  EXPECT_EQ(summary.format, expected.format);
  ASSERT_EQ(static_cast<std::int64_t>(requests.size()), expected.kept);
  std::int64_t dropped = 0;
  for (const auto& [reason, entry] : summary.dropped) {
    dropped += entry.count;
  }
  EXPECT_EQ(summary.kept, expected.kept);
  EXPECT_EQ(summary.read, summary.kept + dropped);
  EXPECT_EQ(requests[0].input.count(), expected.first_input);
  EXPECT_EQ(requests[0].output.count(), expected.first_output);
  EXPECT_EQ(requests[0].arrival.since_start().count(), 0);
  EXPECT_EQ(requests.back().arrival.since_start().count(), expected.last_arrival_ns);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].index, static_cast<std::int64_t>(i));
    Tokens sum;
    for (const ContentSegment& segment : requests[i].content) {
      sum += segment.length;
    }
    EXPECT_TRUE(requests[i].content.empty() || sum == requests[i].input);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Samples, EveryFormat,
    ::testing::Values(
        Sample{"aiperf_example_trace.jsonl", "mooncake", 3, 655, 52, 27'482'000'000},
        Sample{"arena_head.csv", "arena", 7, 13, 199, 1'292'988'796},
        // 18:15:55.1455750 - 18:15:46.6805900
        Sample{"azure2023_conv_head.csv", "azure", 10, 374, 44, 8'464'985'000},
        Sample{"azure2024_code_head.csv", "azure", 5, 2162, 5, 73'960'000},
        Sample{"azure2024_conv_head.csv", "azure", 5, 1452, 3, 247'116'000},
        Sample{"azure_lmm2025_head.csv", "azure", 5, 770, 491, 7'297'000'000},
        Sample{"burstgpt_v1_head.csv", "burstgpt", 3, 472, 18, 113'000'000'000},
        Sample{"llmservingsim_head.jsonl", "llmservingsim", 20, 27369, 1626, 2'679'136'000},
        Sample{"llmservingsim_requests_head.csv", "csv", 7, 2358, 531, 527'328'000},
        Sample{"mooncake_arxiv_trace_excerpt.jsonl", "mooncake", 17, 2105, 650, 3'053'000'000},
        Sample{"mooncake_conversation_head.jsonl", "mooncake", 12, 6758, 500, 3'000'000'000},
        Sample{"qwen_bailian_thinking_head.jsonl", "bailian", 1, 502, 1494, 0},
        Sample{"servegen_sampled_head.csv", "csv", 7, 78, 5401, 97'350'000},
        Sample{"splitwise_sim_test_trace.csv", "splitwise", 3, 4096, 32, 3'000'000'000},
        Sample{"vidur_arxiv_head.csv", "vidur", 5, 3772, 54, 0},
        Sample{"vidur_splitwise_head.csv", "vidur", 10, 374, 44, 8'464'985'000},
        Sample{"vllm_multiturn_head.csv", "vllm-multiturn", 11, 71, 134, 17'077'000}),
    [](const ::testing::TestParamInfo<Sample>& entry) {
      std::string name = entry.param.file;
      for (char& letter : name) {
        letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
      }
      return name;
    });

TEST(Formats, InferencexDropsFailuresAndSortsByStart) {
  const auto stream = open_trace(sample("inferencex_head.csv"));
  const auto requests = drain(*stream);
  ASSERT_EQ(requests.size(), 5U);
  EXPECT_EQ(stream->summary().read, 7);
  EXPECT_EQ(stream->summary().dropped.at("the request failed").count, 2);
  for (std::size_t i = 1; i < requests.size(); ++i) {
    EXPECT_GE(requests[i].arrival, requests[i - 1].arrival);
  }
  EXPECT_NE(requests[0].session, 0U);
}

TEST(Formats, MooncakeBlocksAreSharedByIdAndTheLastIsPartial) {
  const auto requests = read_text(
      "{\"timestamp\":0,\"input_length\":655,\"output_length\":1,\"hash_ids\":[46,47]}\n"
      "{\"timestamp\":5,\"input_length\":672,\"output_length\":1,\"hash_ids\":[46,47]}\n"
      "{\"timestamp\":5,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[46,99]}\n");
  ASSERT_EQ(requests.size(), 3U);
  // Blocks 46 and 47 follow each other; 99 does not follow 46.
  const std::uint64_t segment = requests[0].content[0].id;
  EXPECT_EQ(requests[0].content, (std::vector<ContentSegment>{{segment, Tokens{655}, 46 * 512}}));
  EXPECT_EQ(requests[1].content, (std::vector<ContentSegment>{{segment, Tokens{672}, 46 * 512}}));
  EXPECT_EQ(requests[2].content, (std::vector<ContentSegment>{{segment, Tokens{512}, 46 * 512},
                                                              {segment, Tokens{512}, 99 * 512}}));
}

TEST(Formats, BlockCountAndBlockSizeMustAgree) {
  const std::string row =
      "{\"timestamp\":0,\"input_length\":48,\"output_length\":1,\"hash_ids\":[1,2,3]}\n";
  EXPECT_TRUE(holds(refusal(row), "3 ids for 48 tokens"));
  EXPECT_TRUE(holds(refusal(row), "--trace-format mooncake:block=N"));
  TraceOptions options;
  options.format = "mooncake:block=16";
  EXPECT_EQ(read_text(row, options)[0].content.at(0).length, Tokens{48});
  options.format = "mooncake:block=0";
  EXPECT_TRUE(holds(refusal(row, options), "block=N"));
}

TEST(Formats, BlockIdsKeepAll64Bits) {
  const auto requests = read_text(
      "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\n"
      "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[4294967297]}\n");
  EXPECT_NE(requests[0].content[0].id, requests[1].content[0].id);
}

TEST(Formats, ConversationsOfTheMultiTurnClientShareTheirPast) {
  const std::string header =
      "start_time_ms,input_num_turns,input_num_tokens,output_num_tokens,conversation_id\n";
  const auto requests = read_text(header + "10,1,71,30,a\n20,3,140,9,a\n30,1,71,5,b\n");
  EXPECT_EQ(requests[0].content[0].id, requests[1].content[0].id);
  EXPECT_NE(requests[0].content[0].id, requests[2].content[0].id);
  EXPECT_EQ(requests[1].content[0].length, Tokens{140});
  EXPECT_TRUE(requests[0].output_continues_content);
  EXPECT_EQ(requests[0].turn, 1);
  EXPECT_EQ(requests[1].turn, 2);
}

TEST(Formats, ColumnsAreFoundByNameNotPosition) {
  const auto requests = read_text(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n45,,3.5,ChatGPT,10,20,30,API log\n46,8f-1,9,GPT-4,11,21,32,Conversation log\n");
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].input, Tokens{10});
  EXPECT_EQ(requests[0].session, 0U);
  EXPECT_NE(requests[1].session, 0U);
  EXPECT_EQ(requests[1].arrival.since_start(), kSecond);
}

TEST(Formats, PlainColumnsNameTheirUnit) {
  for (const char* text :
       {"arrival_s,prompt_tokens,output_tokens\n1.5,3,4\n2.5,5,6\n",
        "id,output_len,input_len,timestamp_ms\na,4,3,1500\nb,6,5,2500\n",
        "{\"arrival_time_ns\":1500000000,\"input_tokens\":3,\"output_tokens\":4}\n"
        "{\"arrival_time_ns\":2500000000,\"input_tokens\":5,\"output_tokens\":6}\n"}) {
    const auto requests = read_text(text);
    ASSERT_EQ(requests.size(), 2U) << text;
    EXPECT_EQ(requests[1].arrival.since_start(), kSecond) << text;
    EXPECT_EQ(requests[1].input, Tokens{5}) << text;
    EXPECT_EQ(requests[1].output, Tokens{6}) << text;
  }
  EXPECT_TRUE(holds(refusal("timestamp,input_tokens,output_tokens\n1,2,3\n"), "timestamp_ms"));
}

TEST(Formats, TheNameGivenWinsOrIsRefused) {
  TraceOptions options;
  options.format = "vidur";
  EXPECT_TRUE(
      holds(refusal("TIMESTAMP,ContextTokens,GeneratedTokens\n", options), "num_prefill_tokens"));
  options.format = "vidr";
  EXPECT_TRUE(holds(refusal("a,b\n", options), "did you mean `vidur`?"));
  std::set<std::string_view> names;
  for (const TraceFormat& format : trace_formats()) {
    EXPECT_TRUE(names.insert(format.name).second);
    EXPECT_FALSE(format.about.empty());
    EXPECT_FALSE(format.signature.empty());
  }
  EXPECT_GE(names.size(), 14U);
}

TEST(Formats, BailianLinksTurnsByChat) {
  const auto requests = read_text(
      "{\"chat_id\":0,\"parent_chat_id\":-1,\"timestamp\":0.5,\"input_length\":20,"
      "\"output_length\":3,\"type\":\"text\",\"turn\":1,\"hash_ids\":[7,8]}\n"
      "{\"chat_id\":1,\"parent_chat_id\":0,\"timestamp\":1.25,\"input_length\":40,"
      "\"output_length\":3,\"type\":\"text\",\"turn\":2,\"hash_ids\":[7,9,10]}\n");
  EXPECT_EQ(requests[0].parent_id, "");
  EXPECT_EQ(requests[1].parent_id, "0");
  EXPECT_EQ(requests[1].turn, 2);
  EXPECT_EQ(requests[1].arrival.since_start().count(), 750'000'000);
  const std::uint64_t segment = requests[0].content[0].id;
  EXPECT_EQ(requests[0].content, (std::vector<ContentSegment>{{segment, Tokens{20}, 7 * 16}}));
  EXPECT_EQ(requests[1].content, (std::vector<ContentSegment>{{segment, Tokens{16}, 7 * 16},
                                                              {segment, Tokens{24}, 9 * 16}}));
}

}  // namespace
}  // namespace oomcast::workloads
