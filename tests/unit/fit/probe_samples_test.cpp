// Recorded samples: there and back, and everything that is no such file.
#include "sim/fit/probe_samples.hpp"

#include <gtest/gtest.h>

#include <set>

#include "sim/core/error.hpp"
#include "sim/fit/guarded_file.hpp"

namespace oomcast::fit {
namespace {

ProbeSamples small() {
  ProbeSamples samples;
  samples.source = "s.json";
  samples.synthetic = true;
  samples.card = {.gpu = "NVIDIA H100 80GB HBM3",
                  .sm_count = 132,
                  .threads_per_sm = 2048,
                  .compute_capability = "9.0",
                  .total = Bytes{85'029'158'912},
                  .free = Bytes{84'000'000'000},
                  .mig = false,
                  .other_processes = 0};
  samples.driver = "570.86.15";
  samples.cuda = "12.8";
  samples.date = "2026-11-30T07:35:00Z";
  samples.versions = {{"graph", 1}};
  samples.left_out = {"nccl: one GPU"};
  samples.samples.push_back({.probe = "graph",
                             .settings = {{"nodes", 64}, {"copies", 0}},
                             .repeat = 2,
                             .status = SampleStatus::kDone,
                             .note = "",
                             .values = {{"bytes", 655'360.5}},
                             .free_before = Bytes{5},
                             .free_after = Bytes{5},
                             .disturbed = false});
  samples.samples.push_back({.probe = "gemm",
                             .settings = {{"rows", 8192}},
                             .repeat = 0,
                             .status = SampleStatus::kOutOfMemory,
                             .note = "cudaMalloc: out of memory",
                             .values = {},
                             .free_before = Bytes{5},
                             .free_after = Bytes{5},
                             .disturbed = true});
  return samples;
}

std::vector<Problem> problems_of(const std::string& text) {
  try {
    parse_probe_samples(text, "s.json");
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(ProbeSamples, ThereAndBack) {
  const std::string text = probe_samples_json(small()).dump(1);
  const ProbeSamples read = parse_probe_samples(text, "s.json");
  EXPECT_EQ(probe_samples_json(read).dump(1), text);
  EXPECT_EQ(label_of(read.samples.front()), "graph copies=0 nodes=64, repeat 2");
  EXPECT_EQ(read.samples.back().status, SampleStatus::kOutOfMemory);
  EXPECT_TRUE(read.samples.back().disturbed);
}

TEST(ProbeSamples, EditedAndTruncatedFilesAreRefused) {
  const std::string text = probe_samples_json(small()).dump(1);
  std::string edited = text;
  edited.replace(edited.find("655360.5"), 8, "655361.5");
  const auto found = problems_of(edited);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().place, "checksum");
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 2}) {
    EXPECT_FALSE(problems_of(text.substr(0, length)).empty()) << length;
  }
  // By hand, and said so by leaving out the checksum.
  Json by_hand = Json::parse(edited);
  by_hand.erase("checksum");
  EXPECT_TRUE(problems_of(by_hand.dump()).empty());
}

TEST(ProbeSamples, SaysAllThatIsWrong) {
  Json json = Json::parse(probe_samples_json(small()).dump());
  json.erase("checksum");
  json["schema"] = "oomcast.calibration/1";
  json["origin"] = "guessed";
  json["date"] = "yesterday";
  json["card"]["total_bytes"] = -1;
  json["samples"][0]["settings"]["No Such"] = 1;
  json["samples"][0]["values"]["bytes"] = "many";
  json["samples"][1]["status"] = "fine";
  json["samples"][1]["valuse"] = Json::object();
  std::set<std::string> places;
  for (const Problem& problem : problems_of(json.dump())) {
    places.insert(problem.place);
  }
  for (const char* place :
       {"schema", "origin", "date", "card.total_bytes", "samples[0].settings.No Such",
        "samples[0].values.bytes", "samples[1].status", "samples[1].valuse"}) {
    EXPECT_TRUE(places.contains(place)) << place;
  }
}

}  // namespace
}  // namespace oomcast::fit
