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

TEST(RecordedStartups, DenseModelsMatch) {
  std::ifstream in(OOMCAST_TEST_DATA "/vllm_startup/dense.jsonl");
  ASSERT_TRUE(in);
  std::string line;
  int runs = 0;
  while (std::getline(in, line)) {
    const Json recorded = parse_json(line, "dense.jsonl");
    const std::string setting = recorded.at("setting").get<std::string>();
    // These were recorded after other runs of their model, whose compiled embedding piece they
    // found: their peak lacks it, a first start's does not.
    if (setting == "pp2" || setting == "pp3" || setting == "pp4") {
      continue;
    }
    ++runs;
    for (const std::string& off : check_startup(
             recorded,
             models::catalog_model(model_name(recorded.at("config_file").get<std::string>())))) {
      ADD_FAILURE() << recorded.at("config_file") << " " << recorded.at("version") << " " << setting
                    << ": " << off;
    }
  }
  EXPECT_GE(runs, 35);
}

}  // namespace
}  // namespace oomcast::golden
