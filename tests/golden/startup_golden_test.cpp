#include <gtest/gtest.h>

#include <fstream>

#include "models/catalog.hpp"
#include "tests/golden/startup_check.hpp"

namespace oomcast::golden {
namespace {

// "owner__name.json" -> "owner/name"
std::string model_name(std::string file) {
  file.erase(file.rfind(".json"));
  return file.replace(file.find("__"), 2, "/");
}

template <typename Visit>
int for_each_run(Visit visit) {
  std::ifstream in(OOMCAST_TEST_DATA "/vllm_startup/startups.jsonl");
  EXPECT_TRUE(in);
  std::string line;
  int runs = 0;
  for (; std::getline(in, line); ++runs) {
    const Json recorded = parse_json(line, "startups.jsonl");
    visit(recorded,
          models::catalog_model(model_name(recorded.at("config_file").get<std::string>())));
  }
  return runs;
}

std::string name_of(const Json& recorded) {
  return recorded.at("config_file").get<std::string>() + " " +
         recorded.at("version").get<std::string>() + " " +
         recorded.at("setting").get<std::string>();
}

TEST(RecordedStartups, BudgetsAndPhasesMatch) {
  const int runs = for_each_run([](const Json& recorded, const models::ModelSpec& model) {
    for (const std::string& off : check_startup(recorded, model)) {
      ADD_FAILURE() << name_of(recorded) << ": " << off;
    }
  });
  EXPECT_GE(runs, 50);
}

TEST(RecordedStartups, StepsGraphPoolsAndLiveTensorsMatch) {
  PeakPoints sum;
  for_each_run([&](const Json& recorded, const models::ModelSpec& model) {
    const PeakPoints points = check_peaks(recorded, model);
    for (const std::string& off : points.off) {
      ADD_FAILURE() << name_of(recorded) << ": " << off;
    }
    sum.steps += points.steps;
    sum.graphs += points.graphs;
    sum.tensors += points.tensors;
  });
  EXPECT_GE(sum.steps, 250);
  EXPECT_GE(sum.graphs, 10);
  EXPECT_GE(sum.tensors, 250);
}

}  // namespace
}  // namespace oomcast::golden
