// Recorded scenarios of SGLang: decisions field by field, and fast-forward against single steps.
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "tests/golden/recording.hpp"
#include "tests/golden/sglang_scenario.hpp"

namespace oomcast::golden {
namespace {

struct Opened {
  explicit Opened(const std::string& path) : in(open_recording(path)) {
    std::string line;
    next_line(*in, path, line);
    scenario = read_sglang_scenario(parse_json(line, path), path);
  }
  std::unique_ptr<std::istream> in;
  SglangScenario scenario;
};

void expect_all_match(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    Opened opened(path);
    EXPECT_EQ(check_sglang_recording(*opened.in, path, opened.scenario), "") << path;
  }
}

void expect_fast_forward_agrees(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const Opened opened(path);
    EXPECT_EQ(check_sglang_fast_forward(opened.scenario), "") << path;
  }
}

std::vector<std::string> carried() {
  const std::string folder = OOMCAST_TEST_DATA "/sglang_scheduler";
  std::vector<std::string> files = recordings(folder + "/0.5.23");
  for (std::string& path : recordings(folder + "/0.5.8")) {
    files.push_back(std::move(path));
  }
  return files;
}

TEST(CarriedSglangRecordings, AllFieldsAndDigestsMatch) {
  ASSERT_GE(carried().size(), 70U);
  expect_all_match(carried());
}
TEST(CarriedSglangRecordings, FastForwardLeavesTheSameState) {
  expect_fast_forward_agrees(carried());
}

class SharedSglangRecordings : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    files_ = recordings(std::string(OOMCAST_SHARED_DIR "/goldens/sglang_scheduler") + GetParam());
    if (files_.empty()) {
      GTEST_SKIP() << "the full set of recordings is not here";
    }
  }
  std::vector<std::string> files_;
};

TEST_P(SharedSglangRecordings, AllFieldsAndDigestsMatch) { expect_all_match(files_); }
TEST_P(SharedSglangRecordings, FastForwardLeavesTheSameState) {
  expect_fast_forward_agrees(files_);
}

INSTANTIATE_TEST_SUITE_P(Versions, SharedSglangRecordings, testing::Values("", "/v0.5.8"),
                         [](const auto& parameter) {
                           return std::string(parameter.param).empty() ? "v0_5_23" : "v0_5_8";
                         });

// The comparison itself must see a difference: one changed number in a recording.
TEST(SglangChecker, NamesStepAndFieldOfADifference) {
  const std::string path = carried().front();
  Opened opened(path);
  std::string all;
  std::string line;
  while (next_line(*opened.in, path, line)) {
    all += line + "\n";
  }
  const std::string field = "\"avail\":";
  const std::size_t digit = all.find(field) + field.size();
  all[digit] = all[digit] == '9' ? '8' : '9';
  std::istringstream changed(all);
  const std::string found = check_sglang_recording(changed, path, opened.scenario);
  EXPECT_NE(found.find("step 0 field avail: expected"), std::string::npos) << found;
}

TEST(SglangChecker, RefusesARecordingThatIsCutOff) {
  const std::string path = carried().front();
  Opened opened(path);
  std::string line;
  next_line(*opened.in, path, line);
  std::istringstream cut(line + "\n");
  EXPECT_THROW(check_sglang_recording(cut, path, opened.scenario), ConfigError);
  std::istringstream junk("{\"step\":0,\n");
  EXPECT_THROW(check_sglang_recording(junk, path, opened.scenario), ConfigError);
}

TEST(SglangChecker, NamesAllProblemsOfAHeader) {
  const Json header =
      parse_json(R"({"engine":"sglang","version":"0.5.23","config":{"pool_tokens":"x",)"
                 R"("schedule_policy":"lmp"},"requests":[{"id":0,"prompt":[[1]]}]})",
                 "header");
  try {
    read_sglang_scenario(header, "header");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 3U) << error.what();
  }
}

}  // namespace
}  // namespace oomcast::golden
