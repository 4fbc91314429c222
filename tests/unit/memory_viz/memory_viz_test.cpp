// The written pickle as Python's own pickle module reads it.
#include "sim/report/memory_viz.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/json.hpp"

namespace oomcast {
namespace {

using allocator::Action;
using allocator::CachingAllocator;
using allocator::StreamId;
using allocator::TraceEvent;

std::vector<VizFrame> frames_of(std::uint32_t tag) {
  return {{"tag " + std::to_string(tag), "qwen3.cpp", 70'000}, {"größe", "", -1}};
}

struct Opened {
  std::string path;
  Json document;  // null: no Python here
};

Opened read_with_python(const std::string& path) {
  const std::string command =
      std::string("python3 " OOMCAST_SOURCE_DIR "/tests/unit/memory_viz/read_snapshot.py '") +
      path + "' 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 1 << 16> chunk{};
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    text.append(chunk.data(), got);
  }
  const int status = ::pclose(pipe);
  constexpr int kNotFound = 127 << 8;
  if (status == kNotFound) {
    return {path, Json()};
  }
  EXPECT_EQ(status, 0) << text;
  return {path, status == 0 ? Json::parse(text) : Json::object()};
}

class MemoryViz : public testing::Test {
 protected:
  void SetUp() override {
    const char* kept = std::getenv("OOMCAST_SNAPSHOT");
    path_ = kept != nullptr
                ? kept
                : testing::TempDir() + "snapshot_" +
                      testing::UnitTest::GetInstance()->current_test_info()->name() + ".pickle";
  }
  void TearDown() override {
    if (std::getenv("OOMCAST_SNAPSHOT") == nullptr) {
      std::filesystem::remove(path_);
    }
  }
  std::string path_;
};

// A run with every kind of entry.
TEST_F(MemoryViz, PythonReadsWhatTheAllocatorDid) {
  Problems problems;
  std::vector<std::string> warnings;
  CachingAllocator allocator({.total = 100 * kMiB},
                             allocator::parse_allocator_settings("garbage_collection_threshold:0.9",
                                                                 "conf", problems, warnings));
  allocator::Trace trace;
  allocator.trace_to(&trace);
  allocator.allocate(Bytes{300}, StreamId::kDefault, 1);
  allocator.begin_pool(allocator::PoolId{7}, std::nullopt);
  const auto pending = *allocator.allocate(5 * kMiB, StreamId{2}, 2);
  allocator.end_pool(allocator::PoolId{7});
  allocator.record_stream(pending, StreamId{3});
  allocator.free(pending);
  allocator.free(*allocator.allocate(30 * kMiB, StreamId::kDefault, 3));
  EXPECT_FALSE(allocator.allocate(90 * kMiB, StreamId::kDefault, 4));

  MemoryVizFile file(path_, 1, frames_of);
  std::int64_t time = 1'700'000'000'000'000;
  for (const TraceEvent& event : trace) {
    file.add(event, time++);
  }
  file.finish(allocator.snapshot(), allocator.settings());
  const Json read = read_with_python(path_).document;
  if (read.is_null()) {
    GTEST_SKIP() << "python3 is not here";
  }
  const Json& snapshot = read["snapshot"];
  ASSERT_EQ(snapshot["device_traces"].size(), 2U);  // device 1 is the second
  EXPECT_TRUE(snapshot["device_traces"][0].empty());
  const Json& entries = snapshot["device_traces"][1];
  std::vector<std::string> actions;
  for (const Json& entry : entries) {
    actions.push_back(entry["action"]);
  }
  EXPECT_EQ(actions,
            (std::vector<std::string>{"segment_alloc", "alloc", "segment_alloc", "alloc",
                                      "free_requested", "segment_alloc", "alloc", "free_requested",
                                      "free_completed", "free_completed", "segment_free", "oom"}));
  const Json expected = {{"action", "alloc"},
                         {"addr", (std::int64_t{1} << 40) + (2 * kMiB).count()},
                         {"size", (5 * kMiB).count()},
                         {"stream", 2},
                         {"time_us", 1'700'000'000'000'003},
                         {"frames",
                          {{{"name", "tag 2"}, {"filename", "qwen3.cpp"}, {"line", 70'000}},
                           {{"name", "größe"}, {"filename", ""}, {"line", -1}}}}};
  EXPECT_EQ(entries[3], expected);
  EXPECT_EQ(entries.back()["device_free"], allocator.device().free().count());

  // After the wait for events in the failed retry, the pool's block is free.
  ASSERT_EQ(snapshot["segments"].size(), 2U);
  const Json& small = snapshot["segments"][0];
  EXPECT_EQ(small["segment_type"], "small");
  EXPECT_EQ(small["segment_pool_id"], (Json{0, 0}));
  EXPECT_EQ(small["total_size"], (2 * kMiB).count());
  EXPECT_EQ(small["allocated_size"], 512);
  EXPECT_EQ(small["requested_size"], 300);
  EXPECT_EQ(small["blocks"][0]["state"], "active_allocated");
  EXPECT_EQ(small["blocks"][0]["frames"][0]["name"], "tag 1");
  EXPECT_EQ(small["blocks"][1], (Json{{"address", (std::int64_t{1} << 40) + 512},
                                      {"size", (2 * kMiB).count() - 512},
                                      {"requested_size", 0},
                                      {"state", "inactive"},
                                      {"frames", Json::array()}}));
  EXPECT_EQ(snapshot["segments"][1]["segment_pool_id"], (Json{0, 7}));
  EXPECT_EQ(snapshot["segments"][1]["is_expandable"], false);
  const Json& settings = snapshot["allocator_settings"];
  EXPECT_EQ(settings["PYTORCH_CUDA_ALLOC_CONF"], "garbage_collection_threshold:0.9");
  EXPECT_EQ(settings["garbage_collection_threshold"], 0.9);
  EXPECT_EQ(settings["max_split_size"], -1);
  EXPECT_EQ(settings["roundup_power2_divisions"]["32768"], 0);
}

TEST_F(MemoryViz, LongListsComeInBatchesOfOpcodesThatTheViewerKnows) {
  CachingAllocator allocator({.total = 4 * kGiB}, allocator::AllocatorSettings{});
  for (int i = 0; i < 5000; ++i) {
    allocator.allocate(Bytes{512});
  }
  MemoryVizFile file(path_, 0, [](std::uint32_t /*tag*/) {
    return std::vector<VizFrame>{{std::string(300, 'x'), "f", 1}};
  });
  constexpr int kEntries = 12'001;
  for (int i = 0; i < kEntries; ++i) {
    file.add({.action = Action::kAlloc, .address = i, .size = Bytes{512}}, i);
  }
  file.finish(allocator.snapshot(), allocator.settings());
  const Json read = read_with_python(path_).document;
  if (read.is_null()) {
    GTEST_SKIP() << "python3 is not here";
  }
  const Json& entries = read["snapshot"]["device_traces"][0];
  ASSERT_EQ(entries.size(), static_cast<std::size_t>(kEntries));
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_EQ(entries[static_cast<std::size_t>(i)]["time_us"], i);
  }
  EXPECT_EQ(read["longest_batch"], 1000);
  const std::set<std::string> known = {
      "PROTO",    "FRAME",   "MARK",     "EMPTY_DICT",       "EMPTY_LIST", "EMPTY_TUPLE",
      "LIST",     "DICT",    "TUPLE",    "TUPLE1",           "TUPLE2",     "TUPLE3",
      "APPEND",   "APPENDS", "SETITEM",  "SETITEMS",         "BININT",     "BININT1",
      "BININT2",  "LONG1",   "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "NEWTRUE",
      "NEWFALSE", "NONE",    "STOP"};
  for (const Json& name : read["opcodes"]) {
    EXPECT_TRUE(known.contains(name.get<std::string>())) << name;
  }
}

TEST_F(MemoryViz, AnEmptyRunIsAValidFile) {
  MemoryVizFile file(path_, 0, frames_of);
  file.finish({}, {});
  const Json read = read_with_python(path_).document;
  if (read.is_null()) {
    GTEST_SKIP() << "python3 is not here";
  }
  EXPECT_EQ(read["snapshot"]["device_traces"], Json::parse("[[]]"));
  EXPECT_EQ(read["snapshot"]["segments"], Json::array());
}

}  // namespace
}  // namespace oomcast
