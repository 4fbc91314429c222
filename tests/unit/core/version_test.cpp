#include "sim/core/version.hpp"

#include <gtest/gtest.h>

namespace oomcast {
namespace {

TEST(Version, ReadsTagsAndCompares) {
  EXPECT_EQ(to_string(*parse_version("v0.19.0")), "0.19.0");
  EXPECT_EQ(to_string(*parse_version("0.5.8.post1")), "0.5.8");
  EXPECT_EQ(to_string(*parse_version("1.2")), "1.2.0");
  EXPECT_LT(*parse_version("0.9.2"), *parse_version("0.10.0"));
  EXPECT_EQ(parse_version("latest"), std::nullopt);
  EXPECT_EQ(parse_version(""), std::nullopt);
  EXPECT_EQ(parse_version("7"), std::nullopt);
  EXPECT_EQ(parse_version("99999999999.1"), std::nullopt);
}

}  // namespace
}  // namespace oomcast
