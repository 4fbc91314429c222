#include "sim/kv/block_hash.hpp"

#include <gtest/gtest.h>

namespace oomcast::kv {
namespace {

HashChain chain(const std::vector<ContentSegment>& segments, std::int64_t block,
                std::int64_t lookahead, std::int64_t known) {
  HashChain made;
  made.set_sizes(block, lookahead);
  for (const ContentSegment& segment : segments) {
    made.append(segment);
  }
  made.extend(known);
  return made;
}

TEST(HashChain, OnlyFullBlocksHaveHashes) {
  EXPECT_EQ(chain({{7, Tokens{100}}}, 16, 0, 15).blocks(), 0);
  EXPECT_EQ(chain({{7, Tokens{100}}}, 16, 0, 16).blocks(), 1);
  EXPECT_EQ(chain({{7, Tokens{100}}}, 16, 0, 47).blocks(), 2);
}

TEST(HashChain, LookaheadNeedsTheTokensBehindTheBlock) {
  EXPECT_EQ(chain({{7, Tokens{100}}}, 16, 1, 16).blocks(), 0);
  EXPECT_EQ(chain({{7, Tokens{100}}}, 16, 1, 17).blocks(), 1);
}

TEST(HashChain, LookaheadTellsBlocksApartByWhatFollows) {
  // The same 16 tokens, then token 16 of segment 7 or token 0 of segment 8.
  const HashChain same = chain({{7, Tokens{40}}}, 16, 1, 17);
  const HashChain other = chain({{7, Tokens{16}}, {8, Tokens{10}}}, 16, 1, 17);
  EXPECT_NE(same.hash(0), other.hash(0));
  EXPECT_EQ(chain({{7, Tokens{40}}}, 16, 0, 16).hash(0),
            chain({{7, Tokens{16}}, {8, Tokens{10}}}, 16, 0, 16).hash(0));
}

TEST(HashChain, EqualContentHashesEquallyHoweverItWasCut) {
  // 20 tokens of 7, then 12 of 9: the second block holds 4 of the one and 12 of the other.
  const HashChain left = chain({{7, Tokens{20}}, {9, Tokens{50}}}, 16, 0, 32);
  const HashChain right = chain({{7, Tokens{20}}, {9, Tokens{12}}, {5, Tokens{1}}}, 16, 0, 32);
  EXPECT_EQ(left.hash(0), right.hash(0));
  EXPECT_EQ(left.hash(1), right.hash(1));
}

TEST(HashChain, AHashStandsForTheWholePrefix) {
  const HashChain left = chain({{1, Tokens{16}}, {9, Tokens{16}}}, 16, 0, 32);
  const HashChain right = chain({{2, Tokens{16}}, {9, Tokens{16}}}, 16, 0, 32);
  EXPECT_NE(left.hash(1), right.hash(1));
}

TEST(HashChain, OffsetsAndLengthsOfRunsMatter) {
  const HashChain a = chain({{7, Tokens{3}}, {7, Tokens{13}}}, 16, 0, 16);
  const HashChain b = chain({{7, Tokens{4}}, {7, Tokens{12}}}, 16, 0, 16);
  const HashChain whole = chain({{7, Tokens{16}}}, 16, 0, 16);
  EXPECT_NE(a.hash(0), b.hash(0));
  EXPECT_NE(a.hash(0), whole.hash(0));
}

TEST(HashChain, APieceThatGoesOnIsOneWithThePieceBefore) {
  const HashChain whole = chain({{7, Tokens{48}, 100}}, 16, 0, 48);
  const HashChain pieces = chain({{7, Tokens{20}, 100}, {7, Tokens{28}, 120}}, 16, 0, 48);
  const HashChain elsewhere = chain({{7, Tokens{48}, 101}}, 16, 0, 48);
  const HashChain gap = chain({{7, Tokens{20}, 100}, {7, Tokens{28}, 121}}, 16, 0, 48);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(whole.hash(i), pieces.hash(i));
    EXPECT_NE(whole.hash(i), elsewhere.hash(i));
  }
  EXPECT_EQ(whole.hash(0), gap.hash(0));
  EXPECT_NE(whole.hash(1), gap.hash(1));
}

TEST(HashChain, ExtendingInPiecesGivesTheSameHashes) {
  HashChain pieces = chain({{7, Tokens{50}}, {8, Tokens{50}}}, 16, 0, 0);
  for (std::int64_t known = 0; known <= 96; ++known) {
    pieces.extend(known);
  }
  const HashChain whole = chain({{7, Tokens{50}}, {8, Tokens{50}}}, 16, 0, 96);
  ASSERT_EQ(pieces.blocks(), 6);
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(pieces.hash(i), whole.hash(i));
  }
}

TEST(BlockKey, DiffersByGroup) {
  EXPECT_NE(block_key(42, 0), block_key(42, 1));
  EXPECT_EQ(block_key(42, 1), block_key(42, 1));
}

}  // namespace
}  // namespace oomcast::kv
