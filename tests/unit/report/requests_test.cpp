// A long requests.csv becomes a sample that keeps what one looks for, and quantiles of all.
#include "sim/report/requests_reader.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.hpp"
#include "tests/unit/report/small_run.hpp"

namespace oomcast::report {
namespace {

constexpr const char* kHeader =
    "id,arrival_s,first_scheduled_s,first_token_s,finish_s,input_tokens,output_tokens,"
    "cached_tokens,preemptions,outcome\n";

FinishedRequests read(const std::string& rows) {
  return read_requests(std::make_unique<workloads::LineReader>(kHeader + rows, "requests.csv"));
}

// One a second; `slow` takes 900 s, `rejected` never starts, `preempted` gives up its blocks twice.
FinishedRequests many(int count, int slow, int rejected, int preempted) {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    if (i == rejected) {
      rows += fmt::format("{},{}.0,,,,8,4,0,0,rejected_too_long\n", i, i);
    } else {
      const int takes = i == slow ? 900 : 2 + i % 3;
      rows += fmt::format("{},{}.0,{}.0,{}.0,{}.0,8,4,0,{},finished\n", i, i, i, i + 1, i + takes,
                          i == preempted ? 2 : 0);
    }
  }
  return read(rows);
}

bool holds(const FinishedRequests& requests, int id) {
  return std::any_of(requests.kept.begin(), requests.kept.end(),
                     [id](const FinishedRequest& one) { return one.id == std::to_string(id); });
}

TEST(Requests, FewAreAllKept) {
  const FinishedRequests requests = many(5'000, 17, 18, 19);
  EXPECT_EQ(requests.total, 5'000);
  EXPECT_EQ(requests.kept.size(), 5'000U);
}

TEST(Requests, OfManyTheOddOnesStay) {
  // Odd numbers, so that even spacing alone would miss them.
  const FinishedRequests requests = many(40'001, 31'337, 20'001, 39'999);
  EXPECT_EQ(requests.total, 40'001);
  EXPECT_LE(requests.kept.size(), 5'000U + 5 * 250U);
  EXPECT_TRUE(holds(requests, 31'337));
  EXPECT_TRUE(holds(requests, 20'001));
  EXPECT_TRUE(holds(requests, 39'999));
  EXPECT_TRUE(holds(requests, 0));
  EXPECT_TRUE(std::is_sorted(requests.kept.begin(), requests.kept.end(),
                             [](const FinishedRequest& left, const FinishedRequest& right) {
                               return left.arrival_ns < right.arrival_ns;
                             }));
}

TEST(Requests, QuantilesAreOfAll) {
  const FinishedRequests requests = many(30'000, 7, -1, -1);
  ASSERT_EQ(requests.latency.size(), 101U);
  // A third each take 2, 3 and 4 s; bins are within 0.8 %.
  EXPECT_NEAR(static_cast<double>(requests.latency[10]) * 1e-9, 2.0, 0.02);
  EXPECT_NEAR(static_cast<double>(requests.latency[50]) * 1e-9, 3.0, 0.03);
  EXPECT_NEAR(static_cast<double>(requests.latency[90]) * 1e-9, 4.0, 0.04);
  EXPECT_EQ(requests.latency[100], 900'000'000'000);
  EXPECT_TRUE(std::is_sorted(requests.latency.begin(), requests.latency.end()));
}

TEST(Requests, NoRequestsAreNone) {
  const FinishedRequests requests = read("");
  EXPECT_EQ(requests.total, 0);
  EXPECT_TRUE(requests.ttft.empty());
}

TEST(Requests, InstantsGoForward) {
  try {
    read("a,5.0,4.0,,,8,4,0,0,finished\n");
    FAIL() << "read";
  } catch (const ConfigError& error) {
    EXPECT_NE(to_string(error.problems().front()).find("line 2 first_scheduled_s"),
              std::string::npos);
  }
}

TEST(Requests, AreTheSameFromTheRunAndFromItsFile) {
  std::vector<RequestRow> rows = small_run().requests;
  for (const char* id : {"  blanks ", "\"", "two\nlines", "  "}) {
    rows.push_back(rows.front());
    rows.back().id = id;
  }
  rows.back().id += std::string(300, 'x');
  SmallRun run = small_run();
  run.requests = rows;
  const FinishedRequests read =
      read_requests(std::make_unique<workloads::LineReader>(texts_of(run).requests, "file"));
  SampledRequests sink;
  for (const RequestRow& row : rows) {
    sink.row(row);
  }
  const FinishedRequests kept = sink.result();
  EXPECT_EQ(kept.total, read.total);
  EXPECT_EQ(kept.kept, read.kept);
  EXPECT_EQ(kept.ttft, read.ttft);
  EXPECT_EQ(kept.tpot, read.tpot);
  EXPECT_EQ(kept.latency, read.latency);
}

}  // namespace
}  // namespace oomcast::report
