// A plan printed as its engine's log, to be read back.
#pragma once

#include <string>

#include "sim/run/plan.hpp"

namespace oomcast {

// vLLM's lines in the wording of the plan's version, figures to two digits, launch line included.
std::string printed_vllm_log(const Plan& plan, const std::string& launch_line);

// SGLang's and TensorRT-LLM's (PyTorch backend), in the same way.
std::string printed_sglang_log(const Plan& plan, const std::string& launch_line);
std::string printed_trtllm_log(const Plan& plan, const std::string& launch_line);

// The plan of a launch. Throws ConfigError.
Plan plan_of(const std::string& launch_line, const std::string& gpu, const std::string& version);

}  // namespace oomcast
