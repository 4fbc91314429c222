// The program of CUDA probes, run beside this one: oomcast itself knows no CUDA.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace oomcast::cli {

struct ProbeRun {
  std::optional<std::string> program;  // none: found beside oomcast, or built
  bool allow_shared = false;           // measure although others use the card, or a part of one
  std::chrono::seconds limit{300};
};

// Runs the probes as an ordinary user and returns the document of samples they print. Shows how
// far they are on a terminal, stops them at the limit. Throws ConfigError with one line that says
// why there is nothing: no GPU, no program, what the program complained of.
std::string run_probes(const ProbeRun& run);

}  // namespace oomcast::cli
