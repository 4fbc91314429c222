// Measured cases: one log of a card and version calibrates, the others of the same card and version
// must then come out right. Needs the shared cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/calibration_fit.hpp"

namespace oomcast {
namespace {

struct Case {
  Json json;
  DeploymentInput input;
};

// A log of the case's figures in vLLM's words; what the case does not state is not printed.
std::string log_of(const Json& expected) {
  std::string log = "vLLM API server version 0.19.0\n";
  const auto print = [&](const char* key, const std::string& before, const std::string& after) {
    if (expected.contains(key)) {
      log += fmt::format("{} {:.2f} {}\n", before, expected[key].get<double>(), after);
    }
  };
  print("weights_gib", "Model loading took", "GiB memory and 3 seconds");
  print("activation_peak_gib", "torch peak memory increase:", "GiB");
  print("non_torch_gib", "non-torch forward increase memory:", "GiB");
  print("available_kv_gib", "Available KV cache memory:", "GiB");
  print("cudagraph_gib", "Graph capturing finished in 21 secs, took", "GiB");
  if (expected.contains("total_gib")) {
    log += fmt::format("Free memory on device cuda:0 (78.60/{:.2f} GiB) on startup.\n",
                       expected["total_gib"].get<double>());
  }
  return log;
}

std::vector<Case> cases_of(const std::string& gpu, const std::string& version) {
  std::vector<Case> cases;
  std::ifstream file(OOMCAST_SHARED_DIR "/cases/vllm.jsonl");
  std::string line;
  while (std::getline(file, line)) {
    Json json = Json::parse(line);
    const bool usable = json["gpu"] == gpu && json["engine_version"] == version &&
                        json["quant_override"].is_null() && json["given"].empty() &&
                        json["expected"].contains("available_kv_gib");
    if (!usable) {
      continue;
    }
    DeploymentInput input;
    input.launch_line = json["launch"];
    input.gpu = gpu;
    input.engine_version = version;
    input.model_config = OOMCAST_SHARED_DIR "/" + json["config_file"].get<std::string>();
    cases.push_back({std::move(json), std::move(input)});
  }
  return cases;
}

TEST(CalibrateCases, OneLogBringsTheOthersBelowHalfAPercent) {
  const std::vector<Case> cases = cases_of("NVIDIA H100 80GB HBM3", "0.19.0");
  if (cases.size() < 3) {
    GTEST_SKIP() << "the shared cases are not there";
  }
  double sum = 0;
  int pairs = 0;
  for (const Case& used : cases) {
    if (!used.json["expected"].contains("weights_gib")) {
      continue;
    }
    const logs::EngineLog log = logs::read_log_text(log_of(used.json["expected"]), "case");
    const CalibrationFit fit = fit_calibration({{"case", &log.runs.front(), used.input}});
    for (const Case& other : cases) {
      if (&other == &used) {
        continue;
      }
      AnyDeployment deployment = resolve_input(other.input);
      apply(fit.calibration, deployment.common());
      const double got = to_gib(*start(std::move(deployment)).report().available_kv);
      const double want = other.json["expected"]["available_kv_gib"];
      sum += std::abs(got / want - 1) * 100;
      ++pairs;
    }
  }
  RecordProperty("mean_error_percent", fmt::format("{:.4f}", sum / pairs));
  EXPECT_LT(sum / pairs, 0.5);
}

}  // namespace
}  // namespace oomcast
