// Recorded scenarios: decisions field by field, and fast-forward against single steps.
#include <gtest/gtest.h>

#include <vector>

#include "tests/golden/recording.hpp"
#include "tests/golden/vllm_scenario.hpp"

namespace oomcast::golden {
namespace {

struct Opened {
  explicit Opened(const std::string& path) : in(open_recording(path)) {
    std::string line;
    next_line(*in, path, line);
    scenario = read_scenario(parse_json(line, path), path);
  }
  std::unique_ptr<std::istream> in;
  Scenario scenario;
};

void expect_all_match(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    Opened opened(path);
    EXPECT_EQ(check_recording(*opened.in, path, opened.scenario), "") << path;
  }
}

void expect_fast_forward_agrees(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const Opened opened(path);
    EXPECT_EQ(check_fast_forward(opened.scenario), "") << path;
  }
}

constexpr const char* kCarried = OOMCAST_TEST_DATA "/vllm_scheduler";
constexpr const char* kShared = OOMCAST_SHARED_DIR "/goldens/vllm_scheduler";

class SharedRecordings : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    files_ = recordings(std::string(kShared) + "/" + GetParam());
    if (files_.empty()) {
      GTEST_SKIP() << "the full set of recordings is not here";
    }
  }
  std::vector<std::string> files_;
};

std::vector<std::string> carried() {
  std::vector<std::string> files = recordings(std::string(kCarried) + "/0.33.0");
  for (const char* others : {"/0.19.0", "/0.33.0-pd"}) {
    for (std::string& path : recordings(std::string(kCarried) + others)) {
      files.push_back(std::move(path));
    }
  }
  return files;
}

TEST(CarriedRecordings, AllFieldsAndDigestsMatch) {
  ASSERT_GE(carried().size(), 130U);
  expect_all_match(carried());
}
TEST(CarriedRecordings, FastForwardLeavesTheSameState) { expect_fast_forward_agrees(carried()); }

TEST_P(SharedRecordings, AllFieldsAndDigestsMatch) { expect_all_match(files_); }
TEST_P(SharedRecordings, FastForwardLeavesTheSameState) { expect_fast_forward_agrees(files_); }

INSTANTIATE_TEST_SUITE_P(Versions, SharedRecordings,
                         testing::Values("0.33.0", "0.19.0", "0.33.0-pd"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char letter) { return letter == '.' || letter == '-'; }, '_');
                           return "v" + name;
                         });

// The comparison itself must see a difference: one changed number in a recording.
TEST(Checker, NamesStepAndFieldOfADifference) {
  const std::string path = carried().front();
  Opened opened(path);
  std::string all;
  std::string line;
  while (next_line(*opened.in, path, line)) {
    all += line + "\n";
  }
  const std::string field = "\"free_blocks\":";
  const std::size_t digit = all.find(field) + field.size();
  all[digit] = all[digit] == '9' ? '8' : '9';
  std::istringstream changed(all);
  const std::string found = check_recording(changed, path, opened.scenario);
  EXPECT_NE(found.find("step 0 field free_blocks: expected"), std::string::npos) << found;
}

TEST(Checker, RefusesARecordingThatIsCutOff) {
  const std::string path = carried().front();
  Opened opened(path);
  std::string line;
  next_line(*opened.in, path, line);
  std::istringstream cut(line + "\n");
  EXPECT_THROW(check_recording(cut, path, opened.scenario), ConfigError);
  std::istringstream junk("{\"i\":0,\n");
  EXPECT_THROW(check_recording(junk, path, opened.scenario), ConfigError);
}

}  // namespace
}  // namespace oomcast::golden
