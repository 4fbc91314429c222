#include <gtest/gtest.h>

#include <unistd.h>

#include <map>
#include <set>

#include "tests/unit/workloads/trace_helpers.hpp"
#include "workloads/recorded.hpp"

namespace oomcast::workloads {
namespace {

std::unique_ptr<RequestStream> rows(const std::string& text) {
  const TempFile file("arrival_ns,input_tokens,output_tokens\n" + text);
  return open_trace(file.path());
}

std::vector<std::int64_t> arrivals(RequestStream& stream) {
  std::vector<std::int64_t> out;
  for (const TraceRequest& request : drain(stream)) {
    out.push_back(request.arrival.since_start().count());
  }
  return out;
}

using Times = std::vector<std::int64_t>;

TEST(Modifiers, LimitTakesTheFirst) {
  auto stream = limit_requests(rows("0,1,1\n1,1,1\n2,1,1\n"), 2);
  EXPECT_EQ(arrivals(*stream), (Times{0, 1}));
  EXPECT_TRUE(stream->at_end());
  EXPECT_THROW(limit_requests(rows("0,1,1\n"), 0), ConfigError);
}

TEST(Modifiers, RateScaleDividesExactly) {
  auto faster = scale_rate(rows("0,1,1\n7,1,1\n9000000000000000007,1,1\n"), "3");
  EXPECT_EQ(arrivals(*faster), (Times{0, 2, 3000000000000000002}));
  auto slower = scale_rate(rows("0,1,1\n7,1,1\n"), "0.1");
  EXPECT_EQ(arrivals(*slower), (Times{0, 70}));
  for (const char* factor : {"0", "-1", "x", "", "1e-20", "nan"}) {
    EXPECT_THROW(scale_rate(rows("0,1,1\n"), factor), ConfigError) << factor;
  }
  auto beyond = scale_rate(rows("0,1,1\n9000000000000000000,1,1\n"), "0.5");
  EXPECT_THROW(arrivals(*beyond), ArithmeticOverflow);
}

TEST(Modifiers, PromptScaleKeepsWhatPromptsShare) {
  // Blocks of 16 that two prompts begin with, then blocks of their own; 1.5 times as long.
  auto stream = scale_prompts(
      read_trace("{\"timestamp\":0,\"input_length\":40,\"output_length\":7,\"hash_ids\":[1,2,3]}\n"
                 "{\"timestamp\":1,\"input_length\":33,\"output_length\":7,\"hash_ids\":[1,2,4]}\n",
                 "test", {.format = "mooncake:block=16"}),
      "1.5");
  const std::vector<TraceRequest> requests = drain(*stream);
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].input, Tokens{60});
  EXPECT_EQ(requests[1].input, Tokens{50});  // 49.5, rounded up
  EXPECT_EQ(requests[0].output, Tokens{7});
  for (const TraceRequest& request : requests) {
    Tokens sum;
    for (const ContentSegment& piece : request.content) {
      sum += piece.length;
    }
    EXPECT_EQ(sum, request.input);
    EXPECT_EQ(request.content[0].id, requests[0].content[0].id);
    EXPECT_EQ(request.content[0].offset, requests[0].content[0].offset);
  }
  EXPECT_EQ(requests[1].content[0].length, Tokens{48});  // both blocks
  for (const char* factor : {"0", "-1", "x", "101"}) {
    EXPECT_THROW(scale_prompts(rows("0,1,1\n"), factor), ConfigError) << factor;
  }
  auto one = scale_prompts(rows("0,1,1\n"), "0.01");
  EXPECT_EQ(drain(*one)[0].input, Tokens{1});
}

