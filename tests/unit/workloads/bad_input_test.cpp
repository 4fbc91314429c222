// What is wrong with a trace is said once and clearly; nothing is repaired in silence.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/workloads/trace_helpers.hpp"

namespace oomcast::workloads {
namespace {

constexpr const char* kHeader = "arrival_s,input_tokens,output_tokens\n";

TEST(BadInput, NumbersThatAreNoLengths) {
  for (const char* cell : {"nan", "-1", "1.5", "1e99", "99999999999999999999", "100000001", "abc",
                           "0x10", "inf", "1 2"}) {
    const std::string problem = refusal(std::string(kHeader) + "0,5,5\n1," + cell + ",5\n");
    EXPECT_TRUE(holds(problem, "line 3 input_tokens")) << cell << ": " << problem;
    EXPECT_TRUE(holds(problem, cell)) << cell;
  }
  EXPECT_EQ(read_text(std::string(kHeader) + "0,100000000,5.0\n")[0].output, Tokens{5});
}

TEST(BadInput, TimesThatAreNoTimes) {
  for (const char* cell : {"nan", "-1", "x", "1e30", "2024-01-01 00:00:00"}) {
    EXPECT_TRUE(holds(refusal(std::string(kHeader) + cell + ",5,5\n"), "line 2 arrival_s")) << cell;
  }
  EXPECT_TRUE(holds(refusal(std::string(kHeader) + "1,5,5\n,5,5\n"), "a time in every row"));
}

TEST(BadInput, AllBadRowsUpToTenAreNamed) {
  std::string text = kHeader;
  for (int i = 0; i < 3; ++i) {
    text += "0,x,1\n";
  }
  const TempFile three(text);
  try {
    open_trace(three.path());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 3U);
  }
  for (int i = 0; i < 50; ++i) {
    text += "0,x,1\n";
  }
  const TempFile many(text);
  try {
    open_trace(many.path());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 10U);
  }
}

TEST(BadInput, FilesThatAreNoTraces) {
  EXPECT_TRUE(holds(refusal(""), "at least one row"));
  EXPECT_TRUE(holds(refusal("\n\n  \n"), "at least one row"));
  EXPECT_TRUE(holds(refusal(std::string("\x7f"
                                        "ELF\x02\x01\0\0\0",
                                        9)),
                    "a text file"));
  EXPECT_TRUE(holds(refusal("just,some,words\n1,2,3\n"), "the names of a known trace format"));
  EXPECT_TRUE(holds(refusal("[1,2]\n"), "one JSON object a line"));
  EXPECT_TRUE(holds(refusal("{\"a\":\n"), "one JSON object a line"));
  EXPECT_TRUE(holds(refusal(kHeader), "at least one request"));
  EXPECT_THROW(open_trace("/no/such/file"), ConfigError);
  EXPECT_THROW(open_trace("/"), ConfigError);
}

