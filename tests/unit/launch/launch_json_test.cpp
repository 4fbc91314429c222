#include <gtest/gtest.h>

#include "sim/launch/launch.hpp"

namespace oomcast::launch {
namespace {

TEST(LaunchJson, RoundTrip) {
  const Launch launch = parse_launch(
      "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve a/b -tp 2 --max-model-len 8K -cc.level=3 --port 1 "
      "--cudagraph-capture-sizes 1 2",
      {.engine_version = "0.19.0.post1"});
  const Json json = Json::parse(to_json(launch).dump());
  const Launch again = launch_from_json(json, "launch.json");
  EXPECT_EQ(to_json(again).dump(), to_json(launch).dump());
  EXPECT_EQ(again.version, launch.version);
  EXPECT_EQ(again.integer("max-model-len"), 8192);
  EXPECT_TRUE(again.given("tensor-parallel-size"));
}

TEST(LaunchJson, OtherEnginesRoundTripToo) {
  const Launch launch = parse_launch("trtllm-serve m", {.engine_version = "1.2.1"});
  const Launch again = launch_from_json(Json::parse(to_json(launch).dump()), "launch.json");
  EXPECT_EQ(again.engine, Engine::kTrtllm);
  EXPECT_EQ(again.model, "m");
}

TEST(LaunchJson, EveryProblemIsNamed) {
  Json json = Json::parse(to_json(parse_launch("vllm serve m")).dump());
  json["flags"]["max-num-seqs"]["value"] = "many";
  json["flags"]["max-model-len"]["value"] = 0;
  json["flags"]["tensor-parallel-sise"] = Json{{"value", 1}, {"origin", "given"}};
  json["flags"]["block-size"]["origin"] = "elsewhere";
  try {
    launch_from_json(json, "launch.json");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 4U) << error.what();
  }
  for (const char* text : {"[]", "{}", "{\"schema\":\"oomcast.launch/1\",\"engine\":\"x\"}"}) {
    EXPECT_THROW(launch_from_json(Json::parse(text), "launch.json"), ConfigError) << text;
  }
}

TEST(LaunchText, AFileOrTheLineItself) {
  EXPECT_EQ(launch_text("vllm serve m"), "vllm serve m");
  EXPECT_THROW(launch_text("@/no/such/file"), ConfigError);
}

}  // namespace
}  // namespace oomcast::launch
