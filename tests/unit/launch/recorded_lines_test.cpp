// Every launch line of the measured cases is read: vLLM's with its flags, the others with engine
// and model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/launch/launch.hpp"

namespace oomcast::launch {
namespace {

void read_all(const std::string& engine) {
  const std::string path = std::string(OOMCAST_SHARED_DIR) + "/cases/" + engine + ".jsonl";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there";
  }
  std::ifstream in(path);
  std::string text;
  int lines = 0;
  while (std::getline(in, text)) {
    const Json record = Json::parse(text);
    std::string line;
    for (const auto& [name, value] : record.at("env").items()) {
      line += name + "='" + value.get<std::string>() + "' ";
    }
    line += record.at("launch").get<std::string>();
    const Launch launch =
        parse_launch(line, {.engine = parse_engine(engine),
                            .engine_version = record.at("engine_version").get<std::string>()});
    EXPECT_FALSE(launch.model.empty()) << line;
    const Launch again = launch_from_json(Json::parse(to_json(launch).dump()), "case");
    EXPECT_TRUE(to_json(again) == to_json(launch)) << line;
    ++lines;
  }
  EXPECT_GT(lines, 0);
}

TEST(RecordedLines, Vllm) { read_all("vllm"); }
TEST(RecordedLines, Sglang) { read_all("sglang"); }
TEST(RecordedLines, Trtllm) { read_all("trtllm"); }

}  // namespace
}  // namespace oomcast::launch
