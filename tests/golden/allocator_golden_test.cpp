// Recorded calls of PyTorch's allocator: every field of every call, and the checker itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "tests/golden/allocator_check.hpp"

namespace oomcast::golden {
namespace {

using workloads::LineReader;

std::vector<std::string> recordings(const std::string& folder) {
  std::vector<std::string> files;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().string().find(".jsonl") != std::string::npos) {
        files.push_back(entry.path().string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void expect_all_match(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    LineReader in(path);
    std::string picture;
    EXPECT_EQ(check_allocator_recording(in, &picture), "") << path << "\n" << picture;
  }
}

std::vector<std::string> carried() { return recordings(OOMCAST_TEST_DATA "/torch_allocator"); }

std::string all_text(const std::string& path) {
  LineReader in(path);
  return in.read_rest(std::size_t{1} << 26);
}

std::string check_text(std::string text) {
  LineReader in(std::move(text), "recording");
  return check_allocator_recording(in);
}

std::string small_recording() {
  return all_text(OOMCAST_TEST_DATA "/torch_allocator/rule_pools.jsonl.gz");
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

// The first lines up to the one that contains `what`, and one more line.
std::string with_line_after(const std::string& text, const std::string& what,
                            const std::string& line) {
  const std::size_t at = text.find('\n', text.find(what));
  return text.substr(0, at + 1) + line + "\n";
}

TEST(CarriedAllocatorRecordings, AllFieldsOfAllCallsMatch) {
  ASSERT_GE(carried().size(), 20U);
  expect_all_match(carried());
}

TEST(SharedAllocatorRecordings, AllFieldsOfAllCallsMatch) {
  const std::vector<std::string> files = recordings(OOMCAST_SHARED_DIR "/goldens/torch_allocator");
  if (files.empty()) {
    GTEST_SKIP() << "the full set of recordings is not here";
  }
  expect_all_match(files);
}

// The comparison itself must see a difference in each kind of field.
TEST(AllocatorChecker, NamesCallAndFieldOfADifference) {
  const std::string text = small_recording();
  EXPECT_EQ(check_text(text), "");
  EXPECT_EQ(check_text(replaced(text, "\"at\":[1,0]", "\"at\":[1,512]")),
            "call 2 field at: expected [1,512], got [1,0]");
  EXPECT_EQ(check_text(replaced(text, "\"st\":[83886080,", "\"st\":[83886081,")),
            "call 0 field allocated: expected 83886081, got 83886080");
  EXPECT_NE(check_text(replaced(text, "[\"malloc\",0,", "[\"malloc\",1,"))
                .find("call 0 field driver: expected [[\"malloc\",1,"),
            std::string::npos);
  EXPECT_NE(check_text(replaced(text, "\"h\":\"c063", "\"h\":\"c064")).find("call 0 field h"),
            std::string::npos);
  EXPECT_NE(
      check_text(replaced(text, "\"done\":[", "\"done\":[9,")).find(" field done: expected [9,"),
      std::string::npos);
  EXPECT_NE(check_text(replaced(text, ",\"free\"]", ",\"allocated\",1]")).find("field segments["),
            std::string::npos);
}

TEST(AllocatorChecker, NamesTheLineOfAContradiction) {
  const std::string text = small_recording();
  const auto contradiction = [&](const std::string& line) {
    try {
      return "no complaint: " + check_text(with_line_after(text, "\"id\":0,\"size\"", line));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  const std::string tail = ",\"h\":\"0000\"}";
  for (const auto& [line, expected] : std::vector<std::pair<std::string, std::string>>{
           {"{\"op\":\"aloc\",\"id\":1,\"size\":5" + tail, "did you mean `alloc`?"},
           {"{\"op\":\"alloc\",\"id\":0,\"size\":5,\"at\":[0,0]" + tail, "an id that was not used"},
           {"{\"op\":\"alloc\",\"id\":1,\"size\":5" + tail, "either at or oom"},
           {"{\"op\":\"alloc\",\"id\":1,\"size\":-5,\"at\":[0,0]" + tail, "-5"},
           {"{\"op\":\"alloc\",\"id\":1,\"size\":1e300,\"at\":[0,0]" + tail, "1e+300"},
           {"{\"op\":\"free\",\"id\":7" + tail, "an allocation that lives"},
           {"{\"op\":\"free\"" + tail, "a call with id"},
           {"{\"op\":\"record_stream\",\"id\":7,\"stream\":1" + tail, "an allocation that lives"},
           {"{\"op\":\"end_pool\",\"pool\":3" + tail, "a pool that allocations go to"},
           {"{\"op\":\"release_pool\",\"pool\":3" + tail, "a pool that has uses"},
           {"{\"op\":\"begin_pool\",\"pool\":0" + tail, "from 1 to"},
           {"{\"op\":\"capture_end\",\"stream\":3" + tail, "a captured stream"},
           {"{\"op\":\"memory_fraction\",\"fraction\":1.5" + tail, "a fraction from 0 to 1"},
           {"{\"op\":\"set_conf\",\"conf\":\"max_split_mb:1\"" + tail, "max_split_mb"},
           {"{\"op\":\"reset_peak_stats\"", "valid JSON"},
           {"[1]", "a call: op"},
           {"{\"op\":\"reset_peak_stats\",\"h\":\"00\"}", "16 hexadecimal digits"}}) {
    const std::string found = contradiction(line);
    EXPECT_NE(found.find("line 3"), std::string::npos) << line << " gave " << found;
    EXPECT_NE(found.find(expected), std::string::npos) << line << " gave " << found;
  }
}

TEST(AllocatorChecker, RefusesWhatIsNoRecordingOrIsCutOff) {
  EXPECT_THROW(check_text(""), ConfigError);
  EXPECT_THROW(check_text("{}\n"), ConfigError);
  EXPECT_THROW(check_text(replaced(small_recording(), "\"ascending\"", "\"sideways\"")),
               ConfigError);
  EXPECT_THROW(check_text(replaced(small_recording(), "85899345920", "9223372036854775807")),
               ConfigError);
  EXPECT_THROW(check_text(replaced(small_recording(), "\"alloc_retries\"", "\"retries\"")),
               ConfigError);
  // The last call has all statistics, so a file whose last line has none ends too early.
  const std::string text = small_recording();
  const std::size_t second = text.find('\n') + 1;
  std::string start = text.substr(0, text.find('\n', second) + 1);
  EXPECT_EQ(check_text(start), "");
  const std::size_t stats = start.rfind(",\"st\"");
  const std::size_t digest = start.rfind("\"}") - 4;
  start = start.substr(0, stats) + ",\"h\":\"" + start.substr(digest);
  EXPECT_THROW(check_text(start), ConfigError) << start;
}

}  // namespace
}  // namespace oomcast::golden