TEST(Modifiers, OutputsAreDrawnWhereTheTraceHasNone) {
  const TempFile file("arrival_s,input_tokens\n0,5\n1,6\n2,7\n");
  EXPECT_THROW(make_workload({.traces = {file.path()}}), ConfigError);
  const auto lengths = [&](std::uint64_t seed) {
    auto stream =
        make_workload({.traces = {file.path()}, .output = "uniform(10,1000)", .seed = seed});
    std::vector<std::int64_t> out;
    for (const TraceRequest& request : drain(*stream)) {
      EXPECT_GE(request.output, Tokens{10});
      EXPECT_LE(request.output, Tokens{1000});
      out.push_back(request.output.count());
    }
    return out;
  };
  EXPECT_EQ(lengths(1), lengths(1));
  EXPECT_NE(lengths(1), lengths(2));
  EXPECT_THROW(make_workload({.traces = {file.path()}, .output = "often"}), ConfigError);
}

TEST(Modifiers, TheWorkloadBeginsOnceTheWarmUpIsAnswered) {
  auto stream = warmed_up(rows("0,1,1\n5,2,1\n"), rows("0,3,1\n1,4,1\n"));
  TraceRequest request;
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(stream->next_arrival(), SimTime{Nanos{5 * i}});
    stream->take(request);
    EXPECT_TRUE(request.warm_up);
    EXPECT_EQ(request.index, i);
  }
  EXPECT_FALSE(stream->next_arrival());
  stream->on_finished(1, SimTime{Nanos{7}});
  EXPECT_FALSE(stream->next_arrival());
  EXPECT_FALSE(stream->at_end());
  stream->on_finished(0, SimTime{Nanos{9}});
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(stream->next_arrival(), SimTime{Nanos{9 + i}});
    stream->take(request);
    EXPECT_FALSE(request.warm_up);
    EXPECT_EQ(request.index, 2 + i);
    EXPECT_EQ(request.arrival, SimTime{Nanos{9 + i}});
  }
  EXPECT_TRUE(stream->at_end());
}

// A trace as its own warm-up: another tokenizer's lengths and drawn outputs hold for both.
TEST(Modifiers, AWarmUpIsScaledAndDrawnAsTheWorkload) {
  const TempFile file("arrival_s,input_tokens\n0,5\n0,6\n");
  auto stream = make_workload({.traces = {file.path()},
                               .warm_up = file.path(),
                               .output = "uniform(10,1000)",
                               .prompt_scale = "2",
                               .seed = 1});
  std::vector<TraceRequest> requests(4);
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(stream->next_arrival());
    stream->take(requests[i]);
    EXPECT_EQ(requests[i].warm_up, i < 2);
    EXPECT_GE(requests[i].output, Tokens{10});
    if (i == 1) {
      stream->on_finished(0, SimTime{kSecond});
      stream->on_finished(1, SimTime{kSecond});
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(requests[i].input, requests[i + 2].input);
    EXPECT_NE(requests[i].output, requests[i + 2].output);
  }
  EXPECT_EQ(requests[0].input, Tokens{10});
}

TEST(Modifiers, TracesDrawApart) {
  const TempFile file("arrival_s,input_tokens\n0,5\n");
  auto stream = make_workload({.traces = {file.path(), file.path()}, .output = "uniform(10,1000)"});
  const std::vector<TraceRequest> both = drain(*stream);
  ASSERT_EQ(both.size(), 2U);
  EXPECT_NE(both[0].output, both[1].output);
}

TEST(Modifiers, OptionsThatWouldChangeNothingAreRefused) {
  const std::string open = "batch:requests=2,input=1,output=1";
  EXPECT_THROW(make_workload({.synthetic = {open}, .output = "5"}), ConfigError);
  EXPECT_THROW(make_workload({.synthetic = {open + ",class="}}), ConfigError);
  EXPECT_THROW(make_workload({.synthetic = {"closed:clients=2,requests=2,input=1,output=1"},
                              .closed_loop = 3}),
               ConfigError);
}

// Before the first run of many, not in each.
TEST(Recorded, WhatIsWrongInAllRunsIsToldAtOnce) {
  const std::vector<std::string> synthetic = {"batch:requests=2,input=1,output=1"};
  const RecordedWorkload good({.synthetic = synthetic, .timeout = "1"});
  EXPECT_EQ(drain(*good.play()).size(), 2U);
  EXPECT_THROW(RecordedWorkload({.synthetic = synthetic, .timeout = "-1"}), ConfigError);
  EXPECT_THROW(RecordedWorkload({.synthetic = synthetic, .prompt_scale = "0"}), ConfigError);
  EXPECT_THROW(RecordedWorkload({.synthetic = synthetic, .rate_scale = "x"}), ConfigError);
  EXPECT_THROW(RecordedWorkload({.synthetic = synthetic, .warm_up = "no/such/file"}), ConfigError);
  EXPECT_THROW(RecordedWorkload({.synthetic = synthetic, .warm_up = "-"}), ConfigError);
}

