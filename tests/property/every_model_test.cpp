// Every known configuration on every engine, on one card and on eight: planned, or refused with a
// reason; never anything else.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "models/catalog.hpp"
#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {
namespace {

struct Way {
  const char* command;
  const char* eight;
};
constexpr Way kWays[] = {{"vllm serve ", " --tensor-parallel-size 8"},
                         {"python -m sglang.launch_server --model-path ", " --tp-size 8"},
                         {"trtllm-serve ", " --tp_size 8"}};

struct Tally {
  int planned = 0;
  int refused = 0;
};

void try_all(const std::string& model, const std::string& config, Tally& tally) {
  for (const Way& way : kWays) {
    for (const bool eight : {false, true}) {
      DeploymentInput input;
      input.launch_line = way.command + model + (eight ? way.eight : "");
      input.gpu = "H200";
      input.model_config = config;
      SCOPED_TRACE(input.launch_line);
      try {
        const Plan plan = start(resolve_input(input));
        ++tally.planned;
        for (const RankState* rank : plan.ranks()) {
          rank->memory.ledger().audit();
          // What was posted never exceeds the card.
          EXPECT_LE(rank->memory.ledger().views().device_used, plan.deployment().device_total());
        }
        if (plan.outcome().fits()) {
          EXPECT_GT(plan.report().weights.value_or(Bytes{0}), Bytes{0});
          EXPECT_GT(plan.report().kv_tokens.value_or(0), 0);
        } else {
          EXPECT_FALSE(plan.outcome().message.empty());
          EXPECT_FALSE(plan.outcome().phase.empty());
        }
      } catch (const ConfigError& error) {
        ++tally.refused;
        EXPECT_NE(std::string(error.what()).find("expected"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(EveryModel, OfTheCatalog) {
  Tally tally;
  for (const std::string& model : models::catalog_names()) {
    try_all(model, "", tally);
  }
  EXPECT_GT(tally.planned, 8 * tally.refused);
}

TEST(EveryModel, OfTheSharedConfigurations) {
  const std::filesystem::path folder = OOMCAST_SHARED_DIR "/model_configs";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "no shared material";
  }
  Tally tally;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".json" &&
        name.find(".hf_quant_config.") == std::string::npos) {
      try_all("org/" + entry.path().stem().string(), entry.path().string(), tally);
    }
  }
  RecordProperty("planned", tally.planned);
  RecordProperty("refused", tally.refused);
  EXPECT_GT(tally.planned, 4 * tally.refused);
}

}  // namespace
}  // namespace oomcast
