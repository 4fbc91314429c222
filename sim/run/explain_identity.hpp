// What a log's start was: engine, version, model, card and flags, as the options say, else as its
// lines tell; and what is missing to predict it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/logs/engine_log.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {

// What the user adds to a log. Empty: as the log says.
struct ExplainOptions {
  std::string launch_line;
  std::string gpu;
  std::string engine_version;
  std::string model_config;
  CardState card;
  std::vector<std::string> assume;
};

struct Identified {
  std::string value;  // empty: not known
  std::string from;   // "option", "line 3", "wording of the lines: 0.18.0 to 0.26.9"
};

struct Identity {
  std::optional<launch::Engine> engine;
  Identified version;
  Identified model;
  Identified gpu;
  Identified launch_line;
  std::vector<std::string> notes;
  std::vector<std::string> missing;  // in words; empty: enough to predict
  DeploymentInput input;             // complete where nothing is missing
};

Identity identify(const logs::EngineRun& run, const ExplainOptions& options);

// The launch line with the flags that a start printed, each checked against the version's table;
// what the table does not take is left out with a note. `version` may be empty.
std::string launch_line_of(const logs::EngineRun& run, launch::Engine engine,
                           const std::string& version, std::vector<std::string>& notes);

}  // namespace oomcast
