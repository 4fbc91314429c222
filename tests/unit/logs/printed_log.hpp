// A plan printed as its engine's log, to be read back.
#pragma once

#include <string>

#include "sim/run/plan.hpp"

namespace oomcast {

// vLLM's lines in the wording of the plan's version, figures to two digits, launch line included.
std::string printed_vllm_log(const Plan& plan, const std::string& launch_line);

// The plan of a launch. Throws ConfigError.
Plan plan_of(const std::string& launch_line, const std::string& gpu, const std::string& version);

}  // namespace oomcast
