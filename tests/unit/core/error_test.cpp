#include "sim/core/error.hpp"

#include <gtest/gtest.h>

namespace oomcast {
namespace {

TEST(Problem, NamesSourcePlaceValueAndWhatIsValid) {
  EXPECT_EQ(to_string(Problem{"a.json", "hidden_size", "-4", "a positive integer", "try 4096"}),
            "a.json: hidden_size: found `-4`, expected a positive integer (try 4096)");
  EXPECT_EQ(to_string(Problem{"a.csv", "", "", "a header", ""}), "a.csv: expected a header");
}

TEST(Problem, HostileValuesStayOneBoundedLine) {
  const std::string junk(100'000, '\n');
  const std::string line = to_string(Problem{"t", "p", junk, "text", ""});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_LT(line.size(), 400U);
}

TEST(Problem, TerminalsAreNotCommanded) {
  // Hints quote what programs and files say; lines of a table stay lines.
  const std::string line = to_string(Problem{"t", "p", "", "a\x1b[2J", "one\n\x1b]0;x\x07"});
  EXPECT_EQ(line, "t: p: expected a\\x1b[2J (one\n\\x1b]0;x\\x07)");
}

TEST(Problems, AllAreReportedAtOnce) {
  Problems problems;
  problems.raise_if_any();
  problems.add({"x", "a", "1", "2", ""});
  problems.add({"x", "b", "3", "4", ""});
  try {
    problems.raise_if_any();
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 2U);
    EXPECT_STREQ(error.what(), "x: a: found `1`, expected 2\nx: b: found `3`, expected 4");
  }
}

TEST(NearestName, OffersSlipsAndNothingFarOff) {
  const std::vector<std::string> names = {"H100-80GB", "H200", "A100-40GB"};
  EXPECT_EQ(nearest_name("h100-80gb", names), "H100-80GB");
  EXPECT_EQ(nearest_name("H10-80GB", names), "H100-80GB");
  EXPECT_EQ(nearest_name("zzzzzzzz", names), "");
  EXPECT_EQ(nearest_name(std::string(100'000, 'H'), names), "");
}

TEST(CheckDeathTest, AbortsWithExitCodeOne) {
  const int answer = 41;
  EXPECT_EXIT(OOMCAST_CHECK(answer == 42, "answer is {}", answer), ::testing::ExitedWithCode(1),
              "answer == 42 does not hold: answer is 41");
}

}  // namespace
}  // namespace oomcast
