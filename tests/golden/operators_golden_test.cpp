#include <gtest/gtest.h>

#include <fstream>

#include "tests/golden/operators_check.hpp"

namespace oomcast::golden {
namespace {

TEST(RecordedOperators, SizesAndOrderAreEqual) {
  std::ifstream in(OOMCAST_TEST_DATA "/torch_ops/ops.jsonl");
  ASSERT_TRUE(in);
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const models::GpuSpec gpu = recorded_gpu(parse_json(line, "ops.jsonl"));
  int lines = 0;
  int exact = 0;
  while (std::getline(in, line)) {
    const Json recorded = parse_json(line, "ops.jsonl");
    const OperatorResult result = check_operator(recorded, gpu);
    ++lines;
    exact += result.exact_left_and_peak ? 1 : 0;
    for (const std::string& off : result.off) {
      ADD_FAILURE() << recorded.at("op") << " " << recorded.at("rows") << " x "
                    << recorded.at("cols") << ": " << off;
    }
  }
  EXPECT_EQ(lines, 188);
  EXPECT_GE(exact, 179);
}

TEST(RecordedOperators, ContradictionsAreNamed) {
  const models::GpuSpec gpu = recorded_gpu(Json::object());
  Json recorded{{"op", "clone()"}, {"rows", 2},    {"cols", 256},
                {"bytes", {2048}}, {"left", 2048}, {"peak", 2048}};
  EXPECT_TRUE(check_operator(recorded, gpu).off.empty());
  recorded["bytes"] = {2049};
  EXPECT_EQ(check_operator(recorded, gpu).off.front(), "bytes expected 2049 got 2048");
  recorded["bytes"] = {2048};
  recorded["peak"] = 4'000'000;
  EXPECT_EQ(check_operator(recorded, gpu).off.size(), 1U);
  recorded["op"] = "clone";
  EXPECT_THROW(check_operator(recorded, gpu), ConfigError);
}

}  // namespace
}  // namespace oomcast::golden
