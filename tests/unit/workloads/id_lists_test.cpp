#include "workloads/id_lists.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "sim/core/random.hpp"

namespace oomcast::workloads {
namespace {

std::vector<std::int64_t> ids_of(const IdLists& lists, std::size_t list) {
  std::vector<std::int64_t> ids;
  for (std::size_t run = lists[list].begin; run < lists[list].end; ++run) {
    for (std::int64_t i = 0; i < lists.run(run).count; ++i) {
      ids.push_back(lists.run(run).first + i);
    }
  }
  return ids;
}

TEST(IdLists, AreTakenOutOfTheLineInOrder) {
  IdLists lists;
  std::string rest;
  ASSERT_TRUE(take_out_lists(R"({"a":1,"ids" : [ 7,8, 10 ],"b":{"ids":[]},"ids":[7,8,9]})", "ids",
                             rest, lists));
  EXPECT_EQ(rest, R"({"a":1,"ids" : [],"b":{"ids":[]},"ids":[]})");
  ASSERT_EQ(lists.size(), 3U);
  EXPECT_EQ(ids_of(lists, 0), (std::vector<std::int64_t>{7, 8, 10}));
  EXPECT_EQ(lists[0].end - lists[0].begin, 2U);
  EXPECT_EQ(lists[1].ids, 0);
  EXPECT_EQ(ids_of(lists, 2), (std::vector<std::int64_t>{7, 8, 9}));
}

TEST(IdLists, OtherMembersAndTextsStay) {
  IdLists lists;
  std::string rest;
  const std::string line = R"({"ids":"none","x":"\"ids\":[1]","y\"ids":[2],"more ids":[3]})";
  ASSERT_TRUE(take_out_lists(line, "ids", rest, lists));
  EXPECT_EQ(rest, line);
  EXPECT_EQ(lists.size(), 0U);
}

TEST(IdLists, WhatIsNoPlainListOfIdsIsLeftToTheParser) {
  for (const char* list : {"1.5", "-1", "01", "1e3", "[1]", "\"1\"", "1,", ",1", "1 2", "1",
                           "1234567890123456789", "null"}) {
    IdLists lists;
    std::string rest;
    const std::string closed = std::string(list) == "1" ? "" : "]}";
    EXPECT_FALSE(take_out_lists(fmt::format("{{\"ids\":[{}{}", list, closed), "ids", rest, lists))
        << list;
  }
  IdLists lists;
  std::string rest;
  EXPECT_FALSE(take_out_lists(R"({"\u0069ds":[1]})", "ids", rest, lists));
}

// Lists that repeat a part of the one before, cut anywhere, also inside of a number.
TEST(IdLists, RepeatedFrontsAreReadAsOften) {
  RandomStream random = random_stream(1, "id lists");
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::vector<std::int64_t>> expected;
    std::string line = "{";
    for (int list = 0; list < 6; ++list) {
      std::vector<std::int64_t> ids;
      if (list > 0 && !expected.back().empty()) {
        ids = expected.back();
        ids.resize(random() % (ids.size() + 1));
      }
      for (std::uint64_t more = random() % 4; more > 0; --more) {
        ids.push_back(!ids.empty() && random() % 2 == 0
                          ? ids.back() + 1
                          : static_cast<std::int64_t>(random() % 200));
      }
      line += fmt::format("\"ids\":[{}],", fmt::join(ids, ","));
      expected.push_back(ids);
    }
    IdLists lists;
    std::string rest;
    ASSERT_TRUE(take_out_lists(line, "ids", rest, lists)) << line;
    for (std::size_t list = 0; list < expected.size(); ++list) {
      ASSERT_EQ(ids_of(lists, list), expected[list]) << line;
      ASSERT_EQ(lists[list].ids, std::ssize(expected[list]));
    }
  }
}

}  // namespace
}  // namespace oomcast::workloads
