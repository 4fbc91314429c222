// One subcommand a file; each is a row of the table of commands, which serves dispatch, help, shell
// completions and the man page alike. Exit codes: 0 done and fits, 2 bad input (thrown as
// ConfigError), 3 done and does not fit.
//
// The name of an option's value tells what it is, for readers and for shells: FILE and DIR are
// paths, GPU, FORMAT and SCHEMA names of the catalogs, COMMAND a subcommand, "a|b|c" a closed
// choice, which parse() checks. Any other name is free text.
#pragma once

#include <boost/program_options.hpp>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/run/calibration.hpp"
#include "sim/run/explain_identity.hpp"
#include "sim/run/plan.hpp"
#include "sim/search/workers.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::cli {

namespace po = boost::program_options;

inline constexpr int kFits = 0;
inline constexpr int kBug = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kDoesNotFit = 3;

using Arguments = std::vector<std::string>;

struct Example {
  std::string about;
  std::string line;
};

struct Command {
  std::string name;
  std::string purpose;   // one line of the list of commands
  std::string synopsis;  // "oomcast plan --launch LINE --gpu GPU [OPTION...]"
  std::string about;     // what it does, in one paragraph
  std::vector<Example> examples;
  po::options_description (*options)();
  // The option that words without a name go to, and how many there may be (-1: any number).
  std::string word;
  int most_words = 0;
  int (*run)(const po::variables_map& values);
};

// All of the program but who calls it; the exit code.
int run_program(int argc, char** argv);
// Who shares a sweep's work instead of this process's threads; null: nobody.
search::Workers*& other_workers();

// In the order in which help lists them.
const std::vector<Command>& commands();
std::vector<std::string> command_names();
// Throws ConfigError with the nearest name.
const Command& find_command(const std::string& name);

Command plan_command();
Command replay_command();
Command report_command();
Command sweep_command();
Command limit_command();
Command compare_command();
Command explain_command();
Command calibrate_command();
Command list_command();
Command schema_command();
Command help_command();
Command completions_command();
Command man_command();

// The list of commands, and all about one.
std::string overview();
std::string help_text(const Command& command);

// ---- shared by the subcommands ------------------------------------------------------------------

// --launch, --gpu and everything else that describes a deployment.
po::options_description deployment_options();
// Every unknown or malformed option is one ConfigError with the nearest name; nullopt when --help
// was given.
std::optional<po::variables_map> parse(const Command& command, const Arguments& arguments);
// The name of an option's value without its default: "FILE"; empty for a switch.
std::string value_name(const po::option_description& option);
// The names of a closed choice; empty for any other value.
std::vector<std::string> choices(const std::string& value_name);
// The names that a shell offers for a value: those of a choice or of a catalog.
std::vector<std::string> offered(const std::string& value_name);
// A description up to its first clause.
std::string first_clause(const std::string& description);

// --brief, beside the --json of deployment_options().
void add_brief(po::options_description& options);
// As the two ask: `json`, the one line `brief`, or else `text`. Under GitHub Actions the one line
// of what does not fit is an annotation too.
std::string chosen_output(const po::variables_map& values, bool fits, const std::string& json,
                          const std::string& brief, const std::string& text);

// The size of an option, nullopt when it was not given; complains about what is no size.
std::optional<Bytes> bytes_option(const po::variables_map& values, const char* name,
                                  Problems& problems);

// What a log does not tell may be given: the options of a deployment, all optional.
po::options_description log_options();
ExplainOptions log_choices(const po::variables_map& values);

// What requests a run serves.
po::options_description workload_options();
workloads::WorkloadOptions workload_choices(const po::variables_map& values);
// For a command without a workload: complains about options that would change one.
void refuse_workload_changes(const po::variables_map& values, Problems& problems);

// As strftime formats it.
std::string utc_now(const char* format);
// results/<date>-<name>, with a number behind it if that is taken; of a model's name the last part.
std::string default_folder(const std::string& model, const std::string& ending = "");
// Ctrl-C and a polite kill leave nothing half-written: long work looks at what is returned, stops
// between two steps once it is not 0, and what was staged goes with it.
const volatile std::sig_atomic_t* stop_on_signals();
// The same signals end the program again.
void stop_no_more();

struct DeploymentChoice {
  AnyDeployment deployment;
  std::optional<Calibration> calibration;
};
// Resolves what deployment_options() describe.
DeploymentChoice resolve_deployment(const po::variables_map& values);
// The same with another launch line (or @file), and the card of the option `gpu`. Throws
// `problems` and its own together.
DeploymentChoice resolve_deployment(const po::variables_map& values, const std::string& line,
                                    const char* gpu, Problems& problems);

// Step times as the deployment's calibration has them, or the roofline's.
std::unique_ptr<StepTimeModel> step_times_of(const DeploymentChoice& choice);

// Of two sides, each a launch line, @file, a run's folder, record.json or plan.json; --launch,
// where it is given, is the first of them.
int run_compare(const po::variables_map& values, std::vector<std::string> sides);

}  // namespace oomcast::cli
