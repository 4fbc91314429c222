#include "sim/search/axis.hpp"

#include <gtest/gtest.h>

namespace oomcast::search {
namespace {

using Values = std::vector<std::vector<std::string>>;

Axis read(const std::string& text) {
  Problems problems;
  Axis axis = parse_axis(text, problems);
  EXPECT_TRUE(problems.empty()) << text;
  return axis;
}

std::string refusal(const std::string& text) {
  Problems problems;
  parse_axis(text, problems);
  return problems.empty() ? "" : to_string(problems.found().front());
}

TEST(Axis, ValuesAndRanges) {
  EXPECT_EQ(read("kv-cache-dtype=auto,fp8").values, (Values{{"auto"}, {"fp8"}}));
  EXPECT_EQ(read("--max_num_seqs=64..512*2").names, std::vector<std::string>{"max-num-seqs"});
  EXPECT_EQ(read("seqs=64..512*2").values, (Values{{"64"}, {"128"}, {"256"}, {"512"}}));
  EXPECT_EQ(read("seqs=1,16..32+8").values, (Values{{"1"}, {"16"}, {"24"}, {"32"}}));
}

// In binary floating point 0.80 + 8 x 0.02 is 0.9600000000000001 and would miss the end.
TEST(Axis, DecimalStepsAreExact) {
  const Axis axis = read("gpu-memory-utilization=0.80..0.96+0.02");
  EXPECT_EQ(axis.size(), 9U);
  EXPECT_EQ(axis.values.front().front(), "0.80");
  EXPECT_EQ(axis.values.back().front(), "0.96");
}

TEST(Axis, FlagsThatGoTogether) {
  const Axis axis = read("tp/pp=8/1,4/2");
  EXPECT_EQ(axis.names, (std::vector<std::string>{"tp", "pp"}));
  EXPECT_EQ(axis.values, (Values{{"8", "1"}, {"4", "2"}}));
  EXPECT_NE(refusal("tp/pp=8/1,4").find("2 values"), std::string::npos);
}

TEST(Axis, JsonValuesKeepTheirCommas) {
  EXPECT_EQ(read(R"(compilation-config={"a":[1,2]},{"a":[3]})").values,
            (Values{{R"({"a":[1,2]})"}, {R"({"a":[3]})"}}));
}

TEST(Axis, NonsenseIsRefused) {
  EXPECT_NE(refusal("max-num-seqs"), "");
  EXPECT_NE(refusal("=1"), "");
  EXPECT_NE(refusal("x=1..4").find("FROM..TO+STEP"), std::string::npos);
  EXPECT_NE(refusal("x=4..1+1"), "");
  EXPECT_NE(refusal("x=1..4+0"), "");
  EXPECT_NE(refusal("x=1..4*1"), "");
  EXPECT_NE(refusal("x=1..9*1.1").find("changes the first"), std::string::npos);
  EXPECT_NE(refusal("x=a..b+1"), "");
  EXPECT_NE(refusal("x=1..1000000000000+1").find("1000000000000"), std::string::npos);
  EXPECT_NE(refusal("x=0..9223372036854775807+0.0001"), "");
}

}  // namespace
}  // namespace oomcast::search
