#include "sim/kernels/preset.hpp"

#include <gtest/gtest.h>

#include <string>

#include "models/data.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast::kernels {
namespace {

TEST(Presets, RowsByVersionAndGpu) {
  const models::GpuSpec b300 = models::find_gpu("B300");
  const models::GpuSpec b200 = models::find_gpu("B200");
  PresetKey key{"kernels/all_reduce.json", "vllm.symmetric", {{0, 19, 0}}, &b300, 2};
  EXPECT_EQ(preset_bytes(key), 4 * kMiB);  // the row for 10.3 stands behind the one for 10
  key.gpu = &b200;
  EXPECT_EQ(preset_bytes(key), 8 * kMiB);
  key.version = {{0, 10, 0}};
  EXPECT_EQ(preset_bytes(key), std::nullopt);
  key.version = {{0, 1, 0}};  // older than every row: the first
  EXPECT_EQ(preset_bytes(key), std::nullopt);
  key = {"kernels/all_reduce.json", "vllm.symmetric", {{0, 19, 0}}, nullptr, 2};
  EXPECT_EQ(preset_bytes(key), std::nullopt);
}

TEST(Presets, WrongQuestionsAreNamed) {
  EXPECT_THROW(preset_bytes({"kernels/attention.json", "vllm.nothing", {}}), ConfigError);
  EXPECT_THROW(preset_bytes({"kernels/nothing.json", "vllm.flashinfer", {}}), ConfigError);
  EXPECT_THROW(preset_count({"kernels/attention.json", "vllm.flashinfer", {}}), ConfigError);
}

TEST(Presets, EveryRowHasASource) {
  for (const std::string& name : models::embedded_names("kernels/")) {
    const Json& file = models::embedded_json(name);
    const Json sizes = file.value("sizes", Json::object());
    for (const auto& [key, entry] : sizes.items()) {
      for (const Json& row : entry.at("rows")) {
        EXPECT_TRUE(row.contains("source") && row.contains("since")) << name << " " << key;
      }
    }
  }
}

}  // namespace
}  // namespace oomcast::kernels
