#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "models/catalog.hpp"
#include "models/config_reader.hpp"
#include "tests/golden/sglang_startup_check.hpp"

namespace oomcast::golden {
namespace {

const std::string kFolder = OOMCAST_TEST_DATA "/sglang_startup/";

models::ModelSpec model_of(const std::string& config_file) {
  if (std::filesystem::exists(kFolder + config_file)) {
    return models::read_model_config(kFolder + config_file);
  }
  std::string name = config_file.substr(0, config_file.rfind(".json"));  // owner__name
  return models::catalog_model(name.replace(name.find("__"), 2, "/"));
}

// How many runs of the file were compared.
int compare_startups(const std::string& file) {
  std::ifstream in(kFolder + file);
  int runs = 0;
  for (std::string line; std::getline(in, line); ++runs) {
    const Json recorded = parse_json(line, file);
    const auto config_file = recorded.at("config_file").get<std::string>();
    for (const std::string& off : check_sglang_startup(recorded, model_of(config_file))) {
      ADD_FAILURE() << config_file << " " << recorded.at("flags").dump() << ": " << off;
    }
  }
  return runs;
}

TEST(RecordedSglangStartups, SettingsPoolsPhasesAndGraphsMatch) {
  EXPECT_GE(compare_startups("startups.jsonl"), 41);
}

TEST(RecordedSglangStartups, OtherFamiliesMatchOnEightLayers) {
  EXPECT_GE(compare_startups("cut_models.jsonl"), 17);
}

TEST(RecordedSglangStartups, WholeModelsMatch) {
  EXPECT_GE(compare_startups("whole_models.jsonl"), 13);
}

TEST(RecordedSglangSteps, PeaksOfServingMatch) {
  std::ifstream in(kFolder + "steps.jsonl");
  ASSERT_TRUE(in);
  int steps = 0;
  for (std::string line; std::getline(in, line);) {
    const Json recorded = parse_json(line, "steps.jsonl");
    const auto config_file = recorded.at("config_file").get<std::string>();
    const PeakPoints points = check_sglang_steps(recorded, model_of(config_file));
    for (const std::string& off : points.off) {
      ADD_FAILURE() << config_file << " " << recorded.at("flags").dump() << ": " << off;
    }
    steps += points.steps;
  }
  EXPECT_GE(steps, 150);
}

}  // namespace
}  // namespace oomcast::golden
