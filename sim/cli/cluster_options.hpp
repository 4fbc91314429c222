// The options of a replay of prefill and decode servers.
#pragma once

#include <memory>

#include "sim/cli/command.hpp"
#include "sim/cluster/cluster.hpp"

namespace oomcast::cli {

po::options_description cluster_options();
bool wants_cluster(const po::variables_map& values);
// Without a pair there is no use for any of them: ConfigError.
void refuse_cluster_options(const po::variables_map& values);

struct ClusterChoice {
  cluster::ClusterSetup setup;
  std::unique_ptr<StepTimeModel> prefill_times;
  std::unique_ptr<StepTimeModel> decode_times;
};
// Resolves what the options describe and starts one server of each pool. Throws ConfigError.
ClusterChoice cluster_choice(const po::variables_map& values);

}  // namespace oomcast::cli
