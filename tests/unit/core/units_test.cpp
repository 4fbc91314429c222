#include "sim/core/units.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

TEST(Units, ArithmeticOnPaper) {
  // 32 layers x 2 x 8 heads x 128 x 2 B = 131,072 B a token; 16 tokens a block = 2 MiB.
  const Bytes per_token = Bytes{2} * (32 * 2 * 8 * 128);
  EXPECT_EQ(per_token, Bytes{131072});
  EXPECT_EQ(per_token * 16, kMiB * 2);
  EXPECT_EQ(kGiB / per_token, 8192);
  EXPECT_EQ(div_ceil(Tokens{33}, Tokens{16}), 3);
  EXPECT_EQ(align_up(Bytes{513}, Bytes{512}), Bytes{1024});
  EXPECT_EQ(align_up(Bytes{512}, Bytes{512}), Bytes{512});
  EXPECT_EQ(SimTime{} + kSecond - SimTime{}, kSecond);
}

TEST(Units, OverflowIsAnErrorNotAWrap) {
  const Bytes most{INT64_MAX};
  EXPECT_EQ(most + Bytes{0}, most);
  EXPECT_THROW(most + Bytes{1}, ArithmeticOverflow);
  EXPECT_THROW(Bytes{INT64_MIN} - Bytes{1}, ArithmeticOverflow);
  EXPECT_THROW(most * 2, ArithmeticOverflow);
  EXPECT_THROW(align_up(most, Bytes{512}), ArithmeticOverflow);
  EXPECT_THROW(Bytes{UINT64_MAX}, ArithmeticOverflow);
}

TEST(UnitsText, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("80GiB"), kGiB * 80);
  EXPECT_EQ(parse_bytes("1.5g"), kMiB * 1536);
  EXPECT_EQ(parse_bytes("512 MB"), Bytes{512'000'000});
  EXPECT_EQ(parse_bytes("4096"), Bytes{4096});
  EXPECT_EQ(parse_bytes("9223372036854775807"), Bytes{INT64_MAX});
  for (const char* bad : {"", "GiB", "-1GiB", "1e3", "nan", "inf", "1.5 zorks",
                          "9223372036854775808", "99999999999TiB", "1..5g", "0x10"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

TEST(UnitsText, CountsFollowHumanReadableIntegers) {
  EXPECT_EQ(parse_count("8192"), 8192);
  EXPECT_EQ(parse_count("8k"), 8000);
  EXPECT_EQ(parse_count("8K"), 8192);
  EXPECT_EQ(parse_count("2.5k"), 2500);
  EXPECT_EQ(parse_count("1M"), 1048576);
  for (const char* bad : {"", "k", "-5", "1.5", "0.0001k", "8kk", "1e9", "99999999999999999999"}) {
    EXPECT_EQ(parse_count(bad), std::nullopt) << bad;
  }
}

TEST(UnitsText, PrintsAndReadsBack) {
  EXPECT_EQ(format_bytes(kGiB * 80), "80.00 GiB");
  EXPECT_EQ(format_bytes(kMiB * 512), "512.0 MiB");
  EXPECT_EQ(format_bytes(Bytes{96}), "96 B");
  EXPECT_EQ(parse_bytes(format_bytes(kGiB * 80)), kGiB * 80);
  EXPECT_EQ(format_count(476016), "476,016");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_seconds(Nanos{12'000'000'500}), "12.000000500");
  EXPECT_EQ(format_span(Nanos{192'000'000'000}), "3m 12s");
}

}  // namespace
}  // namespace oomcast
