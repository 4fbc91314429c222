#include "sim/core/atomic_output.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast {
namespace {

namespace fs = std::filesystem;

class AtomicOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            fmt::format("oomcast-test-{}-{}", ::getpid(),
                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  [[nodiscard]] std::string at(const char* name) const { return (root_ / name).string(); }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(root_), fs::directory_iterator()));
  }

  fs::path root_;
};

TEST_F(AtomicOutput, FileIsWholeOrAbsent) {
  write_file_atomically(at("a.txt"), "hello");
  EXPECT_EQ(read_text_file(at("a.txt")), "hello");
  write_file_atomically(at("a.txt"), "again");
  EXPECT_EQ(read_text_file(at("a.txt")), "again");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(AtomicOutput, FullDiskLeavesNothing) {
  if (!fs::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full here";
  }
  CheckedFile full("/dev/full");
  full.append("x");
  EXPECT_THROW(full.close(), ConfigError);
}

TEST_F(AtomicOutput, FolderAppearsOnCommitOnly) {
  {
    const OutputFolder abandoned(at("run"));
    abandoned.write("a.csv", "1\n");
    EXPECT_FALSE(fs::exists(at("run")));
  }
  EXPECT_EQ(entries(), 0U);
  OutputFolder folder(at("run/"));
  folder.write("a.csv", "1\n");
  folder.commit();
  EXPECT_EQ(read_text_file(at("run/a.csv")), "1\n");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(AtomicOutput, ExistingResultsAreNeverOverwritten) {
  OutputFolder first(at("run"));
  first.write("a.csv", "1\n");
  first.commit();
  EXPECT_THROW(OutputFolder{at("run")}, ConfigError);
  write_file_atomically(at("plain"), "x");
  EXPECT_THROW(OutputFolder{at("plain")}, ConfigError);
  EXPECT_THROW(OutputFolder{"/proc/none/run"}, ConfigError);
}

}  // namespace
}  // namespace oomcast
