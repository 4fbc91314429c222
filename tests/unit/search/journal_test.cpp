#include "sim/search/journal.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace oomcast::search {
namespace {

namespace fs = std::filesystem;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest()
      : out_((fs::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name())
                 .string()) {
    fs::remove_all(out_ + ".partial");
  }
  ~JournalTest() override { fs::remove_all(out_ + ".partial"); }

  [[nodiscard]] std::string path() const { return out_ + ".partial/journal"; }
  [[nodiscard]] std::string text() const {
    std::ifstream in(path());
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }
  void write(const std::string& content) const { std::ofstream(path()) << content; }

  static PointResult result(std::int64_t tokens) {
    PointResult point;
    point.kv_tokens = tokens;
    point.message = "a \"message\"\twith\nbreaks";
    point.ranks = {{0, 4, Bytes{7}, Bytes{8}}};
    point.serving = ServingFigures{};
    point.serving->goodput = 1.0 / 3;
    return point;
  }

  std::string out_;
};

TEST_F(JournalTest, WhatWasFoundComesBack) {
  {
    Journal journal(out_, 1, 10);
    journal.append(3, result(30));
    journal.append(5, result(50));
  }
  const Journal again(out_, 1, 10);
  ASSERT_EQ(again.found().size(), 2U);
  EXPECT_EQ(again.found().at(5), result(50));
}

// Cut anywhere, as kill -9 or a full disk may leave it: what is whole counts, and once.
TEST_F(JournalTest, CutAnywhereItGoesOn) {
  {
    Journal journal(out_, 1, 10);
    journal.append(3, result(30));
    journal.append(5, result(50));
  }
  const std::string whole = text();
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    write(whole.substr(0, length));
    {
      Journal journal(out_, 1, 10);
      for (const auto& [point, found] : journal.found()) {
        EXPECT_EQ(found, result(static_cast<std::int64_t>(point) * 10));
      }
      journal.append(7, result(70));
    }
    const Journal again(out_, 1, 10);
    ASSERT_EQ(again.found().count(7), 1U) << "cut at " << length;
    EXPECT_EQ(again.found().at(7), result(70));
  }
}

TEST_F(JournalTest, DamagedLinesAreDoneAgain) {
  {
    Journal journal(out_, 1, 10);
    journal.append(3, result(30));
  }
  std::string damaged = text();
  damaged[damaged.size() - 30] ^= 1;
  write(damaged);
  EXPECT_TRUE(Journal(out_, 1, 10).found().empty());
}

TEST_F(JournalTest, AnotherSweepsJournalIsRefused) {
  { const Journal journal(out_, 1, 10); }
  EXPECT_THROW(Journal(out_, 2, 10), ConfigError);
  EXPECT_THROW(Journal(out_, 1, 11), ConfigError);
}

TEST_F(JournalTest, TwoProcessesDoNotShareOne) {
  const Journal journal(out_, 1, 10);
  EXPECT_THROW(Journal(out_, 1, 10), ConfigError);
}

}  // namespace
}  // namespace oomcast::search
