#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/workloads/trace_helpers.hpp"

namespace oomcast::workloads {
namespace {

std::string refused(const std::string& spec) {
  try {
    make_synthetic(spec, 1);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

struct Moments {
  double mean = 0;
  double deviation = 0;
};

template <typename Get>
Moments moments(const std::vector<TraceRequest>& requests, Get get) {
  double sum = 0;
  double squares = 0;
  for (const TraceRequest& request : requests) {
    sum += get(request);
    squares += get(request) * get(request);
  }
  const auto count = static_cast<double>(requests.size());
  return {sum / count, std::sqrt(squares / count - sum / count * (sum / count))};
}

std::vector<TraceRequest> made(const std::string& spec, std::uint64_t seed = 7) {
  return drain(*make_synthetic(spec, seed));
}

TEST(Synthetic, SameSeedSameRequests) {
  const std::string spec = "poisson:rate=5,requests=100,input=lognormal(1024,0.8),output=8";
  const auto one = made(spec);
  const auto two = made(spec);
  const auto other = made(spec, 8);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].arrival, two[i].arrival);
    EXPECT_EQ(one[i].input, two[i].input);
  }
  EXPECT_NE(one[50].arrival, other[50].arrival);
}

TEST(Synthetic, StreamsOfChanceAreIndependent) {
  // Another output distribution leaves arrivals and inputs as they were.
  const auto one = made("poisson:rate=5,requests=50,input=exponential(100),output=8");
  const auto two = made("poisson:rate=5,requests=50,input=exponential(100),output=normal(9,3)");
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].arrival, two[i].arrival);
    EXPECT_EQ(one[i].input, two[i].input);
  }
}

TEST(Synthetic, GapsHaveTheMeanAndVariationAskedFor) {
  const auto variation = [](const std::string& process) {
    auto requests = made(process + ",requests=40000,input=1,output=1");
    for (std::size_t i = requests.size() - 1; i > 0; --i) {
      requests[i].think = requests[i].arrival - requests[i - 1].arrival;
    }
    requests.erase(requests.begin());
    return moments(requests, [](const TraceRequest& request) {
      return static_cast<double>(request.think.count()) * 1e-9;
    });
  };
  const Moments poisson = variation("poisson:rate=4");
  EXPECT_NEAR(poisson.mean, 0.25, 0.01);
  EXPECT_NEAR(poisson.deviation / poisson.mean, 1.0, 0.03);
  const Moments bursty = variation("gamma:rate=4,cv=3");
  EXPECT_NEAR(bursty.mean, 0.25, 0.015);
  EXPECT_NEAR(bursty.deviation / bursty.mean, 3.0, 0.2);
  const Moments constant = variation("constant:rate=4");
  EXPECT_DOUBLE_EQ(constant.mean, 0.25);
}

TEST(Synthetic, LengthsHaveTheShapeAskedFor) {
  const auto inputs = [](const std::string& distribution) {
    return moments(
        made("batch:requests=40000,output=1,input=" + distribution),
        [](const TraceRequest& request) { return static_cast<double>(request.input.count()); });
  };
  EXPECT_DOUBLE_EQ(inputs("fixed(77)").mean, 77);
  EXPECT_NEAR(inputs("uniform(100,300)").mean, 200, 2);
  EXPECT_NEAR(inputs("normal(500,50)").deviation, 50, 1);
  // Mean of a log-normal: median * exp(sigma^2 / 2).
  EXPECT_NEAR(inputs("lognormal(1000,0.5)").mean, 1000 * std::exp(0.125), 15);
  EXPECT_NEAR(inputs("exponential(1000)").mean, 1000, 20);
  EXPECT_LE(inputs("exponential(1000,max=10)").mean, 10);
}

TEST(Synthetic, EmpiricalLengthsFollowTheirWeights) {
  const TempFile file("tokens,weight\n10,1\n30,3\n");
  const Moments lengths = moments(
      made("batch:requests=20000,output=1,input=empirical(" + file.path() + ")"),
      [](const TraceRequest& request) { return static_cast<double>(request.input.count()); });
  EXPECT_NEAR(lengths.mean, 25, 0.3);
}

TEST(Synthetic, DurationEndsTheStream) {
  const auto requests = made("constant:rate=2,duration=3,input=1,output=1");
  EXPECT_EQ(requests.size(), 7U);  // at 0, 0.5, ... 3.0
}

TEST(Synthetic, PrefixesAreSharedWithinAGroup) {
  const auto requests = made("batch:requests=200,input=10,output=1,prefix=100,prefixes=3");
  std::map<std::uint64_t, int> groups;
  for (const TraceRequest& request : requests) {
    EXPECT_EQ(request.input, Tokens{110});
    EXPECT_EQ(request.content[0].length, Tokens{100});
    ++groups[request.content[0].id];
  }
  EXPECT_EQ(groups.size(), 3U);
}

TEST(Synthetic, ClosedLoop) {
  const auto stream = make_synthetic("closed:clients=2,requests=5,input=1,output=1,think=1", 1);
  TraceRequest request;
  std::int64_t taken = 0;
  SimTime now;
  while (!stream->at_end()) {
    const auto due = stream->next_arrival();
    ASSERT_TRUE(due.has_value());
    EXPECT_GE(*due, now);
    now = *due;
    stream->take(request);
    ++taken;
    stream->on_finished(request.index, now + kSecond);
  }
  EXPECT_EQ(taken, 5);
}

TEST(Synthetic, ClampsAreCounted) {
  const auto stream = make_synthetic("batch:requests=10,input=0,output=normal(1000000000,1)", 1);
  const auto requests = drain(*stream);
  EXPECT_EQ(requests[0].input, Tokens{1});
  EXPECT_EQ(stream->summary().changed.at("input below 1 raised to 1").count, 10);
  EXPECT_EQ(stream->summary().changed.at("output above 100,000,000 cut").count, 10);
}

TEST(Synthetic, ErrorsShowTheChoices) {
  EXPECT_TRUE(holds(refused("poison:rate=5"), "did you mean `poisson`?"));
  EXPECT_TRUE(holds(refused(""), "poisson, gamma, constant, batch, closed"));
  const std::string problem = refused("poisson:rate=0,inputs=5,output=lognorm(1,2)");
  EXPECT_TRUE(holds(problem, "a number above 0"));
  EXPECT_TRUE(holds(problem, "did you mean `input`?"));
  EXPECT_TRUE(holds(problem, "did you mean `lognormal`?"));
  EXPECT_TRUE(holds(problem, "requests=1000 or duration=60"));
  EXPECT_TRUE(holds(refused("batch:requests=1,input=1,output=1,rate=3"), "no rate for batch"));
  for (const char* distribution :
       {"uniform(3)", "uniform(5,3)", "lognormal(0,1)", "fixed(x)", "uniform(1,2", "empirical(/no)",
        "-5", "normal(1,2,max=0)", "", "fixed()"}) {
    EXPECT_FALSE(refused(std::string("batch:requests=1,output=1,input=") + distribution).empty())
        << distribution;
  }
}

}  // namespace
}  // namespace oomcast::workloads
