#include "sim/core/json.hpp"

#include <gtest/gtest.h>

namespace oomcast {
namespace {

std::string message_of(const std::string& text) {
  try {
    parse_json(text, "f.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ParseJson, ComplaintsNameThePlace) {
  EXPECT_NE(message_of("{\"a\": 1,\n  b}").find("f.json: line 2 column 3"), std::string::npos);
  EXPECT_NE(message_of("").find("expected valid JSON"), std::string::npos);
  EXPECT_NE(message_of("{\"a\": \"\xff\xfe\"}"), "");
}

TEST(ParseJson, DeepNestingIsRefusedNotCrashed) {
  const std::string deep = std::string(10'000, '[') + std::string(10'000, ']');
  EXPECT_NE(message_of(deep).find("nested at most"), std::string::npos);
  const std::string allowed = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
  EXPECT_EQ(message_of(allowed), "");
}

TEST(ParseJson, BracketsInStringsAreText) {
  const std::string text = "[\"" + std::string(10'000, '[') + "\\\"[[\"]";
  EXPECT_EQ(message_of(text), "");
}

TEST(JsonView, GathersEveryWrongValue) {
  const Json json = parse_json(
      R"({"n": 32.0, "half": 0.5, "text": "x", "big": 1e300, "none": null, "sub": {"k": true}})",
      "f.json");
  Problems problems;
  const JsonView view(json, "f.json", "", problems);
  EXPECT_EQ(view.integer("n", 1, 64), 32);
  EXPECT_EQ(view.integer("none", 1, 64), std::nullopt);
  EXPECT_EQ(view.integer("absent", 1, 64), std::nullopt);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(view.integer("half", 0, 9), std::nullopt);
  EXPECT_EQ(view.integer("big", 0, 9), std::nullopt);
  EXPECT_EQ(view.boolean("text"), std::nullopt);
  EXPECT_EQ(view.object("sub")->boolean("k"), true);
  EXPECT_EQ(view.object("sub")->text("k"), std::nullopt);
  ASSERT_EQ(problems.found().size(), 4U);
  EXPECT_EQ(problems.found()[3].place, "sub.k");
}

}  // namespace
}  // namespace oomcast
