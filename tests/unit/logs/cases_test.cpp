// Quotes of public logs and issues, as tests/data/logs/quotes.jsonl carries them: every figure that
// a quote states comes back.
#include <fstream>

#include "sim/core/json.hpp"
#include "tests/unit/logs/log_test.hpp"

namespace oomcast::logs {
namespace {

// The figure of a key such as "weights_gib".
std::optional<Figure> figure_of(const std::string& key) {
  for (std::size_t i = 0; i < kFigureCount; ++i) {
    if (key_of(static_cast<Figure>(i)) == key) {
      return static_cast<Figure>(i);
    }
  }
  return std::nullopt;
}

double in_unit(const Reading& reading) {
  return measure_of(reading.figure) == Measure::kBytes ? to_gib(reading.bytes()) : reading.value;
}

void expect_figures(const Json& quote) {
  const EngineRun run = only_run(quote["quote"].get<std::string>());
  for (const auto& [key, expected] : quote["figures"].items()) {
    const auto figure = figure_of(key);
    ASSERT_TRUE(figure) << key;
    const Reading* reading = run.nearest(*figure, 0);
    ASSERT_NE(reading, nullptr) << key << " of " << quote["quote"];
    EXPECT_NEAR(in_unit(*reading), expected.get<double>(), 1e-6) << key << " of " << quote["quote"];
  }
  if (quote.contains("kind")) {
    ASSERT_NE(run.cause(), nullptr) << quote["quote"];
    EXPECT_EQ(name_of(run.cause()->kind), quote["kind"].get<std::string>()) << quote["quote"];
  }
}

TEST(Quotes, EveryStatedFigureComesBack) {
  std::ifstream file(OOMCAST_TEST_DATA "/logs/quotes.jsonl");
  ASSERT_TRUE(file);
  std::string line;
  int quotes = 0;
  while (std::getline(file, line)) {
    expect_figures(Json::parse(line));
    ++quotes;
  }
  EXPECT_GE(quotes, 40);
}

}  // namespace
}  // namespace oomcast::logs
