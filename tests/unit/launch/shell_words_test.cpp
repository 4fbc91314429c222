#include "sim/launch/shell_words.hpp"

#include <gtest/gtest.h>

namespace oomcast::launch {
namespace {

std::vector<std::string> words(std::string_view text) {
  Problems problems;
  std::vector<std::string> out;
  for (const SimpleCommand& command : read_shell(text, problems)) {
    for (const Assignment& assignment : command.assignments) {
      out.push_back("[" + assignment.name + "=" + assignment.value.text + "]");
    }
    for (const Word& word : command.words) {
      out.push_back(word.unknown.empty() ? word.text : "?" + word.unknown);
    }
    out.emplace_back(";");
  }
  EXPECT_TRUE(problems.empty()) << (problems.empty() ? "" : to_string(problems.found()[0]));
  return out;
}

using Words = std::vector<std::string>;

TEST(ShellWords, QuotesAndEscapes) {
  EXPECT_EQ(words(R"(a 'b c' "d e"f g\ h '' i"j\"k$" $'l')"),
            (Words{"a", "b c", "d ef", "g h", "", "ij\"k$", "l", ";"}));
}

TEST(ShellWords, ContinuedLinesWithEitherLineEndAndStrayBlanks) {
  EXPECT_EQ(words("a \\\n  b \\\r\n  c \\  \n d\\\ne"), (Words{"a", "b", "c", "de", ";"}));
}

TEST(ShellWords, ALineThatStartsWithAnOptionContinuesTheOneBefore) {
  EXPECT_EQ(words("serve m\n  --tp 2\nnext"), (Words{"serve", "m", "--tp", "2", ";", "next", ";"}));
}

TEST(ShellWords, CommentsPromptsAndRedirectionsVanish) {
  EXPECT_EQ(words("# first\n$ a b # rest\n"), (Words{"a", "b", ";"}));
  EXPECT_EQ(words("a > log 2>&1 b &> all & "), (Words{"a", "b", ";"}));
  EXPECT_EQ(words("a#b"), (Words{"a#b", ";"}));
}

TEST(ShellWords, ChainsAndPipesSeparateCommands) {
  EXPECT_EQ(words("a && b; c | tee x || d"),
            (Words{"a", ";", "b", ";", "c", ";", "tee", "x", ";", "d", ";"}));
}

TEST(ShellWords, AssignmentsStandInFront) {
  EXPECT_EQ(words("A=1 B='2 3' run C=4"), (Words{"[A=1]", "[B=2 3]", "run", "C=4", ";"}));
  EXPECT_EQ(words("'A'=1"), (Words{"A=1", ";"}));
}

TEST(ShellWords, VariablesSetInTheTextAreExpanded) {
  EXPECT_EQ(words("M=x; export N='y z'\nrun $M \"$N\" $N ${M} ${Q:-d}"),
            (Words{"[M=x]", ";", "[N=y z]", ";", "run", "x", "y z", "y", "z", "x", "d", ";"}));
  // A prefix assignment holds for the command, not for its own words.
  EXPECT_EQ(words("M=x run $M"), (Words{"[M=x]", "run", "?$M", ";"}));
}

TEST(ShellWords, WhatOnlyAShellKnowsIsMarked) {
  EXPECT_EQ(words("a $HOME/m `pwd` $(nproc) \"${X##*/}\" $1"),
            (Words{"a", "?$HOME", "?`pwd`", "?$(nproc)", "?${X##*/}", "?$1", ";"}));
}

TEST(ShellWords, UnclosedQuotesAndUnreadableShellNameTheLine) {
  for (const char* text : {"a\nb 'c", "a\nb \"c", "a\nb (c)", "a\ncat <<EOF\nEOF", "a\n${b"}) {
    Problems problems;
    read_shell(text, problems);
    ASSERT_EQ(problems.found().size(), 1U) << text;
    EXPECT_EQ(problems.found()[0].place, "line 2") << text;
  }
}

TEST(ShellWords, ExpansionIsBounded) {
  // Doubles twenty-four times: 16 Mi words if it were followed.
  std::string text = "A='x x'\n";
  for (int i = 0; i < 24; ++i) {
    text += "A=\"$A $A\"\n";
  }
  Problems problems;
  EXPECT_THROW(read_shell(text + "run $A", problems), ConfigError);
}

}  // namespace
}  // namespace oomcast::launch
