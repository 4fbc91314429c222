#include <gtest/gtest.h>

#include "sim/launch/flag_table.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::launch {
namespace {

Launch vllm(const std::string& flags, const std::string& version = "0.19.0") {
  return parse_launch("vllm serve org/model " + flags, {.engine_version = version});
}

// All problems of a line that must be refused.
std::string refused(const std::string& flags, const std::string& version = "0.19.0") {
  try {
    vllm(flags, version);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << flags << " was taken";
  return {};
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Flags, SpellingsOfOneFlag) {
  for (const char* flags :
       {"--tensor-parallel-size 2", "--tensor-parallel-size=2", "--tensor_parallel_size 2", "-tp 2",
        "-tp=2", "--tensor-parallel 2", "-tp 8 -tp 2"}) {
    const Launch launch = vllm(flags);
    EXPECT_EQ(launch.integer("tensor-parallel-size"), 2) << flags;
    EXPECT_TRUE(launch.given("tensor-parallel-size")) << flags;
    EXPECT_EQ(launch.model, "org/model") << flags;
  }
  EXPECT_EQ(vllm("-qfp8").text("quantization"), "fp8");
  EXPECT_EQ(vllm("-q fp8").text("quantization"), "fp8");
}

TEST(Flags, RepeatsAndAbbreviationsAreNoted) {
  const Launch launch = vllm("-tp 8 -tp 2 --max-num-se 4");
  ASSERT_EQ(launch.notes.size(), 2U);
  EXPECT_TRUE(holds(launch.notes[0], "more than once"));
  EXPECT_TRUE(holds(launch.notes[1], "`--max-num-se` was read as `--max-num-seqs`"));
}

TEST(Flags, BooleansAndTheirNegation) {
  EXPECT_EQ(vllm("").boolean("enable-prefix-caching"), std::nullopt);
  EXPECT_EQ(vllm("--enable-prefix-caching").boolean("enable-prefix-caching"), true);
  EXPECT_EQ(vllm("--no-enable-prefix-caching").boolean("enable-prefix-caching"), false);
  const Launch launch = vllm("--enable-chunked-prefill=False");
  EXPECT_EQ(launch.boolean("enable-chunked-prefill"), false);
  EXPECT_EQ(launch.warnings.size(), 1U);
}

TEST(Flags, HumanReadableCounts) {
  EXPECT_EQ(vllm("--max-model-len 8k").integer("max-model-len"), 8000);
  EXPECT_EQ(vllm("--max-model-len 8K").integer("max-model-len"), 8192);
  EXPECT_EQ(vllm("--max-model-len 25.6k").integer("max-model-len"), 25600);
  EXPECT_EQ(vllm("--max-model-len -1").integer("max-model-len"), -1);
  EXPECT_EQ(vllm("--max-model-len auto").integer("max-model-len"), -1);
  EXPECT_EQ(vllm("--kv-cache-memory=4G").integer("kv-cache-memory-bytes"), 4294967296);
  EXPECT_TRUE(holds(refused("--max-num-seqs 1k"), "a whole number"));
}

TEST(Flags, DefaultsFollowTheVersion) {
  EXPECT_EQ(vllm("", "0.19.1").number("gpu-memory-utilization"), 0.9);
  EXPECT_EQ(vllm("", "0.20.0").number("gpu-memory-utilization"), 0.92);
  EXPECT_FALSE(vllm("").given("gpu-memory-utilization"));
  EXPECT_EQ(vllm("", "0.13.0").boolean("async-scheduling"), false);
  EXPECT_EQ(vllm("", "0.14.0").boolean("async-scheduling"), std::nullopt);
  EXPECT_EQ(vllm("", "0.18.0").boolean("scheduler-reserve-full-isl"), std::nullopt);
  EXPECT_EQ(vllm("", "0.19.0").boolean("scheduler-reserve-full-isl"), true);
}

TEST(Flags, AFlagOfAnotherVersionNamesTheVersionsThatHaveIt) {
  EXPECT_EQ(vllm("--max-num-active-seqs 8", "0.31.0").integer("max-num-active-seqs"), 8);
  EXPECT_TRUE(holds(refused("--max-num-active-seqs 8", "0.30.0"), "from 0.31.0 on"));
  EXPECT_TRUE(holds(refused("--cuda-graph-sizes 8", "0.19.0"), "before 0.14.0"));
  EXPECT_TRUE(holds(refused("--device-memory-utilization 0.5", "0.30.0"),
                    "`--device-memory-utilization` exists from 0.31.0 on; the full name is "
                    "`--gpu-memory-utilization`"));
  EXPECT_TRUE(holds(refused("-ep", "0.13.0"), "from 0.14.0 on"));
  EXPECT_TRUE(holds(refused("--log-level INFO", "0.30.0"), "from 0.31.0 on"));
  EXPECT_EQ(vllm("--log-level INFO --kda-decode-backend triton --watermark-config '{\"key\": 1}'",
                 "0.33.0")
                .text("kda-decode-backend"),
            "triton");
  EXPECT_TRUE(holds(refused("-dcp 2", "0.10.0"),
                    "`-dcp` exists from 0.10.2 on; the full name is "
                    "`--decode-context-parallel-size`"));
  EXPECT_TRUE(holds(refused("--kv-cache-dtype nvfp4", "0.19.0"), "`nvfp4` exists from 0.20.0 on"));
}

TEST(Flags, OldNamesOfSglangAreTaken) {
  const auto sglang = [](const std::string& flags, const std::string& version) {
    return parse_launch("sglang serve --model-path org/model " + flags,
                        {.engine_version = version});
  };
  EXPECT_EQ(sglang("--max-micro-batch-size 8", "0.5.3").integer("max-micro-batch-size"), 8);
  EXPECT_THROW(sglang("--max-micro-batch-size 8", "0.5.5"), ConfigError);
  EXPECT_EQ(sglang("--disaggregation-decode-tp 4 --impl auto", "0.4.9").text("impl"), "auto");
}

TEST(Flags, UnknownFlagsNameTheNearest) {
  EXPECT_TRUE(holds(refused("--gpu-memory-utilisation 0.9"), "`--gpu-memory-utilization`"));
  EXPECT_TRUE(holds(refused("--max-nun-seqs 4"), "`--max-num-seqs`"));
  EXPECT_TRUE(holds(refused("--enable 4"), "starts only one flag"));
}

TEST(Flags, AllProblemsAtOnce) {
  try {
    vllm("--max-num-seqs 0 --gpu-memory-utilization 1.5 --dtype bf16 --nonsense --block-size x");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 5U) << error.what();
  }
}

TEST(Flags, BoundsAreTight) {
  EXPECT_EQ(vllm("--gpu-memory-utilization 1").number("gpu-memory-utilization"), 1.0);
  EXPECT_TRUE(holds(refused("--gpu-memory-utilization 0"), "above 0 up to 1"));
  EXPECT_EQ(vllm("--watermark 0", "0.24.0").number("watermark"), 0.0);
  EXPECT_TRUE(holds(refused("--watermark 1", "0.24.0"), "from 0 below 1"));
  EXPECT_EQ(vllm("--max-num-seqs 1").integer("max-num-seqs"), 1);
}

TEST(Flags, JsonAndDottedKeysJoin) {
  const Launch launch = vllm(
      "--compilation-config '{\"cudagraph_mode\":\"FULL\",\"pass_config\":{\"a\":1}}' "
      "-cc.pass_config.fuse-norm-quant=true -cc.max_cudagraph_capture_size 512 "
      "--compilation-config.custom_ops+ all,none");
  EXPECT_EQ(*launch.json("compilation-config", "cudagraph_mode"), "FULL");
  EXPECT_EQ(*launch.json("compilation-config", "pass_config.a"), 1);
  EXPECT_EQ(*launch.json("compilation-config", "pass_config.fuse_norm_quant"), true);
  EXPECT_EQ(*launch.json("compilation-config", "max_cudagraph_capture_size"), 512);
  EXPECT_EQ(launch.json("compilation-config", "custom_ops")->size(), 2U);
  EXPECT_EQ(launch.json("compilation-config", "absent.key"), nullptr);
  EXPECT_EQ(launch.json("kv-transfer-config"), nullptr);
}

TEST(Flags, OptimizationLevelByVersion) {
  for (const char* flags : {"-O3", "-O 3", "-O=3"}) {
    EXPECT_EQ(vllm(flags, "0.19.0").integer("optimization-level"), 3) << flags;
    EXPECT_EQ(*vllm(flags, "0.11.0").json("compilation-config", "level"), 3) << flags;
  }
  EXPECT_EQ(*vllm("-O.cudagraph_mode=NONE", "0.19.0").json("compilation-config", "cudagraph_mode"),
            "NONE");
  EXPECT_EQ(*vllm("-O '{\"level\":1}'", "0.11.0").json("compilation-config", "level"), 1);
}

TEST(Flags, ListsTakeTheWordsThatFollow) {
  const Launch launch = parse_launch(
      "vllm serve --cudagraph-capture-sizes 1 2 4 8 --served-model-name a b -- org/model",
      {.engine_version = "0.19.0"});
  EXPECT_EQ(launch.integers("cudagraph-capture-sizes"), (std::vector<std::int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(launch.model, "org/model");
}

TEST(Flags, BadJsonIsExplained) {
  const std::string problem = refused("--compilation-config {\"cudagraph_mode\":\"FULL\"}");
  EXPECT_TRUE(holds(problem, "--compilation-config"));
  EXPECT_TRUE(holds(problem, "single quotes"));
  EXPECT_TRUE(holds(refused("--hf-overrides '[1]'"), "a JSON object"));
  EXPECT_TRUE(holds(refused("--max-num-seqs.x 4"), "plain value"));
}

TEST(Flags, PairsAndNone) {
  EXPECT_EQ(*vllm("--limit-mm-per-prompt image=2,video=0").json("limit-mm-per-prompt", "image"), 2);
  EXPECT_EQ(vllm("--quantization None").text("quantization"), std::nullopt);
}

TEST(Flags, FlagsWithoutEffectArePassedOverByName) {
  const Launch launch =
      vllm("--port 8000 --trust-remote-code --api-key \"$KEY\" --served-model-name m --host ::");
  ASSERT_EQ(launch.notes.size(), 1U);
  EXPECT_TRUE(holds(launch.notes[0], "--port, --trust-remote-code, --api-key"));
}

TEST(Flags, UnknownValuesMatterOnlyWhereTheFlagDoes) {
  EXPECT_TRUE(holds(refused("--max-model-len $LEN"), "$LEN"));
  EXPECT_TRUE(holds(refused("$EXTRA"), "$EXTRA"));
  EXPECT_THROW(parse_launch("vllm serve $MODEL"), ConfigError);
  EXPECT_EQ(parse_launch("MODEL=a/b; vllm serve $MODEL").model, "a/b");
}

TEST(Flags, EnvironmentStandsForFlags) {
  const Launch launch = parse_launch(
      "HF_TOKEN=$T VLLM_ATTENTION_BACKEND=FLASHINFER CUDA_VISIBLE_DEVICES=0,1 vllm "
      "serve m",
      {.engine_version = "0.12.0"});
  EXPECT_EQ(launch.text("attention-backend"), "FLASHINFER");
  EXPECT_EQ(launch.flags.at("attention-backend").origin, Origin::kEnvironment);
  EXPECT_EQ(launch.flags.at("attention-backend").written, "VLLM_ATTENTION_BACKEND");
  EXPECT_EQ(launch.variable("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(launch.variable("HF_TOKEN"), std::nullopt);
  const Launch newer =
      parse_launch("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m", {.engine_version = "0.29.1"});
  EXPECT_EQ(newer.text("attention-backend"), std::nullopt);
  EXPECT_EQ(newer.warnings.size(), 1U);
  EXPECT_THROW(parse_launch("VLLM_USE_V1=$X vllm serve m"), ConfigError);
}

TEST(Flags, VersionFromOptionTagOrNewest) {
  const std::string docker = "docker run vllm/vllm-openai:v0.18.1 --model m";
  EXPECT_EQ(parse_launch(docker).version, (Version{{0, 18, 1}}));
  EXPECT_EQ(parse_launch(docker).version_source, VersionSource::kImageTag);
  EXPECT_EQ(parse_launch(docker, {.engine_version = "0.20.0"}).version, (Version{{0, 20, 0}}));
  const Version newest = known_versions(Engine::kVllm).versions.back();
  EXPECT_EQ(parse_launch("vllm serve m").version, newest);
  EXPECT_EQ(parse_launch("docker run nvcr.io/nvidia/vllm:25.09-py3 vllm serve m").version, newest);
  EXPECT_EQ(parse_launch("vllm serve m", {.engine_version = "0.99.0"}).warnings.size(), 1U);
  EXPECT_EQ(parse_launch("vllm serve m", {.engine_version = "0.8.5"}).warnings.size(), 1U);
  EXPECT_THROW(parse_launch("vllm serve m", {.engine_version = "0.7.3"}), ConfigError);
  EXPECT_THROW(parse_launch("vllm serve m", {.engine_version = "latest"}), ConfigError);
}

TEST(Flags, ModelByPositionOrFlag) {
  EXPECT_EQ(parse_launch("vllm serve --model a/b").model, "a/b");
  EXPECT_EQ(parse_launch("python3 -m vllm.entrypoints.openai.api_server --model a/b").model, "a/b");
  EXPECT_THROW(parse_launch("python3 -m vllm.entrypoints.openai.api_server a/b"), ConfigError);
  EXPECT_THROW(parse_launch("vllm serve"), ConfigError);
  EXPECT_THROW(parse_launch("vllm serve a b"), ConfigError);
}

TEST(Flags, AnotherEngineThanAskedForIsRefused) {
  EXPECT_THROW(parse_launch("trtllm-serve m", {.engine = Engine::kVllm}), ConfigError);
  const Launch launch = parse_launch("python -m sglang.launch_server --model-path=q/w --tp 2",
                                     {.engine_version = "0.5.8"});
  EXPECT_EQ(launch.engine, Engine::kSglang);
  EXPECT_EQ(launch.model, "q/w");
  EXPECT_EQ(launch.version, (Version{{0, 5, 8}}));
}

TEST(Flags, SetFlagChangesOne) {
  Launch launch = vllm("-cc '{\"a\":1}'");
  set_flag(launch, "max-num-seqs", "64");
  EXPECT_EQ(launch.integer("max-num-seqs"), 64);
  set_flag(launch, "compilation-config.b", "2");
  EXPECT_EQ(*launch.json("compilation-config", "a"), 1);
  EXPECT_EQ(*launch.json("compilation-config", "b"), 2);
  set_flag(launch, "enable-prefix-caching", "false");
  EXPECT_EQ(launch.boolean("enable-prefix-caching"), false);
  EXPECT_THROW(set_flag(launch, "max-num-seqs", "0"), ConfigError);
  EXPECT_THROW(set_flag(launch, "port", "80"), ConfigError);
  EXPECT_THROW(set_flag(launch, "max-nun-seqs", "8"), ConfigError);
  EXPECT_THROW(set_flag(launch, "model", "b"), ConfigError);
}

TEST(Flags, EveryFlagOfTheTableHasOneLineOfText) {
  for (const FlagSpec& flag : flag_table(Engine::kVllm)->flags()) {
    if (flag.effect != Effect::kNone) {
      EXPECT_FALSE(flag.text.empty()) << flag.name;
    }
    for (const Version& version : known_versions(Engine::kVllm).versions) {
      const Json value = flag.default_in(version);
      EXPECT_TRUE(value.is_null() || flag.versions.contains(version) ||
                  flag.effect != Effect::kNone)
          << flag.name;
    }
  }
}

TEST(Flags, AValueAsksForMoreThanOff) {
  const Version version{0, 30, 0};
  const FlagSpec& nodes = *flag_table(Engine::kVllm)->find("nnodes");
  EXPECT_FALSE(nodes.modelled);
  EXPECT_FALSE(nodes.asks(1, version));  // its default
  EXPECT_TRUE(nodes.asks(2, version));
  const FlagSpec& runner = *flag_table(Engine::kVllm)->find("runner");
  EXPECT_EQ(runner.refused, "pooling and draft runners");
  EXPECT_FALSE(runner.asks("generate", version));
  EXPECT_TRUE(runner.asks("pooling", version));
  const FlagSpec& quantised = *flag_table(Engine::kSglang)->find("modelopt-quant");
  EXPECT_TRUE(quantised.asks("fp8", version));
  EXPECT_FALSE(quantised.asks(nullptr, version));
}

// The keys of an options file, as the flags that they stand for.
TEST(Flags, ANameMayHaveDots) {
  Launch launch = parse_launch(
      "trtllm-serve m --kv_cache_config.host_cache_size 1000 --kv-cache-config.max-tokens=64",
      {.engine_version = "1.2.1"});
  EXPECT_EQ(launch.integer("host-cache-size"), 1000);
  EXPECT_EQ(launch.integer("kv-cache-max-tokens"), 64);
  EXPECT_EQ(canonical_flag(launch, "kv_cache_config.host_cache_size"), "host-cache-size");
  set_flag(launch, "kv_cache_config.host_cache_size", "2000");
  EXPECT_EQ(launch.integer("host-cache-size"), 2000);
}

}  // namespace
}  // namespace oomcast::launch
