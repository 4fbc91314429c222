// Probes that need a fresh process: what a context, a module or a library's handle takes shows only
// when it is made for the first time. The parent, whose own context is there already, reads the
// card's free memory before and between the steps of the child.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validation/schedule/device.hpp"

namespace oomcast::validation {

// Runs `probe` in a child of this program and returns by how much free memory fell at each of its
// steps. `environment` is set beside this process's own: "NAME=value".
std::vector<std::int64_t> steps_of_child(const std::string& probe, const Settings& settings,
                                         std::size_t steps,
                                         const std::vector<std::string>& environment = {});

// In the child: tells the parent that a step is done, and waits until it has looked.
void step_done();

// In the child: all of it. The exit code; a reason goes to standard error.
int child_main(const std::string& probe, const Settings& settings);

// The children of each probe.
void context_child(const Settings& settings);
void cublas_child(const Settings& settings);

}  // namespace oomcast::validation