TEST(BadInput, DeepJsonAndLongCells) {
  std::string deep = "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"x\":";
  EXPECT_TRUE(
      holds(refusal(deep + std::string(10'000, '[') + std::string(10'000, ']') + "}\n"), "levels"));
  // 100 kB in a cell that nobody asked for is no problem, quoted or not.
  const std::string big(100'000, 'x');
  EXPECT_EQ(
      read_text("note," + std::string(kHeader) + big + ",0,1,1\n\"" + big + ",\",1,1,1\n").size(),
      2U);
}

TEST(BadInput, AJsonLineCutShort) {
  const std::string problem = refusal(
      "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{\"timestamp\":0,\"input_len");
  EXPECT_TRUE(holds(problem, "line 2"));
  EXPECT_TRUE(holds(problem, "valid JSON"));
}

TEST(BadInput, UsefulRowsAreKeptAndTheOthersCounted) {
  const TempFile file(std::string(kHeader) + "0,5,5\n\n1,0,0\n2,7,0\n3,,4\n4,9,\n5,1,1");
  const auto stream = open_trace(file.path());
  EXPECT_EQ(drain(*stream).size(), 2U);
  const ReadSummary summary = stream->summary();
  EXPECT_EQ(summary.read, 6);
  EXPECT_EQ(summary.kept, 2);
  EXPECT_EQ(summary.dropped.at("input 0").count, 1);
  EXPECT_EQ(summary.dropped.at("output 0").count, 1);
  EXPECT_EQ(summary.dropped.at("no input length").count, 1);
  EXPECT_EQ(summary.dropped.at("no output length").count, 1);
  EXPECT_TRUE(holds(summary.dropped.at("output 0").first, "line 5"));
}

TEST(BadInput, ZeroOutputsCanBeKeptAsOneToken) {
  TraceOptions options;
  options.zero_output = TraceOptions::ZeroOutput::kOneToken;
  const TempFile file(std::string(kHeader) + "0,5,0\n1,5,2\n");
  const auto stream = open_trace(file.path(), options);
  EXPECT_EQ(drain(*stream)[0].output, Tokens{1});
  EXPECT_EQ(stream->summary().changed.at("output 0 read as 1").count, 1);
}

TEST(BadInput, UnsortedRowsAreSortedStably) {
  const auto requests = read_text(std::string(kHeader) + "5,1,1\n3,2,1\n5,3,1\n0,4,1\n3,5,1\n");
  std::vector<std::int64_t> inputs;
  inputs.reserve(requests.size());
  for (const TraceRequest& request : requests) {
    inputs.push_back(request.input.count());
  }
  EXPECT_EQ(inputs, (std::vector<std::int64_t>{4, 2, 5, 1, 3}));
  EXPECT_EQ(requests[4].arrival.since_start(), kSecond * 5);
}

TEST(BadInput, RowsInNoOrderAtAllAreSorted) {
  // More runs than are merged: the rows are held and sorted.
  std::string text = kHeader;
  for (int i = 0; i < 5000; ++i) {
    text += std::to_string(i * 7919 % 5000) + "," + std::to_string(i * 7919 % 5000 + 1) + ",1\n";
  }
  const auto requests = read_text(text);
  ASSERT_EQ(requests.size(), 5000U);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].input.count(), static_cast<std::int64_t>(i) + 1);
  }
}

std::string compressed(const char* tool, const std::string& text) {
  const TempFile plain(text);
  const std::string out = plain.path() + ".packed";
  const std::string command =
      std::string(tool) + " -c " + plain.path() + " > " + out + " 2>/dev/null";
  // NOLINTNEXTLINE(*-env33-c,concurrency-*): fixed tools on a file of our own
  if (std::system(command.c_str()) != 0) {
    std::filesystem::remove(out);
    return {};
  }
  std::ifstream in(out, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::filesystem::remove(out);
  return bytes;
}

TEST(BadInput, CompressedFilesWholeCutAndDamaged) {
  std::string text = kHeader;
  for (int i = 0; i < 20'000; ++i) {
    text += std::to_string(i) + ".125," + std::to_string(1 + i * 7919 % 4000) + ",5\n";
  }
  for (const char* tool : {"gzip", "zstd -q"}) {
    const std::string bytes = compressed(tool, text);
    if (bytes.empty()) {
      continue;  // the tool is not installed
    }
    EXPECT_EQ(read_text(bytes).size(), 20'000U) << tool;
    EXPECT_EQ(read_text(bytes + compressed(tool, "20000,1,1\n")).size(), 20'001U) << tool;
    for (const std::size_t size : {bytes.size() / 2, bytes.size() - 5, std::size_t{20}}) {
      EXPECT_TRUE(holds(refusal(bytes.substr(0, size)), "whole, undamaged")) << tool << size;
    }
    std::string damaged = bytes;
    damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 0x55);
    EXPECT_FALSE(refusal(damaged).empty()) << tool;
  }
}

}  // namespace
}  // namespace oomcast::workloads