// Classes come merged by time, and differ although they are described alike.
TEST(Modifiers, SyntheticClassesAreMerged) {
  const std::string alike = "rate=2,requests=20,input=uniform(1,1000),output=5,prefix=8,adapters=2";
  auto stream = make_workload(
      {.synthetic = {"poisson:class=a," + alike, "poisson:class=b," + alike}, .seed = 3});
  std::vector<std::int64_t> of_a;
  std::vector<std::int64_t> of_b;
  std::map<std::string, std::uint64_t> prefix_of;
  SimTime before;
  for (const TraceRequest& request : drain(*stream)) {
    EXPECT_LE(before, request.arrival);
    before = request.arrival;
    (request.id[0] == 'a' ? of_a : of_b).push_back(request.input.count());
    prefix_of[request.id[0] + request.adapter] = request.content.front().id;
  }
  EXPECT_EQ(of_a.size(), 20U);
  EXPECT_EQ(of_b.size(), 20U);
  EXPECT_NE(of_a, of_b);
  ASSERT_EQ(prefix_of.size(), 4U);  // two adapters of two classes: nothing is shared
  std::set<std::uint64_t> different;
  for (const auto& [name, id] : prefix_of) {
    different.insert(id);
  }
  EXPECT_EQ(different.size(), 4U);
}

TEST(Modifiers, TimeoutIsTheLongestThatClientsWait) {
  auto stream = limit_patience(
      read_trace(
          "arrival_s,input_tokens,output_tokens,cancel_after_s\n0,1,1,0.25\n1,1,1,\n2,1,1,9\n",
          "test"),
      "1.5");
  std::vector<std::int64_t> waits;
  for (const TraceRequest& request : drain(*stream)) {
    waits.push_back(request.patience.value_or(Nanos{}).count());
  }
  EXPECT_EQ(waits, (std::vector<std::int64_t>{250'000'000, 1'500'000'000, 1'500'000'000}));
  for (const char* seconds : {"0", "-1", "x", "1e20"}) {
    EXPECT_THROW(limit_patience(rows("0,1,1\n"), seconds), ConfigError) << seconds;
  }
}

TEST(Modifiers, MergeIsByTimeThenByOrderGiven) {
  std::vector<std::unique_ptr<RequestStream>> streams;
  streams.push_back(rows("0,1,1\n10,2,1\n"));
  streams.push_back(rows("0,3,1\n5,4,1\n10,5,1\n"));
  auto merged = merge_streams(std::move(streams));
  std::vector<std::int64_t> inputs;
  for (const TraceRequest& request : drain(*merged)) {
    EXPECT_EQ(request.index, static_cast<std::int64_t>(inputs.size()));
    inputs.push_back(request.input.count());
  }
  EXPECT_EQ(inputs, (Times{1, 3, 4, 2, 5}));
  EXPECT_EQ(merged->summary().kept, 5);
}

TEST(Modifiers, ClosedLoopWaitsForAnswers) {
  auto stream = close_loop(rows("0,1,1\n0,2,1\n0,3,1\n0,4,1\n"), 2, Nanos{100});
  TraceRequest request;
  ASSERT_EQ(stream->next_arrival(), SimTime{});
  stream->take(request);
  EXPECT_EQ(request.input, Tokens{1});
  stream->take(request);
  EXPECT_EQ(request.input, Tokens{2});
  // Both clients wait.
  EXPECT_EQ(stream->next_arrival(), std::nullopt);
  EXPECT_FALSE(stream->at_end());
  stream->on_finished(1, SimTime{Nanos{50}});
  EXPECT_EQ(stream->next_arrival(), SimTime{Nanos{150}});
  stream->on_finished(0, SimTime{Nanos{60}});
  stream->take(request);
  EXPECT_EQ(request.index, 2);
  EXPECT_EQ(request.input, Tokens{3});
  EXPECT_EQ(stream->next_arrival(), SimTime{Nanos{160}});
  stream->take(request);
  EXPECT_EQ(request.input, Tokens{4});
  EXPECT_TRUE(stream->at_end());
  stream->on_finished(2, SimTime{Nanos{500}});
  EXPECT_EQ(stream->next_arrival(), std::nullopt);
}

