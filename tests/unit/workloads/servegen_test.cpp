// ServeGen archives: distributions turned into requests.
#include <gtest/gtest.h>

#include "tests/unit/workloads/trace_helpers.hpp"

namespace oomcast::workloads {
namespace {

// One regular file of a tar archive.
std::string member(const std::string& name, const std::string& text) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char size[13];
  std::snprintf(size, sizeof(size), "%011lo", static_cast<unsigned long>(text.size()));
  header.replace(124, 11, size, 11);
  header[156] = '0';
  header.replace(257, 5, "ustar");
  std::string body = text;
  body.resize((text.size() + 511) / 512 * 512, '\0');
  return header + body;
}

std::string archive(const std::string& trace, const std::string& dataset) {
  return member("a/chunk-7-trace.csv", trace) + member("a/chunk-7-dataset.json", dataset) +
         std::string(1024, '\0');
}

constexpr const char* kLengths =
    "{\"0\":{\"input_tokens\":\"{10: 0.25, 30: 0.75}\",\"output_tokens\":\"{5: 1.0}\"},"
    "\"21600\":{\"input_tokens\":\"{}\",\"output_tokens\":\"{}\"}}";

std::vector<TraceRequest> made(const std::string& bytes, const std::string& format = "",
                               std::uint64_t seed = 1) {
  TraceOptions options;
  options.format = format;
  options.seed = seed;
  return drain(*read_trace(bytes, "archive.tar", options));
}

TEST(Servegen, RateAndLengthsFollowTheDistributions) {
  // Gamma gaps of mean 2 * 0.05 = 0.1 s over 600 s: 6,000 requests, deviation sqrt(6000 / 2).
  const auto requests = made(archive("0,10,0.7,Gamma,2,0.05\n600,0,0,,0,0\n", kLengths));
  EXPECT_NEAR(static_cast<double>(requests.size()), 6000, 4 * 55);
  double input = 0;
  for (const TraceRequest& request : requests) {
    input += static_cast<double>(request.input.count());
    EXPECT_EQ(request.output, Tokens{5});
    EXPECT_LT(request.arrival.seconds(), 600);
  }
  EXPECT_NEAR(input / static_cast<double>(requests.size()), 25, 0.6);
}

TEST(Servegen, SeedsAndWindows) {
  const std::string bytes =
      archive("0,1,1,Weibull,1,1\n600,1,1,Gamma,1,1\n1200,1,1,Gamma,1,1\n", kLengths);
  EXPECT_EQ(made(bytes)[5].arrival, made(bytes)[5].arrival);
  EXPECT_NE(made(bytes)[5].arrival, made(bytes, "", 2)[5].arrival);
  const std::size_t all = made(bytes).size();
  const auto part = made(bytes, "servegen:start=600,duration=300");
  EXPECT_NEAR(static_cast<double>(all), 1800, 4 * 43);
  EXPECT_NEAR(static_cast<double>(part.size()), 300, 4 * 18);
  EXPECT_LT(part.back().arrival.seconds(), 300);
}

TEST(Servegen, WindowsWithoutLengthsAreCounted) {
  TraceOptions options;
  const auto stream = read_trace(archive("21000,1,1,Gamma,1,1\n21600,1,1,Gamma,1,1\n", kLengths),
                                 "archive.tar", options);
  drain(*stream);
  const ReadSummary summary = stream->summary();
  EXPECT_GT(summary.dropped.at("no length distribution for the window").count, 400);
  EXPECT_GT(summary.kept, 400);
  EXPECT_EQ(summary.read,
            summary.kept + summary.dropped.at("no length distribution for the window").count);
}

std::string refused(const std::string& bytes, const std::string& format = "") {
  try {
    made(bytes, format);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(Servegen, BadArchives) {
  const std::string good = archive("0,1,1,Gamma,1,1\n", kLengths);
  EXPECT_TRUE(refused(good).empty());
  EXPECT_TRUE(holds(refused(good.substr(0, 520)), "a whole tar archive"));
  EXPECT_TRUE(holds(refused(member("x/readme", "hi")), "chunk-ID-trace.csv"));
  EXPECT_TRUE(holds(refused(archive("0,1,1,Gauss,1,1\n", kLengths)), "Gamma|Weibull"));
  EXPECT_TRUE(holds(refused(archive("0,1,1,Gamma,0,1\n", kLengths)), "line 1"));
  EXPECT_TRUE(holds(refused(archive("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", kLengths)), "order"));
  EXPECT_TRUE(holds(
      refused(archive("0,1,1,Gamma,1,1\n", "{\"0\":{\"input_tokens\":\"__import__('os')\"}}")),
      "a dict of tokens"));
  EXPECT_TRUE(holds(refused(archive("0,0,0,,0,0\n", kLengths)), "no traffic"));
  EXPECT_TRUE(
      holds(refused("arrival_s,input_tokens,output_tokens\n0,1,1\n", "servegen"), "a tar archive"));
  EXPECT_TRUE(holds(refused(good, "servegen:block=3"), "start=SECONDS"));
}

}  // namespace
}  // namespace oomcast::workloads
