#include "models/data.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace oomcast::models {
namespace {

TEST(EmbeddedData, ReadsWhatTheSourceFolderHolds) {
  const auto names = embedded_names();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    EXPECT_EQ(embedded_file(name), read_text_file(OOMCAST_SOURCE_DIR "/models/" + name)) << name;
    EXPECT_NO_THROW(embedded_json(name)) << name;
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(EmbeddedData, UnknownNameGivesTheNearest) {
  const std::string known = embedded_names().front();
  try {
    embedded_file(known + "x");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(known), std::string::npos) << error.what();
  }
}

TEST(EmbeddedData, DataFolderWinsFileByFile) {
  const std::string known = embedded_names().front();
  const std::string other = embedded_names().back();
  ASSERT_NE(known, other);
  const auto folder = std::filesystem::path(testing::TempDir()) / "oomcast_data_folder";
  std::filesystem::create_directories((folder / known).parent_path());
  std::filesystem::create_directories(folder / "extra");
  std::ofstream(folder / known) << "{\"mine\": 1}";
  std::ofstream(folder / "extra/new.json") << "[]";
  std::ofstream(folder / "extra/ignored.txt") << "no";
  const std::string other_text(embedded_file(other));
  set_data_folder(folder.string());
  EXPECT_EQ(embedded_json(known).at("mine"), 1);
  EXPECT_EQ(embedded_file(other), other_text);
  EXPECT_EQ(embedded_names("extra/"), std::vector<std::string>{"extra/new.json"});
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  set_data_folder(folder.string());  // an empty folder changes nothing
  EXPECT_THROW(embedded_file("extra/new.json"), ConfigError);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(set_data_folder(folder.string()), ConfigError);
}

}  // namespace
}  // namespace oomcast::models
