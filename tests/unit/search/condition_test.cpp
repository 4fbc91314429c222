#include "sim/search/condition.hpp"

#include <gtest/gtest.h>

#include <map>

namespace oomcast::search {
namespace {

bool holds(const std::string& text) {
  const std::map<std::string, double> values = {{"tp", 4}, {"pp", 2}, {"max_num_seqs", 256}};
  return Condition(text).holds([&](const std::string& name) { return values.at(name); });
}

TEST(Condition, Arithmetic) {
  EXPECT_TRUE(holds("tp*pp<=8"));
  EXPECT_FALSE(holds("tp*pp<8"));
  EXPECT_TRUE(holds("tp + pp * 2 == 8"));
  EXPECT_TRUE(holds("(tp+pp)*2 == 12"));
  EXPECT_TRUE(holds("max_num_seqs % (tp*pp) == 0"));
  EXPECT_TRUE(holds("tp/pp >= 2"));
  EXPECT_TRUE(holds("tp-pp-1 != 3"));
  EXPECT_EQ(Condition("tp*tp<=pp").names(), (std::vector<std::string>{"tp", "pp"}));
}

TEST(Condition, NonsenseIsRefusedWithItsPlace) {
  for (const char* text : {"", "tp", "tp<=", "<=8", "tp<=8)", "(tp<=8", "tp**2<3", "tp<=8 pp"}) {
    EXPECT_THROW(Condition{text}, ConfigError) << text;
  }
  EXPECT_THROW(Condition{std::string(10'000, '(')}, ConfigError);
}

}  // namespace
}  // namespace oomcast::search
