#include "sim/kv/token_runs.hpp"

#include <gtest/gtest.h>

namespace oomcast::kv {
namespace {

TokenRuns content(std::initializer_list<TokenRun> runs) {
  TokenRuns made;
  for (const TokenRun& run : runs) {
    made.append(run);
  }
  return made;
}

TokenSpan span_of(const TokenRuns& runs, std::int64_t from, std::int64_t count) {
  TokenSpan span;
  runs.copy(runs.place(from), count, span);
  return span;
}

TEST(TokenRuns, ContinuedRunsAreOne) {
  const TokenRuns whole = content({{7, 0, 30}, {8, 0, 5}});
  const TokenRuns parts = content({{7, 0, 10}, {7, 10, 20}, {9, 0, 0}, {8, 0, 5}});
  EXPECT_EQ(parts.length(), 35);
  for (const std::int64_t from : {0, 3, 28}) {
    EXPECT_EQ(whole.hash(whole.place(from), 7), parts.hash(parts.place(from), 7));
  }
  // The same tokens at another offset of their segment are other tokens.
  EXPECT_NE(whole.hash(whole.place(0), 7), whole.hash(whole.place(1), 7));
}

TEST(TokenRuns, CommonEndsAtTheFirstOtherToken) {
  const TokenRuns left = content({{1, 0, 10}, {2, 0, 10}});
  const TokenRuns right = content({{1, 0, 10}, {2, 0, 4}, {3, 0, 6}});
  const TokenSpan span = span_of(right, 0, 20);
  EXPECT_EQ(left.common(span, left.place(0), 20), 14);
  EXPECT_EQ(left.common(span, left.place(0), 12), 12);
  EXPECT_EQ(left.common(span_of(right, 5, 15), left.place(5), 15), 9);
  EXPECT_EQ(left.common(span, left.place(1), 20), 0);  // token 0 is not token 1
}

TEST(TokenRuns, CutFrontKeepsAllTokens) {
  const TokenRuns runs = content({{1, 5, 10}, {2, 0, 10}});
  TokenSpan rest = span_of(runs, 2, 16);  // (1, 7..15), (2, 0..8)
  const TokenSpan front = cut_front(rest, 8);
  EXPECT_EQ(front, (TokenSpan{{1, 7, 8}}));
  EXPECT_EQ(rest, (TokenSpan{{2, 0, 8}}));
  const TokenSpan half = cut_front(rest, 3);
  EXPECT_EQ(half, (TokenSpan{{2, 0, 3}}));
  EXPECT_EQ(rest, (TokenSpan{{2, 3, 5}}));
  EXPECT_EQ(hash_front(rest, 4), runs.hash(runs.place(13), 4));
}

}  // namespace
}  // namespace oomcast::kv