TEST(Modifiers, AScaledClosedLoopKeepsThinkTimesScaled) {
  auto inner = make_synthetic("closed:clients=1,requests=3,input=1,output=1,think=3", 1);
  auto stream = scale_rate(std::move(inner), "3");
  TraceRequest request;
  stream->take(request);
  EXPECT_EQ(request.arrival, SimTime{kSecond});
  stream->on_finished(0, SimTime{kSecond * 2});
  EXPECT_EQ(stream->next_arrival(), SimTime{kSecond * 3});
}

TEST(Modifiers, WorkloadPutsTheOptionsTogether) {
  const TempFile one("arrival_s,input_tokens,output_tokens\n0,1,1\n4,2,1\n");
  const TempFile two("arrival_s,input_tokens,output_tokens\n0,3,1\n2,4,1\n");
  auto stream =
      make_workload({.traces = {one.path(), two.path()}, .rate_scale = "2", .requests = 3});
  EXPECT_EQ(arrivals(*stream), (Times{0, 0, 1'000'000'000}));
  EXPECT_THROW(make_workload({.traces = {}}), ConfigError);
  EXPECT_THROW(make_workload({.traces = {one.path()}, .synthetic = {"batch:x"}}), ConfigError);
  EXPECT_TRUE(make_workload({.traces = {one.path()}, .closed_loop = 2})->is_closed_loop());
}

// Resident memory of this process in MiB.
double resident_mib() {
  std::ifstream in("/proc/self/statm");
  long total = 0;
  long resident = 0;
  in >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1048576.0;
}

TEST(Modifiers, TracesBehindEachOtherAreMergedInOrder) {
  const std::string header = "arrival_ns,input_tokens,output_tokens\n";
  std::string text;
  for (int copy = 0; copy < 3; ++copy) {
    text += header;
    for (int i = 0; i < 4; ++i) {
      text += std::to_string(i * 10) + "," + std::to_string(100 * copy + i + 1) + "," +
              (i == 3 ? "0" : "1") + "\n";
    }
  }
  const TempFile file(text);
  const auto stream = open_trace(file.path());
  std::vector<std::int64_t> inputs;
  for (const TraceRequest& request : drain(*stream)) {
    inputs.push_back(request.input.count());
  }
  EXPECT_EQ(inputs, (Times{1, 101, 201, 2, 102, 202, 3, 103, 203}));
  const ReadSummary summary = stream->summary();
  EXPECT_EQ(summary.read, 12);
  EXPECT_EQ(summary.dropped.at("output 0").count, 3);
  EXPECT_EQ(summary.format, "csv");
}

TEST(Modifiers, MemoryDoesNotGrowWithTheTrace) {
  // Ten traces behind each other, each with its own clock.
  std::string text;
  for (int i = 0; i < 400'000; ++i) {
    if (i % 40'000 == 0) {
      text += "arrival_s,input_tokens,output_tokens\n";
    }
    text += std::to_string(i % 40'000) + ".5,100,10\n";
  }
  const TempFile file(text);
  text.clear();
  text.shrink_to_fit();
  const auto stream = open_trace(file.path());
  TraceRequest request;
  for (int i = 0; i < 1000; ++i) {
    stream->take(request);
  }
  const double before = resident_mib();
  while (!stream->at_end()) {
    stream->take(request);
  }
  EXPECT_EQ(request.index, 399'999);
  EXPECT_LT(resident_mib() - before, 2.0);
}

}  // namespace
}  // namespace oomcast::workloads
