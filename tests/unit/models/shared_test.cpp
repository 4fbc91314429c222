// The whole of the shared material, where it is there: every config, every recorded start.
#include <gtest/gtest.h>

#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "models/config_reader.hpp"
#include "models/kv.hpp"
#include "models/weights.hpp"
#include "tests/unit/models/loaded_bytes.hpp"

namespace oomcast::models {
namespace {

namespace fs = std::filesystem;

// What must at least be covered, so that a lost builder shows.
constexpr int kRunsCovered = 90;

TEST(Shared, EveryConfigReads) {
  const std::string folder = std::string(OOMCAST_SHARED_DIR) + "/model_configs";
  if (!fs::exists(folder)) {
    GTEST_SKIP() << "no shared material";
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".json" || path.find("hf_quant_config") != std::string::npos) {
      continue;
    }
    const ModelSpec spec = read_model_config(path);
    EXPECT_FALSE(kv_layers(spec, {}).empty()) << path;
    EXPECT_GT(parameter_count(spec), 1'000'000) << path;
    EXPECT_GT(weights_on_rank(spec, {.towers = true, .draft = true}).total(), Bytes{0}) << path;
  }
}

struct Recorded {
  std::int64_t counted = 0;
  ShardPlan plan;
  Version version;
  std::string config;
};

std::optional<Recorded> recorded(const Json& run) {
  const Json& report = run.at("engine_report");
  if (!report.is_object() || !report.contains("weights_bytes") ||
      report.at("weights_bytes").is_null()) {
    return std::nullopt;
  }
  Recorded out;
  out.counted = report.at("weights_bytes").get<std::int64_t>();
  const Json& launch = run.at("launch");
  out.plan.tp = launch.value("tensor_parallel_size", 1);
  out.plan.pp = launch.value("pipeline_parallel_size", 1);
  out.plan.dtype = parse_dtype(launch.value("dtype", ""));
  if (run.at("env").is_object() && run.at("env").contains("STANDIN_RANK")) {
    out.plan.pp_rank = std::stoi(run.at("env").at("STANDIN_RANK").get<std::string>());
  }
  out.version = parse_version(run.at("version").get<std::string>()).value();
  out.config = run.at("config_file").get<std::string>();
  // The recordings of multimodal models have every modality's limit at 0: no towers.
  out.plan.unused_kv = out.version < Version{{0, 33, 0}};
  out.plan.step_tokens = launch.value("max_num_batched_tokens", 8192);
  const bool newer = out.version >= Version{{0, 33, 0}};
  // gpt-oss' experts on Hopper, as the engine decides.
  out.plan.fp4_experts = {.width_multiple = 64,
                          .hidden_multiple = 1,
                          .fp32_bias = true,
                          .swizzle = Fp4Experts::Swizzle{.value_rows = newer ? 16 : 64,
                                                         .value_columns = newer ? 64 : 128,
                                                         .scale_rows = 256,
                                                         .scale_columns = newer ? 4 : 2,
                                                         .pads_first = !newer,
                                                         .pads_scales = newer,
                                                         .keeps_scales = !newer}};
  out.plan.interleaved_rope_factor = out.version >= Version{{0, 33, 0}} ? 1 : 4;
  return out;
}

// Share of the recorded weights by which a start may be off, where the reason is known.
double allowance(const std::string& config) {
  if (config.find("-AWQ") != std::string::npos) {
    return 0.015;  // holes that repacking for the kernel leaves
  }
  if (config.find("NVFP4") != std::string::npos) {
    return 0.004;  // expert scales are laid out anew after loading
  }
  if (config.find("DeepSeek-V3.2") != std::string::npos) {
    return 0.009;  // the indexer's buffers
  }
  if (config.find("gpt-oss") != std::string::npos) {
    return 0.006;  // holes that the experts' rearrangement leaves
  }
  return 0.001;
}

TEST(Shared, WeightsOfRecordedStarts) {
  const std::string folder = std::string(OOMCAST_SHARED_DIR) + "/goldens/vllm_startup";
  if (!fs::exists(folder)) {
    GTEST_SKIP() << "no shared material";
  }
  int runs = 0;
  int exact = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".gz") {
      continue;
    }
    std::ifstream file(entry.path(), std::ios::binary);
    boost::iostreams::filtering_istream in;
    in.push(boost::iostreams::gzip_decompressor());
    in.push(file);
    for (std::string line; std::getline(in, line);) {
      auto run = recorded(Json::parse(line));
      if (!run) {
        continue;
      }
      try {
        const ModelSpec spec =
            read_model_config(std::string(OOMCAST_SHARED_DIR) + "/model_configs/" + run->config);
        run->plan.transformers_backend = uses_transformers_backend(spec.architecture, run->version);
        const bool newer = run->version >= Version{{0, 22, 0}};
        const Bytes counted =
            loaded_bytes(weights_on_rank(spec, run->plan), newer ? kMiB * 20 : Bytes{0});
        const std::int64_t off = std::abs(counted.count() - run->counted);
        const double limit = static_cast<double>(run->counted) * allowance(run->config);
        EXPECT_LE(static_cast<double>(off), std::max(limit, 4.0 * 1048576.0))
            << run->config << " " << to_string(run->version) << " tp" << run->plan.tp << " pp"
            << run->plan.pp << ": " << counted.count() << " against " << run->counted;
        ++runs;
        exact += off <= 512 ? 1 : 0;
      } catch (const ConfigError& error) {
        std::cout << "left out: " << error.what() << "\n";
      }
    }
  }
  EXPECT_GE(runs, kRunsCovered);
  std::cout << exact << " of " << runs << " recorded starts within 512 B\n";
}

}  // namespace
}  // namespace oomcast::models
