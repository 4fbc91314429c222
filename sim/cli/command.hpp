// One subcommand a file; each reads its options, calls the library, prints, and returns the exit
// code: 0 done and fits, 2 bad input (thrown as ConfigError), 3 done and does not fit.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/run/calibration.hpp"
#include "sim/run/explain_identity.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::cli {

inline constexpr int kFits = 0;
inline constexpr int kBug = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kDoesNotFit = 3;

using Arguments = std::vector<std::string>;

int run_plan(const Arguments& arguments);
int run_replay(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_list(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_calibrate(const Arguments& arguments);

// ---- shared by the subcommands ------------------------------------------------------------------

namespace po = boost::program_options;

// --launch, --gpu and everything else that describes a deployment.
po::options_description deployment_options();
// Parses; prints help and returns false when --help was given. Every unknown or malformed option is
// one ConfigError with the nearest name. `positional`: what words without a name are.
bool parse(const Arguments& arguments, const po::options_description& options,
           const std::string& usage, po::variables_map& values,
           const po::positional_options_description& positional = {});
// The size of an option, nullopt when it was not given; complains about what is no size.
std::optional<Bytes> bytes_option(const po::variables_map& values, const char* name,
                                  Problems& problems);

// What a log does not tell may be given: the options of a deployment, all optional.
po::options_description log_options();
ExplainOptions log_choices(const po::variables_map& values);

struct DeploymentChoice {
  AnyDeployment deployment;
  std::optional<Calibration> calibration;
};
// Resolves what deployment_options() describe.
DeploymentChoice resolve_deployment(const po::variables_map& values);

}  // namespace oomcast::cli
